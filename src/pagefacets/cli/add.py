"""pagefacets add: more documents into an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.index import change_facts, change_rows, report
from pagefacets.cli.output import print_json, print_rows

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets add reports.pf new/"


def command(
    index: Annotated[Path, typer.Argument(help="The index.")],
    source: Annotated[str, typer.Argument(help="What 'pagefacets index' takes: documents, a dataset, a cache, ...")],
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; the encoder's choice by default.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes, for encoders that use several.")] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Report pages that cannot be read and leave them out; status 0.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Add the documents of SOURCE to INDEX; only new and changed pages are encoded."""
    from pagefacets.pipeline import Index

    running = {name: value for name, value in (("device", device), ("workers", workers)) if value is not None}
    opened = Index.open(index)
    if running:
        opened = Index.open(index, opened.recipe.made_encoder(**running))
    opened.add(source, keep_going=keep_going, skipped=report, progress=not quiet)
    if as_json:
        print_json({**change_facts(opened), "index": str(index)})
    else:
        print_rows(str(index), change_rows(opened))
