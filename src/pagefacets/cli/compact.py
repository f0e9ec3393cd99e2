"""pagefacets compact: an index in as few bytes as it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.output import human_bytes, print_json, print_rows

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets compact reports.pf"


def command(
    index: Annotated[Path, typer.Argument(help="The index.")],
    now: Annotated[
        bool,
        typer.Option("--now", help="Let go of all older versions, also of those of the last hour that may be read."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Rewrite what many small changes left in INDEX, and let go of versions older than an hour."""
    from pagefacets.index.reader import disk_bytes
    from pagefacets.pipeline import Index

    opened = Index.open(index)
    before = disk_bytes(index)
    opened.compact(now=now)
    after = disk_bytes(index)
    if as_json:
        print_json({"bytes_before": before, "bytes_after": after, "index": str(index)})
    else:
        print_rows(str(index), [("on disk", f"{human_bytes(before)} -> {human_bytes(after)}")])
