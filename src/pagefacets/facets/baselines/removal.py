"""The order in which rows can leave a page while sampled queries notice least."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Float64, Integer
from numpy import ndarray
from numpy.typing import NDArray
from torch import Tensor

from pagefacets.products import gram

__all__ = ["Removal", "removal_order"]

# Rows each sample remembers, best first: enough for it to look at the page again two or three times in all.
RESERVE = 16
# Samples whose scores against a page stay in the second-level cache.
BLOCK = 512
# A float64 that holds a float32 has its lowest 29 bits free: room for the row's number.
ROW_BITS = np.int64((1 << 29) - 1)


class Removal(NamedTuple):
    """The rows of a page in the order of their removal, and the error of each when it went: never decreasing."""

    order: Integer[ndarray, " N"]
    errors: Float64[ndarray, " N"]


def removal_order(D: Float[Tensor, "N p"], Q: Float[Tensor, "S p"]) -> Removal:
    """The greedy order of removal of unit rows D under samples Q; rows of equal error go lowest index first.

    The order is that of computing every error anew after each removal, but only the samples whose best or second-best
    row is removed are looked at again. The last row's error is its lead over a score of -2, below any cosine.
    """
    n = D.shape[0]
    order, recorded = np.empty(n, dtype=np.int64), np.empty(n)
    if n > 1:
        nearest = _Nearest(D, Q)
        for i in range(n - 1):
            j = int(nearest.errors.argmin())
            order[i], recorded[i] = j, nearest.errors[j]
            nearest.remove(j)
    order[-1] = n * (n - 1) // 2 - order[:-1].sum()
    recorded[-1] = float((Q @ D[order[-1]]).double().sum()) + 2.0 * Q.shape[0]
    return Removal(order, recorded)


@final
class _Nearest:
    """The best and second-best living row of every sample, a few more in reserve, and the errors that follow."""

    def __init__(self, D: Float[Tensor, "N p"], Q: Float[Tensor, "S p"]) -> None:
        n, samples = D.shape[0], Q.shape[0]
        width = min(RESERVE, n)
        self.D, self.Q = D, Q
        self.alive = np.ones(n, dtype=bool)
        self.rows = np.empty((samples, width), dtype=np.int16 if n < 1 << 15 else np.int32)
        self.scores = np.empty((samples, width), dtype=np.float32)
        numbers = np.arange(n)
        for start in range(0, samples, BLOCK):
            scores = gram(Q[start : start + BLOCK], D)
            self.rows[start : start + BLOCK], self.scores[start : start + BLOCK] = _best(scores, numbers, width)
        self.first, self.second = self.rows[:, 0].copy(), self.rows[:, 1].copy()
        self.lead = self.scores[:, 0].astype(np.float64) - self.scores[:, 1]
        self.errors = np.bincount(self.first, weights=self.lead, minlength=n)

    def remove(self, j: int) -> None:
        """Row j dies: its samples go to their next rows, and errors grow by what the leads have grown."""
        self.alive[j] = False
        self.errors[j] = np.inf
        touched = np.flatnonzero((self.first == j) | (self.second == j))
        if len(touched) == 0 or self.alive.sum() == 1:
            return
        first, second, lead, found = self._living(touched)
        if not found.all():
            self._refill(touched[~found], dead=j)
            first[~found], second[~found], lead[~found], _ = self._living(touched[~found])
        before = np.where(self.first[touched] == j, 0.0, self.lead[touched])
        self.errors += np.bincount(first, weights=lead - before, minlength=len(self.errors))
        self.first[touched], self.second[touched], self.lead[touched] = first, second, lead

    def _living(
        self, samples: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]:
        """The two best living rows of these samples, the lead, and whether there are two in reserve at all."""
        rows, scores = self.rows[samples], self.scores[samples]
        living = self.alive[rows]
        each = np.arange(len(samples))
        best = living.argmax(1)
        living[each, best] = False
        next_best = living.argmax(1)
        lead = scores[each, best].astype(np.float64) - scores[each, next_best]
        return rows[each, best].astype(np.int64), rows[each, next_best].astype(np.int64), lead, living[each, next_best]

    def _refill(self, samples: NDArray[np.int64], *, dead: int) -> None:
        """A new reserve for these samples, from the living rows."""
        numbers = np.flatnonzero(self.alive)
        width = min(self.rows.shape[1], len(numbers))
        # Not by `gram`: its kernels are compiled anew for every shape, and here no two shapes are the same.
        scores = self.Q[torch.from_numpy(samples)] @ self.D[torch.from_numpy(numbers)].mT
        self.rows[samples, :width], self.scores[samples, :width] = _best(scores, numbers, width)
        self.rows[samples, width:] = dead


def _best(
    scores: Float[Tensor, "S M"], numbers: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The `width` rows of largest score for each sample, best first, and their scores.

    Each score carries its row's number in bits that its value leaves free, so that one sort orders both.
    """
    carried = scores.cpu().numpy().astype(np.float64)
    bits = carried.view(np.int64)
    bits |= numbers
    if width < carried.shape[1]:
        carried = np.partition(carried, carried.shape[1] - width, axis=1)[:, -width:]
    bits = np.sort(carried, axis=1)[:, ::-1].view(np.int64)
    return bits & ROW_BITS, (bits & ~ROW_BITS).view(np.float64).astype(np.float32)
