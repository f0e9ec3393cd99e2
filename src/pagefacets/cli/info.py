"""pagefacets info: what a file of vectors, facets or calibration tokens holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.output import human_bytes, print_json, print_rows

if TYPE_CHECKING:
    from pagefacets.vectors.files import VectorFile
    from pagefacets.vectors.pool import CalibrationPool

__all__ = ["EXAMPLE", "command", "pool_facts", "vector_facts"]

EXAMPLE = "Example: pagefacets info facets.safetensors"


def command(
    file: Annotated[Path, typer.Argument(help="A file of page vectors or facets, or a calibration pool.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say what FILE holds."""
    from pagefacets.vectors.files import open_vectors
    from pagefacets.vectors.pool import CalibrationPool, is_pool

    if is_pool(file):
        facts = pool_facts(CalibrationPool.load(file))
    else:
        with open_vectors(file) as vectors:
            facts = vector_facts(vectors)
    if as_json:
        print_json(facts)
    else:
        print_rows(str(file), [(label.replace("_", " "), _text(label, value)) for label, value in facts.items()])


def _text(label: str, value: object) -> str:
    if label == "bytes" and isinstance(value, int):
        return human_bytes(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if isinstance(value, float) else str(value)


def pool_facts(pool: CalibrationPool) -> dict[str, object]:
    """What to know of a pool."""
    return {
        "kind": "calibration pool",
        "tokens": len(pool),
        "dimension": pool.dim,
        "backbone": pool.backbone,
        "variant": pool.variant,
        "source": pool.source,
        "seed": pool.seed,
        "sha256": pool.sha256,
    }


def vector_facts(vectors: VectorFile) -> dict[str, object]:
    """What to know of a file of page vectors or facets."""
    counts = vectors.counts
    return {
        "kind": vectors.kind,
        "pages": len(vectors),
        "vectors": vectors.rows,
        "vectors_per_page": vectors.rows / len(vectors),
        "fewest": int(min(counts)),
        "most": int(max(counts)),
        "dimension": vectors.dim,
        "dtype": str(vectors.dtype).removeprefix("torch."),
        "bytes": vectors.nbytes,
        **vectors.metadata,
    }
