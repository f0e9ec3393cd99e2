"""How sure a mean over queries is: bootstrap intervals, and a paired test between two methods.

Values come in strata, one array per data set, and the mean is the macro-average: the mean of the strata's means. Draws
stay within a stratum. Everything is seeded, and two methods are always drawn alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from pagefacets.errors import InputError

__all__ = ["Interval", "Paired", "Strata", "intervals", "macro", "paired", "resampled"]

# Values of queries, one array per data set.
Strata: TypeAlias = Sequence[NDArray[np.float64]]

LEVEL = 0.95
RESAMPLES = 10_000
# Draws made at a time, which bounds memory when queries are many.
BLOCK = 500


@final
@dataclass(frozen=True)
class Interval:
    """A mean and its percentile bootstrap interval."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2


@final
@dataclass(frozen=True)
class Paired:
    """What one method has on another, query by query.

    `difference` is the difference of their means, with its paired bootstrap interval; `p` is the two-sided p-value of
    the paired randomisation test (signs of the differences flipped at random), exact where all flips can be tried.
    """

    difference: float
    low: float
    high: float
    p: float
    queries: int


def macro(strata: Strata) -> float:
    """The mean of the strata's means."""
    _check(strata)
    return float(np.mean([values.mean() for values in strata]))


def resampled(
    strata: Sequence[Float[np.ndarray, "C _"]], *, resamples: int = RESAMPLES, seed: int = 0
) -> Float[np.ndarray, "C R"]:
    """The macro-averages of C series under `resamples` draws of the queries, the same draws for all of them."""
    _check(strata)
    rng = np.random.default_rng(seed)
    means = np.zeros((len(strata[0]), resamples))
    for values in strata:
        n = values.shape[1]
        for start in range(0, resamples, BLOCK):
            draws = min(BLOCK, resamples - start)
            drawn = rng.integers(0, n, (draws, n)) + n * np.arange(draws)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=draws * n).reshape(draws, n)
            means[:, start : start + draws] += values @ counts.T / (n * len(strata))
    return means


def intervals(
    strata: Sequence[Float[np.ndarray, "C _"]], *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0
) -> list[Interval]:
    """The macro-average of each of C series with its interval."""
    if not 0 < level < 1:
        raise InputError(f"level must lie in (0, 1), got {level}: 0.95 covers the middle 95%")
    drawn = resampled(strata, resamples=resamples, seed=seed)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2], axis=1)
    means = np.mean([values.mean(axis=1) for values in strata], axis=0)
    return [Interval(float(m), float(a), float(b)) for m, a, b in zip(means, low, high, strict=True)]


def paired(ours: Strata, theirs: Strata, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Paired:
    """`ours` minus `theirs`, query by query: their arrays hold the same queries in the same order."""
    if [len(values) for values in ours] != [len(values) for values in theirs]:
        raise InputError("the two methods were measured on different queries: measure both on the same")
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    (found,) = intervals([values[None] for values in differences], level=level, resamples=resamples, seed=seed)
    p = _randomised(differences, resamples, seed)
    return Paired(found.mean, found.low, found.high, p, sum(map(len, differences)))


def _randomised(differences: Strata, resamples: int, seed: int) -> float:
    weighted = np.concatenate([values / (len(values) * len(differences)) for values in differences])
    moving = weighted[weighted != 0]
    observed = abs(moving.sum()) * (1 - 1e-12)
    if len(moving) <= math.log2(resamples):
        flips = (np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving))) & 1
        return float(np.mean(np.abs((1 - 2 * flips) @ moving) >= observed))
    rng = np.random.default_rng(seed)
    reached = 0
    for start in range(0, resamples, BLOCK):
        flips = rng.integers(0, 2, (min(BLOCK, resamples - start), len(moving)), dtype=np.int8)
        reached += int(np.sum(np.abs((1 - 2 * flips) @ moving) >= observed))
    return (1 + reached) / (1 + resamples)


def _check(strata: Sequence[NDArray[np.float64]]) -> None:
    if not strata or any(values.shape[-1] == 0 for values in strata):
        raise InputError("there is no query to average over: every data set needs one with a judgement")
