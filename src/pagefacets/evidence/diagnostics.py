"""Does a compressed page still hold what queries ask of it? The diagnostics of a page, and of a collection."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from statistics import fmean
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pagefacets.answers.search import best
from pagefacets.data import ArrayLike, Facets, PageVectors, as_page, unit_rows
from pagefacets.errors import InputError
from pagefacets.evidence.misalignment import (
    Bound,
    Degradation,
    Lorenz,
    Proposition1,
    Queries,
    Tokens,
    bounds,
    checked_units,
    entropy_count,
    lorenz,
    matched,
    mean_change,
    mean_loss,
    selections,
    squared_distances,
)
from pagefacets.facets.demand import soft_demand
from pagefacets.interaction import maxsim

__all__ = ["Diagnostics", "Fidelity", "PageDiagnostics", "diagnose", "diagnose_many"]

TOP_SHARE = 0.2
TOP_PAGES = 5


@final
@dataclass(frozen=True)
class Fidelity:
    """How well compressed MaxSim scores follow full ones over pages, averaged over queries.

    A correlation needs two pages with different scores and `top5`, the share of the best five pages that stay
    among the best five, more than five pages; else they are None.
    """

    spearman: float | None
    pearson: float | None
    absolute: float
    top5: float | None


@final
@dataclass(frozen=True, eq=False)
class PageDiagnostics:
    """What became of one page. `full_scores` and `facet_scores` are its MaxSim per query, where whole queries came."""

    id: str
    k: int
    n: int
    bytes_before: int
    bytes_after: int
    covering_error: float
    effective_facets: float
    demand: Float[Tensor, " N"]
    smoothed_demand: Float[Tensor, " N"]
    tau: float
    degradation: Degradation
    proposition1: Proposition1
    full_scores: Float[Tensor, " Q"] | None
    facet_scores: Float[Tensor, " Q"] | None

    @property
    def ratio(self) -> float:
        return self.k / self.n

    @cached_property
    def lorenz(self) -> Lorenz:
        return lorenz(self.demand)

    @property
    def top_share(self) -> float:
        """L_top(0.2): the share of demand on the most demanded fifth of the rows."""
        return self.lorenz.at(TOP_SHARE)

    @property
    def smoothed_top_share(self) -> float:
        return lorenz(self.smoothed_demand).at(TOP_SHARE)

    def to_dict(self) -> dict[str, object]:
        """Every number of the page as JSON takes it, its vectors of demand and scores left out."""
        return {"id": self.id, **_numbers(self)}

    def table(self) -> list[tuple[str, str]]:
        return [("page", self.id), *_rows(self, self.k)]


@final
@dataclass(frozen=True, eq=False)
class Diagnostics:
    """What became of a set of pages: k, n and bytes are totals, every other number a mean over pages.

    `shared_queries` tells whether every page answered the same queries: only then can scores be compared.
    """

    pages: tuple[PageDiagnostics, ...]
    shared_queries: bool

    @property
    def k(self) -> int:
        return sum(page.k for page in self.pages)

    @property
    def n(self) -> int:
        return sum(page.n for page in self.pages)

    @property
    def ratio(self) -> float:
        return self.k / self.n

    @property
    def allocated_facets(self) -> float:
        """The mean K, against which K_eff is read."""
        return self.k / len(self.pages)

    @property
    def bytes_before(self) -> int:
        return sum(page.bytes_before for page in self.pages)

    @property
    def bytes_after(self) -> int:
        return sum(page.bytes_after for page in self.pages)

    @property
    def covering_error(self) -> float:
        return fmean(page.covering_error for page in self.pages)

    @property
    def effective_facets(self) -> float:
        return fmean(page.effective_facets for page in self.pages)

    @property
    def tau(self) -> float:
        return self.pages[0].tau

    @cached_property
    def lorenz(self) -> Lorenz:
        return Lorenz.average(page.lorenz for page in self.pages)

    @property
    def top_share(self) -> float:
        return self.lorenz.at(TOP_SHARE)

    @cached_property
    def smoothed_top_share(self) -> float:
        return fmean(page.smoothed_top_share for page in self.pages)

    @property
    def degradation(self) -> Degradation:
        each = [page.degradation for page in self.pages]
        return Degradation(
            positive=fmean(one.positive for one in each),
            signed=fmean(one.signed for one in each),
            absolute=fmean(one.absolute for one in each),
        )

    @property
    def proposition1(self) -> Proposition1:
        each = [page.proposition1 for page in self.pages]
        whole = [one.query for one in each if one.query is not None]
        return Proposition1(
            token=_mean_bound([one.token for one in each]),
            query=_mean_bound(whole) if len(whole) == len(each) else None,
        )

    @cached_property
    def fidelity(self) -> Fidelity | None:
        """Full against compressed scores; None where there were no whole queries, or each page had its own."""
        full = [page.full_scores for page in self.pages if page.full_scores is not None]
        compressed = [page.facet_scores for page in self.pages if page.facet_scores is not None]
        if not self.shared_queries or not full:
            return None
        return _fidelity(torch.stack(full).numpy(), torch.stack(compressed).numpy(), [page.id for page in self.pages])

    def worst(self, count: int = 10) -> list[PageDiagnostics]:
        """The pages whose demanded rows are covered worst, largest C_err first."""
        return sorted(self.pages, key=lambda page: page.covering_error, reverse=True)[:count]

    def to_dict(self) -> dict[str, object]:
        """Every number as JSON takes it: the means, the curve at every percent, and each page."""
        return {
            **_numbers(self),
            "allocated_facets": self.allocated_facets,
            "fidelity": None if self.fidelity is None else asdict(self.fidelity),
            "lorenz": self.lorenz.mass.tolist(),
            "pages": [page.to_dict() for page in self.pages],
        }

    def table(self) -> list[tuple[str, str]]:
        rows = [("pages", f"{len(self.pages):,}"), *_rows(self, self.allocated_facets)]
        if self.fidelity is not None:
            rows += [
                ("Spearman of scores over pages", _optional(self.fidelity.spearman)),
                ("Pearson of scores over pages", _optional(self.fidelity.pearson)),
                ("mean absolute score difference", f"{self.fidelity.absolute:.4f}"),
                (f"overlap of the top {TOP_PAGES} pages", _optional(self.fidelity.top5)),
            ]
        return rows


def diagnose(page: PageVectors | ArrayLike, facets: Facets, queries: Queries, *, tau: float = 0.05) -> PageDiagnostics:
    """The diagnostics of one page under `queries`: a sequence of (M, p) matrices, or loose tokens (L, p)."""
    one = as_page(page)
    return _diagnose(one, facets, Tokens.of(queries), tau, one.id or facets.id or "0")


def diagnose_many(
    pages: Iterable[PageVectors | ArrayLike],
    facets: Iterable[Facets],
    queries: Queries | Mapping[str, Queries],
    *,
    tau: float = 0.05,
) -> Diagnostics:
    """The diagnostics of pages and of their facets in the same order, never holding more than two pages.

    `queries` are asked of every page; a mapping from page id gives each page its own, as the paper does. What stays
    of a page is two numbers per row and two scores per query.
    """
    shared = None if isinstance(queries, Mapping) else Tokens.of(queries)
    own = queries if isinstance(queries, Mapping) else {}
    found: list[PageDiagnostics] = []
    for page, held in itertools.zip_longest(pages, facets):
        if page is None or held is None:
            short = "pages" if page is None else "facets"
            raise InputError(f"every page needs its facets, but {short} end after {len(found)}: pass as many of both")
        one = as_page(page)
        name = one.id or held.id or str(len(found))
        if shared is None and name not in own:
            raise InputError(f"queries have no entry for page {name!r}: add one, or pass one list for all pages")
        found.append(_diagnose(one, held, shared or Tokens.of(own[name]), tau, name))
    if not found:
        raise InputError("there are no pages to diagnose: pass at least one page with its facets")
    return Diagnostics(tuple(found), shared_queries=shared is not None)


def _diagnose(page: PageVectors, facets: Facets, tokens: Tokens, tau: float, name: str) -> PageDiagnostics:
    if not tau >= 1e-3:
        raise InputError(f"tau must be at least 0.001, got {tau}: 0.05 is the paper's")
    if page.id is not None and facets.id is not None and page.id != facets.id:
        raise InputError(f"page {page.id!r} came with the facets of {facets.id!r}: bring both into the same order")
    if page.n != facets.n:
        raise InputError(f"page {name!r} has {page.n} rows but its facets were made from {facets.n}")
    if not page.dim == facets.dim == tokens.Q.shape[1]:
        raise InputError(
            f"page {name!r} has dimension {page.dim}, its facets {facets.dim} and the queries {tokens.Q.shape[1]}: "
            "use the vectors of one model"
        )
    device = page.vectors.device
    Q = tokens.Q.to(device)
    kept = torch.nonzero(unit_rows(page.vectors)[1] | (facets.assignment.to(device) >= 0)).flatten()
    D = checked_units(page.vectors[kept], f"page {name!r}")
    F = checked_units(facets.vectors.to(device), f"the facets of page {name!r}")

    asked, h_F = matched(Q, D), matched(Q, F).score
    w = selections(asked.row, len(D)) / len(Q)
    nearest = matched(D, F).row
    squares = squared_distances(D, F, nearest)
    offset = facets.offset or 0.0
    full = facet = None
    if tokens.queries is not None:
        full, facet = maxsim(tokens.queries, [page.vectors[kept], facets.to(device)]).cpu().double().unbind(1)
    return PageDiagnostics(
        id=name,
        k=facets.k,
        n=page.n,
        bytes_before=page.nbytes,
        bytes_after=facets.nbytes,
        covering_error=mean_loss(squares, w),
        effective_facets=entropy_count(nearest, facets.k, w),
        demand=_spread(w, kept, page.n),
        smoothed_demand=_spread(soft_demand(D, Q, tau), kept, page.n),
        tau=tau,
        degradation=mean_change(asked.score, h_F + offset),
        proposition1=bounds(asked.score, h_F, squares, w, tokens.lengths),
        full_scores=full,
        facet_scores=facet,
    )


def _spread(w: Float[Tensor, " M"], kept: Tensor, n: int) -> Float[Tensor, " N"]:
    return torch.zeros(n).index_copy_(0, kept.cpu(), w.cpu())


def _mean_bound(each: Sequence[Bound]) -> Bound:
    return Bound(
        degradation=fmean(one.degradation for one in each),
        covering=fmean(one.covering for one in each),
        surrogate=fmean(one.surrogate for one in each),
    )


def _fidelity(full: NDArray[np.float64], compressed: NDArray[np.float64], ids: Sequence[str]) -> Fidelity:
    pairs = list(zip(full.T, compressed.T, strict=True))
    top5 = None
    if len(ids) > TOP_PAGES:
        kept = [
            len({*best(a.tolist(), ids, TOP_PAGES)} & {*best(b.tolist(), ids, TOP_PAGES)}) / TOP_PAGES for a, b in pairs
        ]
        top5 = fmean(kept)
    return Fidelity(
        spearman=_mean_correlation([(_ranks(a), _ranks(b)) for a, b in pairs]),
        pearson=_mean_correlation(pairs),
        absolute=float(np.abs(full - compressed).mean()),
        top5=top5,
    )


def _mean_correlation(pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> float | None:
    """The mean over the pairs in which neither side is constant."""
    defined = [float(np.corrcoef(a, b)[0, 1]) for a, b in pairs if np.ptp(a) > 0 and np.ptp(b) > 0]
    return fmean(defined) if defined else None


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of their places."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return middle[inverse]


def _numbers(found: PageDiagnostics | Diagnostics) -> dict[str, object]:
    return {
        "k": found.k,
        "n": found.n,
        "ratio": found.ratio,
        "bytes_before": found.bytes_before,
        "bytes_after": found.bytes_after,
        "covering_error": found.covering_error,
        "effective_facets": found.effective_facets,
        "top_share": found.top_share,
        "smoothed_top_share": found.smoothed_top_share,
        "tau": found.tau,
        "degradation": asdict(found.degradation),
        "proposition1": asdict(found.proposition1),
    }


def _rows(found: PageDiagnostics | Diagnostics, allocated: float) -> list[tuple[str, str]]:
    change, chain = found.degradation, found.proposition1
    rows = [
        ("vectors", f"{found.n:,} -> {found.k:,} (ratio {found.ratio:.4f})"),
        ("bytes", f"{found.bytes_before:,} -> {found.bytes_after:,}"),
        ("covering error C_err", f"{found.covering_error:.4f}"),
        ("effective facets K_eff", f"{found.effective_facets:.2f} of {allocated:.2f}"),
        ("demand on the top 20% of rows", f"{found.top_share:.1%}"),
        (f"the same, smoothed at tau {found.tau:g}", f"{found.smoothed_top_share:.1%}"),
        ("score change per token", f"{-change.signed:+.4f} (loss {change.positive:.4f}, size {change.absolute:.4f})"),
        ("Proposition 1 per token", _chain(chain.token)),
    ]
    return rows if chain.query is None else [*rows, ("Proposition 1 per query", _chain(chain.query))]


def _chain(bound: Bound) -> str:
    return f"{bound.degradation:.4f} <= {bound.covering:.4f} <= {bound.surrogate:.4f}"


def _optional(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
