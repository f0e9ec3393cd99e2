"""pagefacets diagnose: what compression did to the pages that queries ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.output import print_json, print_rows
from pagefacets.cli.queries import query_vectors
from pagefacets.errors import InputError

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets diagnose pages.safetensors facets.safetensors --vectors queries.npz --plot demand.png"


def command(
    pages: Annotated[Path, typer.Argument(help="The page vectors before compression.")],
    facets: Annotated[Path, typer.Argument(help="The facets made from them, in the same order.")],
    vectors: Annotated[
        Path | None, typer.Option(help="Encoded queries, one 'page' per query; default: those inside PAGES.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the demand curve here (.png, .svg, .pdf).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Measure covering error, active facets and score fidelity under the demand of real queries."""
    from pagefacets.evidence.diagnostics import diagnose_many
    from pagefacets.evidence.plots import check_target, plot_demand, save
    from pagefacets.progress import track
    from pagefacets.vectors.files import open_vectors

    if plot is not None:
        check_target(plot)
    with open_vectors(pages) as before, open_vectors(facets) as after:
        if len(before) != len(after):
            raise InputError(
                f"{before.name} has {len(before)} pages but {after.name} has {len(after)}: they must match"
            )
        queries = query_vectors(before, vectors)
        watched = before if quiet else track(before, len(before), "diagnosing", unit="pages")
        result = diagnose_many(watched, after.iter_facets(), queries)
    if plot is not None:
        save(plot_demand(result), plot)
    if as_json:
        print_json(result.to_dict())
    else:
        print_rows(f"{facets} against {pages}", result.table())
