"""What an index holds, what it saves, and which of its pages are served worst."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from jaxtyping import Float, Int

from pagefacets.data import unit_rows
from pagefacets.index.quantize import codec
from pagefacets.pipeline import Index

__all__ = ["PageNumbers", "Stats", "effective_facets"]

_AT_ONCE = 64
_WORST = 5
# Beyond so many pages their full vectors are too much to read for a table.
_COMPARED = 2_000


@final
@dataclass(frozen=True)
class PageNumbers:
    """One page: its K_eff, and its covering error where it was compared with its full vectors."""

    effective: float
    covering_error: float | None


@final
class Stats:
    """The numbers of an index. Those of a page are computed once, so that a later version costs only its new pages."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], PageNumbers] = {}
        self._version: tuple[Index, dict[str, Any]] | None = None

    def of(self, index: Index) -> dict[str, Any]:
        """All numbers as JSON takes them."""
        if self._version is None or self._version[0] is not index:
            self._version = index, self._read(index)
        return self._version[1]

    def _read(self, index: Index) -> dict[str, Any]:
        listing, manifest = index.reader.listing, index.manifest
        compare = manifest.full and len(listing) <= _COMPARED
        keys = list(zip(listing.ids, listing.digests, strict=True))
        new = [place for place, key in enumerate(keys) if key not in self._known]
        fresh = {keys[place]: found for place, found in _measured(index, new, compare=compare)}
        self._known = {key: fresh.get(key) or self._known[key] for key in keys}
        numbers = list(self._known.values())
        compared = bool(numbers) and all(one.covering_error is not None for one in numbers)
        by: Literal["covering_error", "facet_use"] = "covering_error" if compared else "facet_use"
        value = [
            one.covering_error if compared else one.effective / k for one, k in zip(numbers, listing.k, strict=True)
        ]
        order = sorted(range(len(value)), key=lambda place: value[place] or 0.0, reverse=compared)
        return {
            "name": index.path.name,
            "version": index.reader.version,
            "pages": len(listing),
            "documents": len(set(zip(listing.roots, listing.sources, strict=True))),
            "encoder": manifest.encoder.id,
            "compressor": str(manifest.compressor.get("name")),
            "dtype": manifest.dtype,
            "full": manifest.full,
            "vectors": sum(listing.n),
            "facets": sum(listing.k),
            "ratio": sum(listing.k) / max(1, sum(listing.n)),
            "bytes": sum(listing.k) * codec(manifest.dtype, manifest.dim).stride,
            "full_bytes": sum(listing.n) * 2 * manifest.dim,
            "k_mean": sum(listing.k) / max(1, len(listing)),
            "k_eff": math.fsum(one.effective for one in numbers) / max(1, len(numbers)),
            "worst_by": by,
            "worst": [
                {
                    "id": listing.ids[place],
                    "source": listing.sources[place],
                    "number": listing.numbers[place],
                    "value": value[place],
                }
                for place in order[:_WORST]
            ],
        }


def effective_facets(assignment: Int[np.ndarray, " N"], demand: Float[np.ndarray, " N"] | None, k: int) -> float:
    """K_eff of a page: e to the entropy of how its demand, or its rows, are spread over its K facets."""
    held = assignment >= 0
    mass = np.bincount(assignment[held], None if demand is None else demand[held].astype(np.float64), minlength=k)
    if mass.sum() <= 0:
        mass = np.bincount(assignment[held], minlength=k)
    share = mass[mass > 0] / max(mass.sum(), np.finfo(np.float64).tiny)
    return float(min(k, max(1.0, math.exp(-float((share * np.log(share)).sum())))))


def _measured(index: Index, places: list[int], *, compare: bool) -> Iterator[tuple[int, PageNumbers]]:
    columns = ["k", "assignment", "demand"]
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        rows = index.reader.table.take(some, columns=columns).to_pylist()
        for place, row in zip(some, rows, strict=True):
            error = _covering_error(index, index.reader.listing.ids[place]) if compare else None
            yield place, PageNumbers(_effective(row), error)


def _effective(row: Mapping[str, Any]) -> float:
    assignment = np.frombuffer(row["assignment"], np.int32)
    demand = None if row["demand"] is None else np.frombuffer(row["demand"], np.float16)
    return effective_facets(assignment, demand, row["k"])


def _covering_error(index: Index, id: str) -> float | None:
    """C_err under the stored demand: the mean distance 1 - cos of the page's vectors from their nearest facets."""
    full = index.reader.page(id)
    if full is None:
        return None
    facets = index.reader.facets(id)
    D, whole = unit_rows(full.vectors)
    F, _ = unit_rows(facets.vectors)
    loss = torch.where(whole, 1 - (D @ F.T).amax(dim=1), 0).double()
    weights = whole.double() if facets.demand is None else facets.demand.double() * whole
    return float((loss @ weights) / weights.sum().clamp_min(1e-12))
