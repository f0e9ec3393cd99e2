"""pagefacets calibrate: query tokens and page vectors into a calibration pool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pagefacets.cli.output import not_over_inputs, print_json, print_rows
from pagefacets.cli.queries import query_vectors

__all__ = ["EXAMPLE", "command"]

EXAMPLE = (
    "Example: pagefacets calibrate pages.safetensors --vectors queries.npz "
    "--backbone vidore/colqwen2.5-v0.2 -o pool.safetensors"
)


def command(
    pages: Annotated[Path, typer.Argument(help="A file of page vectors: the sample for the visual dictionary.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the pool goes (.safetensors).")],
    vectors: Annotated[
        Path | None,
        typer.Option(help="Encoded queries, one 'page' per query; default: the query vectors inside PAGES."),
    ] = None,
    size: Annotated[int, typer.Option(help="Query tokens in the pool.")] = 1000,
    dictionary: Annotated[int, typer.Option(help="Patches in the visual dictionary.")] = 200,
    variant: Annotated[str, typer.Option(help="magic, no-visual, no-diversity or random.")] = "magic",
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    backbone: Annotated[str | None, typer.Option(help="The model that made the vectors; recorded and checked.")] = None,
    query_prefix: Annotated[str | None, typer.Option(help="The prefix queries were encoded with; recorded.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Choose the query tokens that demand is estimated from."""
    not_over_inputs(output, pages, vectors)
    from pagefacets.cli.info import pool_facts
    from pagefacets.vectors.files import open_vectors
    from pagefacets.vectors.pool import CalibrationPool

    with open_vectors(pages) as sample:
        queries = query_vectors(sample, vectors)
        pool = CalibrationPool.build(
            queries,
            sample,
            size=size,
            dictionary=dictionary,
            seed=seed,
            variant=variant,  # type: ignore[arg-type]  # checked, with a sentence, by build
            backbone=backbone,
            query_prefix=query_prefix,
            source=(pages if vectors is None else vectors).name,
        )
    pool.save(output)
    facts = pool_facts(pool)
    if as_json:
        print_json({**facts, "output": str(output)})
    else:
        print_rows(str(output), [(label, str(value)) for label, value in facts.items()])
