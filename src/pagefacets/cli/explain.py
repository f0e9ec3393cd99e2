"""pagefacets explain: why a page of an index answers a query."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pagefacets.cli.output import print_json
from pagefacets.errors import InputError

if TYPE_CHECKING:
    from pagefacets.evidence.explain import Explanation
    from pagefacets.pipeline import Index

__all__ = ["EXAMPLE", "command"]

EXAMPLE = 'Example: pagefacets explain reports.pf "2023 capex?" -o why.html'
# Columns of text around which no line is broken.
WIDTH = 1000


def command(
    index: Annotated[Path, typer.Argument(help="An index.")],
    query: Annotated[str, typer.Argument(help="What to ask.")],
    page: Annotated[
        str | None, typer.Option(metavar="ID", help="The page to explain, by its id (default: the best hit).")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Explain this hit instead, counted from 1.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write it here: a page (.html), a picture (.png, .jpg, .webp) or .json."),
    ] = None,
    view: Annotated[
        Literal["compressed", "full", "both"] | None,
        typer.Option(help="What is drawn (default: both, where the index keeps full vectors, else compressed)."),
    ] = None,
    weights: Annotated[
        Literal["assignment", "transport"],
        typer.Option(help="Weigh places by the members of a facet, or by MAGIC's transport plan."),
    ] = "assignment",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show which facet each word of QUERY chose on a page of INDEX, and the places on the page behind it."""
    from pagefacets.pipeline import Index

    if page is not None and rank is not None:
        raise InputError("--page and --rank both say which page: leave out one of them")
    if view is not None and output is None:
        raise InputError(f"--view {view} says what to draw: add -o why.html or -o why.png")
    if output is not None:
        _check(output)
    opened = Index.open(index)
    found = opened.explain(query, _hit(opened, query, rank) if page is None else page, weights=weights)
    if output is not None:
        found.save(output, view=view)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found, output)


def _check(output: Path) -> None:
    from pagefacets.evidence.explain import SUFFIXES
    from pagefacets.evidence.heatmap import suffix_of

    suffix_of(output, SUFFIXES)


def _hit(index: Index, query: str, rank: int | None) -> str:
    """The id of the hit at `rank`."""
    if rank is not None and rank < 1:
        raise InputError(f"--rank must be at least 1, got {rank}: 1 is the best hit")
    hits = index.search(query, k=rank or 1)
    if len(hits) < (rank or 1):
        raise InputError(f"{index.path.name} has {len(hits)} pages, so there is no hit {rank or 1}: ask for another")
    return hits[-1].page


def _print(found: Explanation, output: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    kept = found.full_score is not None
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("token", overflow="fold")
    for heading in ("facet", "stands for", "score", *(["full"] if kept else []), "strongest place"):
        table.add_column(heading, justify="right", no_wrap=True)
    for i, one in enumerate(found.tokens):
        places = found.boxes(i)
        full = [] if one.full is None else [f"{one.full.score:.3f}"]
        place = "" if not places else " ".join(f"{side:.3f}" for side in places[0][:4])
        name = Text(_printable(one.text or f"token {i + 1}"))
        table.add_row(name, str(one.facet), f"{one.members:,} of {found.n:,}", f"{one.score:.3f}", *full, place)
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    against = f", {found.full_score:.3f} with all vectors" if found.full_score is not None else ""
    console.print(_printable(f"{', '.join(found.place)} ({found.page})"), soft_wrap=True)
    console.print(f"score {found.score:.3f}{against}; {found.k:,} of {found.n:,} vectors are kept", soft_wrap=True)
    console.print(table)
    if found.sheet.gone is not None:
        console.print(_printable(f"note: {found.sheet.gone}"), soft_wrap=True)
    if output is not None:
        console.print(_printable(f"written to {output}"), soft_wrap=True)


def _printable(text: str) -> str:
    """Text without the characters that move a terminal's cursor."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
