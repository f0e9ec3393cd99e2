"""What an embedding space looks like from a sample of its rows, and when other rows cannot come from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["DIRECTIONS", "Fingerprint", "Moments", "Spread", "alignment", "is_foreign", "log_moment", "second_moment"]

DIRECTIONS = 64

# Measured on pages of five encoders (docs/pools.md): rows of another space align with a pool below 0.05, a single
# page of the pool's own space above 0.12. The threshold lies in the middle.
ALIGNED = 0.08
# Below these a sample says too little about its space to accuse it: rows, groups (pages) behind the fingerprint,
# effective number of directions in the rows.
ROWS, GROUPS, EFFECTIVE = 64, 4, 3.0
# Two halves of the fingerprint's own sample must agree this much, or the space has no shape to recognise.
AGREEMENT = 0.4
# Keeps the logarithm of an unseen direction finite: this fraction of the mean energy per direction.
_FLOOR = 0.1


def second_moment(rows: Float[Tensor, "R p"]) -> Float[Tensor, "p p"]:
    """Mean outer product of the rows, in float64 on the CPU; its trace is 1 for unit rows."""
    return (rows.mT @ rows).cpu().double() / rows.shape[0]


def log_moment(S: Float[Tensor, "p p"]) -> Float[Tensor, "p p"]:
    """Logarithm of a second moment: every direction counts, not the strongest alone."""
    values, vectors = torch.linalg.eigh(S)
    logarithm: Tensor = vectors @ ((values.clamp_min(0.0) + _FLOOR / S.shape[0]).log().unsqueeze(1) * vectors.mT)
    return logarithm


def alignment(A: Float[Tensor, "p p"], B: Float[Tensor, "p p"]) -> float:
    """Cosine between two symmetric matrices after their traces are removed.

    If one of them is turned by a random rotation this has mean 0 and variance 2 / ((p - 1)(p + 2)), exactly.
    """
    left, right = _traceless(A), _traceless(B)
    norms = float(torch.linalg.matrix_norm(left) * torch.linalg.matrix_norm(right))
    return 0.0 if norms < 1e-12 else float((left * right).sum()) / norms


def _traceless(A: Float[Tensor, "p p"]) -> Float[Tensor, "p p"]:
    p = A.shape[0]
    return A - torch.eye(p, dtype=A.dtype) * (A.trace() / p)


def _effective(S: Float[Tensor, "p p"]) -> float:
    """How many directions the energy is spread over: 1 for copies of one row, p for an isotropic sample."""
    return float(S.trace() ** 2 / (S * S).sum())


@final
@dataclass(frozen=True, eq=False)
class Spread:
    """Mean, strongest directions about the mean, and their energies, of unit rows that came in `groups` groups.

    `agreement` is the alignment between two halves of the groups: near 0 the space has no shape to recognise.
    """

    mean: Float[Tensor, " p"]
    directions: Float[Tensor, "k p"]
    energy: Float[Tensor, " k"]
    groups: int
    agreement: float

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    @cached_property
    def moment(self) -> Float[Tensor, "p p"]:
        """Second moment put together again, what the directions leave out spread evenly."""
        mean, V, energy = self.mean.double(), self.directions.double(), self.energy.double()
        S = torch.outer(mean, mean) + V.mT @ (energy.unsqueeze(1) * V)
        p, k = self.dim, V.shape[0]
        if k < p:
            rest = (1.0 - S.trace()).clamp_min(0.0) / (p - k)
            S += rest * (torch.eye(p, dtype=S.dtype) - V.mT @ V)
        return S

    @cached_property
    def log_moment(self) -> Float[Tensor, "p p"]:
        return log_moment(self.moment)


@final
class Moments:
    """Sums over unit rows that arrive in groups (queries, pages), from which a `Spread` is taken.

    Even and odd groups are summed apart, so that the two halves can be held against each other.
    """

    def __init__(self, dim: int) -> None:
        self.groups = 0
        self._counts = [0, 0]
        self._sums = torch.zeros(2, dim, dtype=torch.float64)
        self._products = torch.zeros(2, dim, dim, dtype=torch.float64)

    @property
    def rows(self) -> int:
        return sum(self._counts)

    def add(self, rows: Float[Tensor, "R p"]) -> None:
        half = self.groups % 2
        self.groups += 1
        self._counts[half] += rows.shape[0]
        self._sums[half] += rows.sum(0).cpu().double()
        self._products[half] += second_moment(rows) * rows.shape[0]

    def spread(self) -> Spread:
        mean = self._sums.sum(0) / self.rows
        covariance = self._products.sum(0) / self.rows - torch.outer(mean, mean)
        values, vectors = torch.linalg.eigh(covariance)
        k = min(DIRECTIONS, mean.shape[0])
        agreement = 0.0
        if min(self._counts) > 0:
            first, second = (products / n for products, n in zip(self._products, self._counts, strict=True))
            agreement = alignment(log_moment(first), log_moment(second))
        return Spread(
            mean=mean.float(),
            directions=vectors.flip(1)[:, :k].mT.float().contiguous(),
            energy=values.flip(0)[:k].clamp_min(0.0).float(),
            groups=self.groups,
            agreement=agreement,
        )


@final
@dataclass(frozen=True, eq=False)
class Fingerprint:
    """The spread of query rows, and of page rows where pages were seen."""

    queries: Spread
    pages: Spread | None


def is_foreign(rows: Float[Tensor, "R p"], spread: Spread) -> bool:
    """Whether unit rows of the right dimension cannot come from the space of `spread`; False where that is unclear."""
    p = spread.dim
    chance = math.sqrt(2.0 / max(1, (p - 1) * (p + 2)))
    if rows.shape[0] < ROWS or spread.groups < GROUPS or spread.agreement < max(AGREEMENT, 4.0 * chance):
        return False
    S = second_moment(rows)
    if _effective(S) < min(EFFECTIVE, 0.5 * _effective(spread.moment)):
        return False
    return alignment(spread.log_moment, log_moment(S)) < ALIGNED
