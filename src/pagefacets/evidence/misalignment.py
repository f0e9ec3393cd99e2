"""Where retrieval demand falls and what compression does to it: the paper's diagnostics, and Proposition 1.

Rows and query tokens are brought to unit norm in float32; sums run in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from pagefacets.data import as_matrix, as_tensor, unit_rows
from pagefacets.errors import InputError
from pagefacets.products import gram

__all__ = [
    "Bound",
    "Degradation",
    "Lorenz",
    "Match",
    "Proposition1",
    "Tokens",
    "bounds",
    "checked_units",
    "covering_error",
    "degradation",
    "effective_facets",
    "entropy_count",
    "hard_demand",
    "lorenz",
    "matched",
    "mean_change",
    "mean_loss",
    "proposition1",
    "selections",
    "squared_distances",
]

# Whole queries are a sequence of (M, p) matrices or one (Q, M, p) array; one (L, p) matrix is a bag of tokens.
Queries: TypeAlias = Tensor | NDArray[Any] | Sequence[Tensor | NDArray[Any]]

# Scores held at a time: 64 MB.
BLOCK = 1 << 24


@final
@dataclass(frozen=True, eq=False)
class Lorenz:
    """L_top: how much of the demand the most demanded rows hold; `mass[i]` belongs to the share i / (M - 1)."""

    mass: Float[Tensor, " M"]

    @property
    def rho(self) -> Float[Tensor, " M"]:
        return torch.linspace(0.0, 1.0, len(self.mass), dtype=torch.float64)

    def at(self, rho: float) -> float:
        """L_top(ρ), the mass of the top ⌈ρN⌉ rows."""
        if not 0 <= rho <= 1:
            raise InputError(f"rho must lie in [0, 1], got {rho}: 0.2 asks for the top fifth")
        last = len(self.mass) - 1
        return float(self.mass[math.ceil(rho * last - 1e-9)])

    @staticmethod
    def average(curves: Iterable[Lorenz]) -> Lorenz:
        """The mean of L_top over pages, at every whole percent of a page's rows."""
        percents = [i / 100 for i in range(101)]
        values = [[curve.at(rho) for rho in percents] for curve in curves]
        if not values:
            raise InputError("there is no curve to average: pass at least one")
        return Lorenz(torch.tensor(values, dtype=torch.float64).mean(0))


@final
@dataclass(frozen=True)
class Degradation:
    """h_D(q) − h_F(q) per query token: mean of the positive part, of the value itself, and of its magnitude."""

    positive: float
    signed: float
    absolute: float


@final
@dataclass(frozen=True)
class Bound:
    """The chain of Proposition 1: E[Δ₊] ≤ Σ w‖d − f‖ ≤ sqrt(2 Σ w (1 − d·f)); for queries, times A tokens."""

    degradation: float
    covering: float
    surrogate: float


@final
@dataclass(frozen=True)
class Proposition1:
    """The chain for single tokens, and for whole queries where the tokens came as queries."""

    token: Bound
    query: Bound | None


def hard_demand(D: Float[Tensor, "N p"], Q: Float[Tensor, "L p"]) -> Float[Tensor, " N"]:
    """w_j, the share of tokens whose best row is d_j (ties: lowest index), Eq. diagnostic-demand."""
    return selections(matched(checked_units(Q, "Q"), checked_units(D, "D")).row, D.shape[0]) / Q.shape[0]


def lorenz(w: Float[Tensor, " N"]) -> Lorenz:
    """The demand's concentration, Eq. diagnostic-lorenz: `lorenz(w).at(0.2)` is L_top(0.2)."""
    held = _distribution(w, len(w)).sort(descending=True).values.cumsum(0)
    return Lorenz(torch.cat([held.new_zeros(1), held / held[-1]]))


def covering_error(D: Float[Tensor, "N p"], F: Float[Tensor, "K p"], w: Float[Tensor, " N"]) -> float:
    """C_err = Σ_j w_j min_k (1 − d_j·f_k), Eq. diagnostic-covering-error; w counts up to its total."""
    rows, facets = checked_units(D, "D"), checked_units(F, "F")
    return mean_loss(squared_distances(rows, facets, matched(rows, facets).row), w)


def effective_facets(D: Float[Tensor, "N p"], F: Float[Tensor, "K p"], w: Float[Tensor, " N"]) -> float:
    """K_eff, the exponential of the entropy of demand over nearest facets, Eq. diagnostic-keff."""
    return entropy_count(matched(checked_units(D, "D"), checked_units(F, "F")).row, F.shape[0], w)


def degradation(
    D: Float[Tensor, "N p"], F: Float[Tensor, "K p"], Q: Float[Tensor, "L p"], offset: float = 0.0
) -> Degradation:
    """What tokens lose by reading F instead of D; `offset` is what scoring adds to h_F."""
    tokens = checked_units(Q, "Q")
    h_D, h_F = matched(tokens, checked_units(D, "D")).score, matched(tokens, checked_units(F, "F")).score
    return mean_change(h_D, h_F + offset)


def proposition1(
    D: Float[Tensor, "N p"],
    F: Float[Tensor, "K p"],
    Q: Tensor | Sequence[Tensor],
    assignment: Int[Tensor, " N"] | None = None,
) -> Proposition1:
    """The bound on MaxSim degradation for tokens (L, p), and for queries when Q lists them as (M_i, p).

    Queries may differ in length: the derivation uses A only as Σ_j W_j, so their mean length takes its place.
    Rows without a facet in `assignment` (-1, or no assignment at all) count for their nearest one.
    """
    rows, facets, tokens = checked_units(D, "D"), checked_units(F, "F"), Tokens.of(Q)
    pi = matched(rows, facets).row
    if assignment is not None:
        if assignment.shape != pi.shape or int(assignment.max()) >= F.shape[0]:
            raise InputError(
                f"assignment must give each of {D.shape[0]} rows one of {F.shape[0]} facets, counted from 0, "
                f"got shape {tuple(assignment.shape)} with values up to {int(assignment.max())}"
            )
        given = assignment.to(pi)
        pi = torch.where(given < 0, pi, given)
    units = tokens.Q.to(D.device)
    asked, h_F = matched(units, rows), matched(units, facets).score
    w = selections(asked.row, D.shape[0])
    return bounds(asked.score, h_F, squared_distances(rows, facets, pi), w, tokens.lengths)


class Match(NamedTuple):
    """For each token its largest inner product with a row, and that row."""

    score: Float[Tensor, " L"]
    row: Int[Tensor, " L"]


class Tokens(NamedTuple):
    """Query tokens of unit norm, one query after the other, and the queries as they came (None: a bag of tokens)."""

    Q: Float[Tensor, "L p"]
    queries: tuple[Tensor, ...] | None

    @staticmethod
    def of(queries: Queries) -> Tokens:
        if isinstance(queries, Tensor | np.ndarray) and queries.ndim == 2:
            bag = as_matrix(queries, "queries")
            return Tokens(checked_units(bag, "queries"), None)
        matrices = [as_matrix(query, f"query {i}") for i, query in enumerate(_listed(queries))]
        if not matrices:
            raise InputError("queries are empty: pass at least one (M, p) matrix of query tokens")
        p = matrices[0].shape[1]
        for i, matrix in enumerate(matrices):
            if matrix.shape[1] != p:
                raise InputError(
                    f"query {i} has dimension {matrix.shape[1]} but query 0 has {p}: use those of one model"
                )
        units = [checked_units(matrix, f"query {i}") for i, matrix in enumerate(matrices)]
        return Tokens(torch.cat(units), tuple(matrices))

    @property
    def lengths(self) -> list[int] | None:
        """Tokens per query."""
        return None if self.queries is None else [query.shape[0] for query in self.queries]


def checked_units(rows: Float[Tensor, "N p"], what: str) -> Float[Tensor, "N p"]:
    """Unit rows in float32, or an error naming the first row that has no direction."""
    units, good = unit_rows(rows)
    if not bool(good.all()):
        row = int((~good).int().argmax())
        raise InputError(f"row {row} of {what} is zero, NaN or infinite: leave out such rows (padding, for instance)")
    return units


def matched(Q: Float[Tensor, "L p"], rows: Float[Tensor, "N p"]) -> Match:
    """The best of `rows` for every token; ties go to the lowest index."""
    if Q.shape[1] != rows.shape[1]:
        raise InputError(f"D, F and Q must share one dimension, got {Q.shape[1]} and {rows.shape[1]}: use one model's")
    blocks = [gram(block, rows).max(-1) for block in torch.split(Q, max(1, BLOCK // rows.shape[0]))]
    return Match(torch.cat([block.values for block in blocks]), torch.cat([block.indices for block in blocks]))


def selections(chosen: Int[Tensor, " L"], n: int) -> Float[Tensor, " N"]:
    """How many tokens chose each of n rows."""
    return torch.bincount(chosen, minlength=n).float()


def squared_distances(D: Float[Tensor, "N p"], F: Float[Tensor, "K p"], pi: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """‖d_j − f_π(j)‖², which is 2 (1 − d_j·f_π(j)) for unit rows but does not cancel where they are close."""
    return (D - F[pi]).square().sum(-1)


def mean_loss(squares: Float[Tensor, " N"], w: Float[Tensor, " N"]) -> float:
    return float(_distribution(w, len(squares)) @ _float64(squares)) / 2


def entropy_count(nearest: Int[Tensor, " N"], K: int, w: Float[Tensor, " N"]) -> float:
    m = torch.zeros(K, dtype=torch.float64).index_add_(0, nearest.cpu(), _distribution(w, len(nearest)))
    return min(float(K), max(1.0, math.exp(-float(torch.xlogy(m, m).sum()))))


def mean_change(h_D: Float[Tensor, " L"], h_F: Float[Tensor, " L"]) -> Degradation:
    change = _float64(h_D) - _float64(h_F)
    return Degradation(
        positive=float(change.clamp_min(0).mean()), signed=float(change.mean()), absolute=float(change.abs().mean())
    )


def bounds(
    h_D: Float[Tensor, " L"],
    h_F: Float[Tensor, " L"],
    squares: Float[Tensor, " N"],
    w: Float[Tensor, " N"],
    lengths: list[int] | None,
) -> Proposition1:
    """Both chains from the per-token maxima and the squared distances under the assignment."""
    demand, s = _distribution(w, len(squares)), _float64(squares)
    covering, surrogate = float(demand @ s.sqrt()), math.sqrt(float(demand @ s))
    loss = _float64(h_D) - _float64(h_F)
    token = Bound(float(loss.clamp_min(0).mean()), covering, surrogate)
    if lengths is None:
        return Proposition1(token, None)
    A = len(loss) / len(lengths)
    per_query = torch.stack([part.sum() for part in torch.split(loss, lengths)])
    return Proposition1(token, Bound(float(per_query.clamp_min(0).mean()), A * covering, A * surrogate))


def _listed(queries: Queries) -> Sequence[Tensor | NDArray[Any]]:
    if not isinstance(queries, Tensor | np.ndarray):
        return queries
    array = as_tensor(queries, "queries")
    if array.ndim != 3:
        raise InputError(f"queries must be (M, p) matrices or one (Q, M, p) array, got shape {tuple(array.shape)}")
    return list(array)


def _distribution(w: Float[Tensor, " N"], n: int) -> Float[Tensor, " N"]:
    demand = _float64(w)
    if demand.shape != (n,):
        raise InputError(f"w must hold one weight for each of {n} rows, got shape {tuple(demand.shape)}")
    total = float(demand.sum())
    if not (math.isfinite(total) and total > 0) or bool((demand < 0).any()):
        raise InputError("w must be finite, not negative, and not all zero: hard_demand and soft_demand give such a w")
    return demand / total


def _float64(values: Tensor) -> Tensor:
    return values.detach().cpu().double()
