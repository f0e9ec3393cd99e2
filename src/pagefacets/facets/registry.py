"""Every compressor by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor

__all__ = ["METHODS", "compressor", "takes_ratio"]

METHODS = {
    "colchunk": "pagefacets.facets.baselines.colchunk:ColChunk",
    "docpruner": "pagefacets.facets.baselines.docpruner:DocPruner",
    "identity": "pagefacets.facets.baselines.identity:Identity",
    "kmeans": "pagefacets.facets.baselines.kmeans:KMeans",
    "light-colpali": "pagefacets.facets.baselines.ward:LightColPali",
    "magic": "pagefacets.facets.magic:Magic",
    "pool1d": "pagefacets.facets.baselines.pool1d:Pool1D",
    "pool2d": "pagefacets.facets.baselines.pool2d:Pool2D",
    "prune-then-merge": "pagefacets.facets.baselines.prune_then_merge:PruneThenMerge",
    "random": "pagefacets.facets.baselines.random_rows:RandomRows",
    "voronoi": "pagefacets.facets.baselines.voronoi:Voronoi",
    "ward": "pagefacets.facets.baselines.ward:Ward",
}


def compressor(name: str, **options: object) -> Compressor:
    """The compressor called `name`, configured by its options: compressor("magic", ratio=0.05)."""
    if name not in METHODS:
        raise InputError(f"there is no compressor {name!r}: choose from {', '.join(sorted(METHODS))}")
    module, _, attribute = METHODS[name].partition(":")
    kind = getattr(import_module(module), attribute)
    known = list(kind.__dataclass_fields__)
    for option in options:
        if option not in known:
            raise InputError(f"{name} has no option {option!r}: it knows {', '.join(known)}")
    return cast("Compressor", kind(**options))


def takes_ratio(name: str, options: Mapping[str, object]) -> bool:
    """Whether the options still lack a budget: some methods have none, others are given theirs by another option."""
    try:
        compressor(name, **options)
    except InputError:
        return True
    return False
