"""pagefacets info: what an index or a file of vectors, facets or calibration tokens holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pagefacets.cli.output import human_bytes, print_json, print_rows

if TYPE_CHECKING:
    from pagefacets.pipeline import Index
    from pagefacets.vectors.files import VectorFile
    from pagefacets.vectors.pool import CalibrationPool

__all__ = ["EXAMPLE", "command", "index_facts", "pool_facts", "vector_facts"]

# Documents that are listed for people.
_SHOWN = 20

EXAMPLE = "Example: pagefacets info facets.safetensors"


def command(
    file: Annotated[Path, typer.Argument(help="An index, a file of page vectors or facets, or a calibration pool.")],
    recipe: Annotated[bool, typer.Option("--recipe", help="Print the recipe of an index as TOML.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say what FILE holds."""
    from pagefacets.index.reader import is_index
    from pagefacets.pipeline import Index
    from pagefacets.vectors.files import open_vectors
    from pagefacets.vectors.pool import CalibrationPool, is_pool

    if recipe:
        sys.stdout.write(Index.open(file).recipe.text())
        return
    if is_index(file):
        facts = index_facts(Index.open(file))
    elif is_pool(file):
        facts = pool_facts(CalibrationPool.load(file))
    else:
        with open_vectors(file) as vectors:
            facts = vector_facts(vectors)
    if as_json:
        print_json(facts)
    else:
        listed = facts.pop("sources", {})
        rows = [(label.replace("_", " "), _text(label, value)) for label, value in facts.items()]
        print_rows(str(file), rows + (_documents(listed) if isinstance(listed, dict) else []))


def _text(label: str, value: object) -> str:
    if label.startswith("bytes") and isinstance(value, int):
        return human_bytes(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}={choice}" for name, choice in value.items() if choice is not None)
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}" if isinstance(value, float) else str(value)


def _documents(listed: dict[str, int]) -> list[tuple[str, str]]:
    shown = [(f"{count:,} pages" if count != 1 else "1 page", source) for source, count in listed.items()]
    left = len(shown) - _SHOWN
    return shown if left <= 1 else [*shown[:_SHOWN], ("", f"and {left:,} more documents: --json lists all")]


def index_facts(index: Index) -> dict[str, object]:
    """What to know of an index."""
    from pagefacets.index.quantize import codec
    from pagefacets.index.reader import disk_bytes

    listing, manifest = index.reader.listing, index.manifest
    facets, vectors = sum(listing.k), sum(listing.n)
    return {
        "kind": "index",
        "pages": len(index),
        "documents": len(listing.documents()),
        "vectors": vectors,
        "facets": facets,
        "facets_per_page": facets / max(1, len(index)),
        "fewest": min(listing.k, default=0),
        "most": max(listing.k, default=0),
        "dimension": manifest.dim,
        "dtype": manifest.dtype,
        "bytes": facets * codec(manifest.dtype, manifest.dim).stride,
        "bytes_on_disk": disk_bytes(index.path),
        "full_vectors": manifest.full,
        "encoder": manifest.encoder.id,
        "method": index.recipe.compressor,
        "pool": manifest.pool_sha256,
        "format": manifest.format,
        "version": index.reader.version,
        "made_by": f"pagefacets {manifest.made_by}",
        "sources": listing.documents(),
    }


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
