"""What every compressor shares: the budget rule, the checks on a page, and the call that makes facets of it."""

from __future__ import annotations

import dataclasses
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, final, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pagefacets.data import ArrayLike, Facets, PageVectors, as_page, as_tensor, unit_rows
from pagefacets.errors import InputError, PoolMismatchError
from pagefacets.facets.demand import check_weights
from pagefacets.products import one_thread
from pagefacets.vectors.pool import CalibrationPool

__all__ = [
    "Compressor",
    "Reduction",
    "Rounding",
    "at_least",
    "facet_count",
    "good_part",
    "one_of",
    "own_demand",
    "owned",
    "spread",
    "whole_number",
]

Rounding: TypeAlias = Literal["ceil", "nearest", "floor"]


def facet_count(n: int, ratio: float, rounding: Rounding = "ceil") -> int:
    """K = min(N, max(1, ⌈rN⌉)); 0.07 of 100 rows is 7, whatever binary fractions say."""
    exact = ratio * n
    noise = 1e-9 * max(1.0, exact)
    if rounding == "ceil":
        k = math.ceil(exact - noise)
    elif rounding == "floor":
        k = math.floor(exact + noise)
    else:
        k = math.floor(exact + 0.5 + noise)
    return min(n, max(1, k))


def one_of(argument: str, value: object, allowed: Any) -> None:
    """Refuse a value that the Literal `allowed` does not list."""
    if value not in get_args(allowed):
        raise InputError(f"{argument} must be one of {', '.join(map(repr, get_args(allowed)))}, got {value!r}")


def at_least(argument: str, value: object, least: float) -> None:
    """Refuse what is not a finite number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float | Real) or not least <= float(value) < math.inf:
        raise InputError(f"{argument} must be a number of at least {least:g}, got {value!r}")


def whole_number(argument: str, value: object, least: int) -> None:
    """Refuse what is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | Integral) or value < least:
        raise InputError(f"{argument} must be a whole number, at least {least}, got {value!r}")


class Reduction(NamedTuple):
    """What a method makes of a page: vectors, the facet of every row (-1: dropped), and the plan if it was asked."""

    vectors: Float[Tensor, "*B K p"]
    assignment: Int[Tensor, "*B N"]
    plan: Float[Tensor, "*B K N"] | None = None


@dataclass(frozen=True, kw_only=True)
class Compressor(ABC):
    """A method and its configuration: give it pages, get facets.

    `ratio` keeps that share of each page's vectors, `budget` that many. `on_bad_rows` says what happens to a row
    that is zero, NaN or infinite: "error" names the page and the row, "drop" leaves the row out and warns.
    """

    name: ClassVar[str]
    batches: ClassVar[bool] = False

    ratio: float | None = None
    budget: int | None = None
    rounding: Rounding = "ceil"
    on_bad_rows: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if isinstance(value := getattr(self, field.name), np.generic):
                object.__setattr__(self, field.name, value.item())
        self._check_budget()
        if self.ratio is not None:
            at_least("ratio", self.ratio, 0)
            if not 0 < self.ratio <= 1:
                raise InputError(f"ratio must lie in (0, 1], got {self.ratio}: 0.05 keeps one vector in twenty")
        if self.budget is not None:
            whole_number("budget", self.budget, 1)
        one_of("rounding", self.rounding, Rounding)
        if self.ratio is None and self.rounding != type(self).__dataclass_fields__["rounding"].default:
            raise InputError(f"rounding={self.rounding!r} has no effect without a ratio: leave it out")
        one_of("on_bad_rows", self.on_bad_rows, Literal["error", "drop"])

    @property
    def needs_pool(self) -> bool:
        """Whether the method reads a calibration pool."""
        return False

    def _weigh(self, D: Float[Tensor, "*B N p"], pool: CalibrationPool | None) -> Float[Tensor, "*B N"]:
        """The demand on each row; sums to 1. Without a pool every row is asked for equally."""
        return torch.full(D.shape[:-1], 1.0 / D.shape[-2], device=D.device)

    @abstractmethod
    def _reduce(
        self, D: Float[Tensor, "*B N p"], w: Float[Tensor, "*B N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        """K < N facets of unit rows D under demand w: one page, or a batch where `batches` is true."""

    def _reduce_each(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], budgets: Sequence[int], page: PageVectors
    ) -> list[Reduction]:
        """One page at several budgets, largest first and each below N, for methods whose work serves all of them.

        Only a method that reads nothing but K of its budget may share work here: `self` has one ratio of several.
        """
        return [self._reduce(D, w, K, [page]) for K in budgets]

    def _plan_of_all(self, n: int, device: torch.device) -> Float[Tensor, "N N"] | None:
        """The plan of a page that keeps all its rows, where a plan is asked for."""
        return None

    def _check_budget(self) -> None:
        if (self.ratio is None) == (self.budget is None):
            raise InputError(f"{self.name} needs exactly one of ratio= (a share, 0.05) and budget= (a count, 32)")

    def _budget(self, page: PageVectors) -> int:
        """How many vectors to make of a page: N or more leaves it as it is."""
        return self.k(page.n)

    def k(self, n: int) -> int:
        """The budget of a page of n vectors."""
        if self.ratio is not None:
            return facet_count(n, self.ratio, self.rounding)
        return min(n, self.budget or n)

    @final
    def config(self) -> dict[str, object]:
        """The method's name and every option: `pagefacets.compressor(**config)` is equal to this object."""
        return {"name": self.name, **dataclasses.asdict(self)}

    @final
    def compress(
        self,
        page: PageVectors | ArrayLike,
        pool: CalibrationPool | None = None,
        *,
        weights: ArrayLike | None = None,
    ) -> Facets:
        """The facets of one page, on the page's device and in its dtype.

        `weights` (one per row) take the place of the demand that a pool would give.
        """
        one = as_page(page)
        return self._one(one, pool, weights, "the page" if one.id is None else f"page {one.id!r}")

    @final
    def compress_ratios(
        self,
        page: PageVectors | ArrayLike,
        ratios: Sequence[float],
        pool: CalibrationPool | None = None,
        *,
        weights: ArrayLike | None = None,
    ) -> list[Facets]:
        """The facets of one page at every ratio, each as `compress` would give them, with shared work done once."""
        one = as_page(page)
        methods = [dataclasses.replace(self, ratio=ratio, budget=None) for ratio in ratios]
        label = "the page" if one.id is None else f"page {one.id!r}"
        return self._each(methods, one, pool, weights, label)

    @final
    def compress_many(
        self,
        pages: Iterable[PageVectors | ArrayLike],
        pool: CalibrationPool | None = None,
        *,
        weights: Iterable[ArrayLike] | None = None,
        workers: int | None = None,
        device: str | torch.device = "cpu",
        progress: bool = False,
    ) -> Iterator[Facets]:
        """The facets of each page, in order, with only a window of pages in memory.

        On a CPU every page is the work of one thread, and `workers` processes share the pages (by default one per
        core, or this process alone for a few hundred pages). On another device, pages of equal length go together.
        """
        from pagefacets.facets import many

        try:
            where = torch.device(device)
        except RuntimeError as error:
            raise InputError(f"device must be cpu, cuda or cuda:1, got {device!r}") from error
        return many.compress(self, pages, pool, weights, workers, where, progress=progress)

    @final
    def _one(self, page: PageVectors, pool: CalibrationPool | None, weights: ArrayLike | None, label: str) -> Facets:
        return self._each([self], page, pool, weights, label)[0]

    @final
    def _each(
        self,
        methods: Sequence[Compressor],
        page: PageVectors,
        pool: CalibrationPool | None,
        weights: ArrayLike | None,
        label: str,
    ) -> list[Facets]:
        """One page by methods that differ in their budgets alone."""
        self.check_pool(pool, page.dim, label, weighted=weights is not None)
        # Inference mode halves the cost of the many small steps; what it made is copied before anybody else has it.
        with torch.inference_mode(), one_thread():
            made = self._sound(methods, page, pool, weights, label)
        return [owned(facets) for facets in made]

    def _sound(
        self,
        methods: Sequence[Compressor],
        page: PageVectors,
        pool: CalibrationPool | None,
        weights: ArrayLike | None,
        label: str,
    ) -> list[Facets]:
        """One page by its rows that have a direction, if others may be left out."""
        D, good = unit_rows(page.vectors)
        w = None if weights is None else own_demand(weights, D, label)
        if bool(good.all()):
            return self._made(methods, D, w, pool, page)
        kept = self._good_rows(good, label)
        if w is not None:
            w = own_demand(w[kept], D[kept], label)
        made = self._made(methods, D[kept], w, pool, good_part(page, kept))
        return [spread(facets, kept, page.n) for facets in made]

    @final
    def _made(
        self,
        methods: Sequence[Compressor],
        D: Float[Tensor, "N p"],
        own: Float[Tensor, " N"] | None,
        pool: CalibrationPool | None,
        page: PageVectors,
    ) -> list[Facets]:
        w = own if own is not None else self._weigh(D, pool)
        return [self._facets(made, w, page) for made in self._reductions(methods, D, w, pool, page)]

    def _reductions(
        self,
        methods: Sequence[Compressor],
        D: Float[Tensor, "N p"],
        w: Float[Tensor, " N"],
        pool: CalibrationPool | None,
        page: PageVectors,
    ) -> list[Reduction]:
        """One page by methods that differ in their budgets alone; overridden where rows are chosen by the pool."""
        n = D.shape[0]
        budgets = [method._budget(page) for method in methods]
        whole = Reduction(D, torch.arange(n, device=D.device), self._plan_of_all(n, D.device))
        below = sorted({K for K in budgets if K < n}, reverse=True)
        if below and type(self)._reduce_each is not Compressor._reduce_each:
            shared = dict(zip(below, self._reduce_each(D, w, below, page), strict=True))
            return [shared.get(K, whole) for K in budgets]
        return [method._reduce(D, w, K, [page]) if K < n else whole for method, K in zip(methods, budgets, strict=True)]

    @final
    def _facets(self, made: Reduction, w: Float[Tensor, " N"], page: PageVectors) -> Facets:
        return Facets(
            vectors=made.vectors.to(page.vectors.dtype),
            assignment=made.assignment,
            demand=w,
            plan=made.plan,
            id=page.id,
            method=self.name,
        )

    @final
    def check_pool(self, pool: CalibrationPool | None, dim: int, label: str, *, weighted: bool) -> None:
        """Refuse to start without the demand that the method needs, or with one of another dimension."""
        if not self.needs_pool or weighted:
            return
        if pool is not None and not isinstance(pool, CalibrationPool):
            raise InputError(f"pool must be a CalibrationPool, got {type(pool).__name__}: open a file with its load()")
        if pool is None:
            raise InputError(
                f"{self.name} needs a calibration pool: pass pool=CalibrationPool.build(query_vectors, page_vectors), "
                f"or weights= with one weight per row"
            )
        if pool.dim != dim:
            raise PoolMismatchError(
                f"{label} has vectors of dimension {dim} but the calibration pool has {pool.dim}: "
                f"build a pool with the model that made the pages"
            )

    @final
    def _group(
        self,
        D: Float[Tensor, "B N p"],
        pool: CalibrationPool | None,
        pages: Sequence[PageVectors],
        device: torch.device,
    ) -> list[Facets]:
        """Facets of several pages of equal length at once, delivered on `device`."""
        w = self._weigh(D, pool)
        n, K = D.shape[1], self._budget(pages[0])
        if K >= n:
            plan = self._plan_of_all(n, D.device)
            assignment = torch.arange(n, device=D.device).expand(D.shape[:2])
            made = Reduction(D, assignment, None if plan is None else plan.expand(len(pages), n, n))
        else:
            made = self._reduce(D, w, K, pages)
        vectors, assignment, demand = made.vectors.to(device), made.assignment.to(device), w.to(device)
        plan = None if made.plan is None else made.plan.to(device)
        return [
            self._facets(Reduction(vectors[i], assignment[i], None if plan is None else plan[i]), demand[i], page)
            for i, page in enumerate(pages)
        ]

    def _good_rows(self, good: Bool[Tensor, " N"], label: str) -> Int[Tensor, " M"]:
        bad = ~good
        row = int(bad.to(torch.uint8).argmax())
        count = int(bad.sum())
        also = "" if count == 1 else f" (and {count - 1} more)"
        if self.on_bad_rows == "error" or count == good.shape[0]:
            remedy = (
                "leave the page out" if count == good.shape[0] else 'strip padding rows, or pass on_bad_rows="drop"'
            )
            raise InputError(f"row {row}{also} of {label} is zero, NaN or infinite: {remedy}")
        warnings.warn(f"dropped row {row}{also} of {label}: zero, NaN or infinite", stacklevel=2)
        return torch.nonzero(good).flatten()


def own_demand(weights: ArrayLike, D: Float[Tensor, "N p"], label: str) -> Float[Tensor, " N"]:
    """A caller's own weights as demand on the rows of D."""
    own = as_tensor(weights, f"weights of {label}").to(D.device)
    if own.shape != (D.shape[0],):
        raise InputError(f"weights of {label} must have shape ({D.shape[0]},), one per row, got {tuple(own.shape)}")
    return check_weights(own, label)


def good_part(page: PageVectors, kept: Int[Tensor, " M"]) -> PageVectors:
    """A page without its bad rows; its grid stays where none of them was a patch."""
    part = page.select(kept)
    if page.grid is None or part.image_mask is None or int(part.image_mask.sum()) != page.grid[0] * page.grid[1]:
        return part
    return PageVectors(part.vectors, page.grid, part.image_mask, part.importance, part.boxes, part.id)


def owned(facets: Facets) -> Facets:
    """Facets made in inference mode, as tensors that a caller may change and differentiate."""
    kept = {
        name: value
        for name in ("vectors", "assignment", "demand", "plan")
        if (value := getattr(facets, name)) is not None
    }
    return dataclasses.replace(facets, **{name: value.clone() for name, value in kept.items()})


def spread(facets: Facets, kept: Int[Tensor, " M"], n: int) -> Facets:
    """Facets of a page without its bad rows as facets of the whole page: those rows belong to none."""
    assignment = torch.full((n,), -1, dtype=facets.assignment.dtype, device=kept.device)
    assignment[kept] = facets.assignment
    demand, plan = facets.demand, facets.plan
    if demand is not None:
        demand = demand.new_zeros(n).index_copy(0, kept, demand)
    if plan is not None:
        plan = plan.new_zeros(plan.shape[0], n).index_copy(1, kept, plan)
    return dataclasses.replace(facets, assignment=assignment, demand=demand, plan=plan)
