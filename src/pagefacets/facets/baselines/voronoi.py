"""Voronoi pruning: drop, one by one, the row whose absence MaxSim notices least on sampled queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pagefacets.data import ArrayLike, Facets, PageVectors, as_page, unit_rows
from pagefacets.errors import InputError
from pagefacets.facets.baselines.patches import keep_rows
from pagefacets.facets.baselines.removal import Removal, removal_order
from pagefacets.facets.compressor import Compressor, Reduction, Rounding, facet_count, one_of, spread, whole_number
from pagefacets.parallel import available_cores, ordered
from pagefacets.products import one_thread
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["Voronoi", "directions", "voronoi_global"]

Source: TypeAlias = Literal["sphere", "pool"]


@final
@dataclass(frozen=True, kw_only=True)
class Voronoi(Compressor):
    """The last K rows when the row of least error is removed again and again.

    The error of a row is the MaxSim that queries would lose without it: the sum, over the samples in its Voronoi
    cell, of its lead over the next row. The samples are `samples` random directions, the same for every page, or with
    source="pool" the calibration tokens. One order serves every ratio.
    """

    name: ClassVar[str] = "voronoi"

    samples: int = 100_000
    seed: int = 0
    source: Source = "sphere"

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("samples", self.samples, 1)
        whole_number("seed", self.seed, 0)
        one_of("source", self.source, Source)
        if self.source == "pool" and (self.samples, self.seed) != (Voronoi.samples, Voronoi.seed):
            raise InputError("samples and seed belong to source='sphere': with source='pool' leave them out")

    @property
    def needs_pool(self) -> bool:
        return self.source == "pool"

    def _reductions(
        self,
        methods: Sequence[Compressor],
        D: Float[Tensor, "N p"],
        w: Float[Tensor, " N"],
        pool: CalibrationPool | None,
        page: PageVectors,
    ) -> list[Reduction]:
        if self.source == "sphere":
            return super()._reductions(methods, D, w, pool, page)
        return _nested(D, self._queries(D, pool), [method._budget(page) for method in methods])

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        return self._reduce_each(D, w, [K], pages[0])[0]

    def _reduce_each(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], budgets: Sequence[int], page: PageVectors
    ) -> list[Reduction]:
        return _nested(D, self._queries(D, None), budgets)

    def _queries(self, D: Float[Tensor, "N p"], pool: CalibrationPool | None) -> Float[Tensor, "S p"]:
        if self.source == "sphere":
            return directions(self.samples, D.shape[1], self.seed).to(D.device)
        if pool is None:
            raise InputError(
                f"{self.name} with source='pool' samples from the pool's tokens: pass pool=, whatever the weights"
            )
        self.check_pool(pool, D.shape[1], "the page", weighted=False)
        return pool.tokens.to(D.device)


@lru_cache(maxsize=2)
def directions(count: int, p: int, seed: int) -> Float[Tensor, "S p"]:
    """`count` points drawn uniformly from the unit sphere in p dimensions; kept, as every page asks for the same."""
    drawn = torch.randn(count, p, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(drawn, dim=1)


def _nested(D: Float[Tensor, "N p"], Q: Float[Tensor, "S p"], budgets: Sequence[int]) -> list[Reduction]:
    """The rows that are removed last, so many as each budget says."""
    order = torch.from_numpy(removal_order(D, Q).order)
    return [keep_rows(D, order[-K:]) for K in budgets]


def voronoi_global(
    voronoi: Voronoi,
    pages: Sequence[PageVectors | ArrayLike],
    pool: CalibrationPool | None = None,
    *,
    min_keep: int = 1,
    workers: int | None = None,
) -> Iterator[Facets]:
    """The facets of each page in order when the rows of least error leave the whole corpus, wherever they are.

    `voronoi.ratio` is the share that is kept of all rows together; a page keeps `min_keep` of its rows even where
    that exceeds it. The pages are read twice and never held; between the readings their orders of removal are, ten
    bytes a row. `workers` processes share the first reading (by default one per core).
    """
    if voronoi.ratio is None:
        raise InputError("a global budget is a share of all rows: give Voronoi ratio= rather than budget=")
    whole_number("min_keep", min_keep, 1)
    if workers is not None:
        whole_number("workers", workers, 1)
    if not isinstance(pages, Sequence):
        raise InputError(f"pages are read twice, which a {type(pages).__name__} does not allow: pass a list or a file")
    tasks = ((i, pages[i]) for i in range(len(pages)))
    count = workers or min(available_cores(), max(1, len(pages) // 4))
    if count == 1:
        removals = [_page_removal((voronoi, pool), task) for task in tasks]
    else:
        removals = list(ordered(_page_removal, tasks, workers=count, shared=(voronoi, pool)))
    kept = _shares(removals, voronoi.ratio, voronoi.rounding, min_keep)
    return (
        _page_facets(voronoi, as_page(page), removal.order, K)
        for page, removal, K in zip(pages, removals, kept, strict=True)
    )


def _page_removal(shared: tuple[Voronoi, CalibrationPool | None], task: tuple[int, PageVectors | ArrayLike]) -> Removal:
    voronoi, pool = shared
    page = as_page(task[1])
    label = f"page {task[0]}" if page.id is None else f"page {task[0]} ({page.id!r})"
    voronoi.check_pool(pool, page.dim, label, weighted=False)
    with torch.no_grad(), one_thread():
        D, good = unit_rows(page.vectors)
        if not bool(good.all()):
            D = D[voronoi._good_rows(good, label)]
        removal = removal_order(D, voronoi._queries(D, pool))
    return Removal(removal.order.astype(np.min_scalar_type(len(removal.order))), removal.errors)


def _shares(removals: Sequence[Removal], ratio: float, rounding: Rounding, min_keep: int) -> list[int]:
    """How many rows each page keeps when the least errors of all pages go first, earlier pages first among equals."""
    errors = [removal.errors[: max(0, len(removal.errors) - min_keep)] for removal in removals]
    total = sum(len(removal.errors) for removal in removals)
    removable = np.concatenate([np.empty(0), *errors])
    removed = min(total - facet_count(total, ratio, rounding), len(removable)) if total else 0
    if removed == 0:
        return [len(removal.errors) for removal in removals]
    cut = np.partition(removable, removed - 1)[removed - 1]
    below = [int(np.searchsorted(e, cut, side="left")) for e in errors]
    ties = removed - sum(below)
    kept = []
    for removal, e, less in zip(removals, errors, below, strict=True):
        equal = min(int(np.searchsorted(e, cut, side="right")) - less, ties)
        ties -= equal
        kept.append(len(removal.errors) - less - equal)
    return kept


def _page_facets(voronoi: Voronoi, page: PageVectors, order: NDArray[np.integer[Any]], K: int) -> Facets:
    with torch.no_grad():
        D, good = unit_rows(page.vectors)
        rows = good.nonzero().flatten()
        D = D[rows]
        facets = voronoi._facets(
            keep_rows(D, torch.from_numpy(order[-K:].astype(np.int64))), voronoi._weigh(D, None), page
        )
        return facets if len(rows) == page.n else spread(facets, rows, page.n)
