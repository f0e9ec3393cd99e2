"""pagefacets delete: documents or pages out of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.output import print_json, print_rows
from pagefacets.errors import InputError

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets delete reports.pf 2019.pdf"


def command(
    index: Annotated[Path, typer.Argument(help="The index.")],
    document: Annotated[
        str | None, typer.Argument(help="A document, as 'pagefacets info' calls it, with all its pages.")
    ] = None,
    page: Annotated[str | None, typer.Option(help="One page by its id, instead of a document.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Remove DOCUMENT, or one page, from INDEX; 'pagefacets compact --now' then takes it from the disk."""
    if (document is None) == (page is None):
        raise InputError("pass a document or --page, one of them")
    from pagefacets.pipeline import Index

    opened = Index.open(index)
    removed = opened.delete(document=document, page=page)
    if as_json:
        print_json({"removed": removed, "pages": len(opened), "index": str(index)})
    else:
        print_rows(str(index), [("removed", f"{removed:,} pages"), ("pages", f"{len(opened):,}")])
