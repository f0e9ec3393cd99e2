"""pagefacets search: the pages of an index that answer a query."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.output import print_json, print_rows, print_table

__all__ = ["EXAMPLE", "command"]

EXAMPLE = 'Example: pagefacets search reports.pf "capital expenditure in 2023" -k 5'


def command(
    index: Annotated[Path, typer.Argument(help="The index.")],
    query: Annotated[str, typer.Argument(help="What to look for.")],
    k: Annotated[int, typer.Option("-k", help="How many pages.")] = 5,
    condition: Annotated[
        str | None,
        typer.Option("--filter", metavar="SQL", help='A condition over id, source and number, e.g. "number < 10".'),
    ] = None,
    rescore: Annotated[
        int | None,
        typer.Option(help="Rank so many candidates again by their full vectors, which the index must keep."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find the pages of INDEX that answer QUERY."""
    from pagefacets.pipeline import Index

    opened = Index.open(index)
    # What is measured is the search: not how long the model and the facets took to be there.
    opened.encoder.encode_queries(["page"])
    _ = opened.reader.packed
    started = time.perf_counter()
    hits = opened.search(query, k, filter=condition, rescore=rescore)
    took = 1e3 * (time.perf_counter() - started)
    if as_json:
        found = [{"id": hit.page, "source": hit.source, "number": hit.number, "score": hit.score} for hit in hits]
        print_json({"hits": found, "took_ms": took})
    elif not hits:
        print_rows(str(index), [("hits", "none: no page fits")])
    else:
        print_table(
            f"{index}: {query}",
            ("rank", "score", "page"),
            [(str(hit.rank), f"{hit.score:.3f}", hit.page) for hit in hits],
        )
