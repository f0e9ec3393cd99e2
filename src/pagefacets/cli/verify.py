"""pagefacets verify: whether an index is whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.output import print_json, print_rows

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets verify reports.pf"

DAMAGED = 1


def command(
    index: Annotated[Path, typer.Argument(help="The index.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Read all of INDEX and say what is wrong with it; exit status 1 where anything is."""
    from pagefacets.pipeline import Index

    started = time.perf_counter()
    opened = Index.open(index)
    wrong = opened.verify()
    seconds = time.perf_counter() - started
    if as_json:
        pages = None if wrong else len(opened)
        print_json({"whole": not wrong, "wrong": wrong, "pages": pages, "seconds": seconds, "index": str(index)})
    elif wrong:
        print_rows(str(index), [("wrong", sentence) for sentence in wrong])
    else:
        print_rows(str(index), [("whole", f"{len(opened):,} pages"), ("time", f"{seconds:.1f} s")])
    if wrong:
        raise typer.Exit(DAMAGED)
