"""pagefacets calibrate: query tokens and page vectors into a calibration pool."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.output import not_over_inputs, print_json, print_rows
from pagefacets.cli.queries import query_vectors
from pagefacets.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from pagefacets.vectors.cache import Cache

__all__ = ["EXAMPLE", "command", "encode_log"]

EXAMPLE = (
    "Example: pagefacets calibrate pages.safetensors --vectors queries.npz "
    "--backbone vidore/colqwen2.5-v0.2 -o pool.safetensors"
)


def command(
    pages: Annotated[
        Path, typer.Argument(help="A cache or a file of page vectors: the sample for the visual dictionary.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the pool goes (.safetensors).")],
    vectors: Annotated[
        Path | None,
        typer.Option(help="Encoded queries, one 'page' per query; default: the query vectors inside PAGES."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="A query log, one per line or .jsonl, to encode with the encoder of the cache PAGES."),
    ] = None,
    size: Annotated[int, typer.Option(help="Query tokens in the pool.")] = 1000,
    dictionary: Annotated[int, typer.Option(help="Patches in the visual dictionary.")] = 200,
    variant: Annotated[str, typer.Option(help="magic, no-visual, no-diversity or random.")] = "magic",
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    backbone: Annotated[
        str | None,
        typer.Option(help="The model that made the vectors; recorded and checked; a cache knows its own."),
    ] = None,
    query_prefix: Annotated[
        str | None, typer.Option(help="The prefix queries were encoded with; recorded; a cache knows its own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Choose the query tokens that demand is estimated from."""
    if vectors is not None and queries is not None:
        raise InputError("pass --vectors or --queries, not both")
    not_over_inputs(output, pages, vectors, queries)
    from pagefacets.cli.info import pool_facts
    from pagefacets.vectors.cache import Cache
    from pagefacets.vectors.caching.manifest import is_cache
    from pagefacets.vectors.files import open_vectors
    from pagefacets.vectors.pool import CalibrationPool

    cache = Cache.open(pages) if is_cache(pages) else None
    if cache is not None:
        backbone, query_prefix = _known(cache, backbone, query_prefix)
    with open_vectors(pages) as sample:
        if queries is not None:
            if cache is None:
                raise InputError(f"--queries needs an encoder, and {pages} is no cache: pass encoded ones, --vectors")
            found = encode_log(cache, queries, seed=seed)
        elif cache is not None and vectors is None and not cache.query_ids:
            raise InputError(f"{pages} holds no queries: pass a query log with --queries, or encoded ones, --vectors")
        else:
            found = query_vectors(sample, vectors)
        pool = CalibrationPool.build(
            found,
            sample,
            size=size,
            dictionary=dictionary,
            seed=seed,
            variant=variant,  # type: ignore[arg-type]  # checked, with a sentence, by build
            backbone=backbone,
            query_prefix=query_prefix,
            source=(queries or vectors or pages).name,
        )
    pool.save(output)
    facts = pool_facts(pool)
    if as_json:
        print_json({**facts, "output": str(output)})
    else:
        print_rows(str(output), [(label, str(value)) for label, value in facts.items()])


def encode_log(cache: Cache, log: Path, *, seed: int, most: int = 5000) -> list[Tensor]:
    """The queries of a log by the encoder of a cache; of more than `most` a sample is drawn, for no pool needs more."""
    import numpy as np

    from pagefacets.vectors.caching.wanted import read_queries

    texts = [query.text for query in read_queries(log)[0]]
    if len(texts) > most:
        drawn = np.sort(np.random.default_rng(seed).permutation(len(texts))[:most])
        texts = [texts[int(number)] for number in drawn]
    encoder = cache.encoder()
    batches = (texts[start : start + 64] for start in range(0, len(texts), 64))
    return [vectors for batch in batches for vectors in encoder.encode_queries(batch)]


def _known(cache: Cache, backbone: str | None, query_prefix: str | None) -> tuple[str, str]:
    """The encoder's id and prefix as the cache has them; what was passed has to agree."""
    note = cache.manifest.encoder
    for flag, given, recorded in (
        ("--backbone", backbone, note.id),
        ("--query-prefix", query_prefix, note.query_prefix),
    ):
        if given is not None and given != recorded:
            raise InputError(f"{flag} is {given!r}, but {cache.path.name} was encoded with {recorded!r}: leave it out")
    return note.id, note.query_prefix
