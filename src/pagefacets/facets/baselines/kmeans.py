"""Spherical k-means: clusters by cosine, their normalised means as facets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor, Reduction, one_of, whole_number
from pagefacets.facets.readout import lloyd_readout
from pagefacets.farthest import SAME, farthest_first, medoid
from pagefacets.products import gram

__all__ = ["Init", "KMeans", "lloyd", "starting_rows"]

Init: TypeAlias = Literal["fps", "kmeans++", "random"]


@final
@dataclass(frozen=True, kw_only=True)
class KMeans(Compressor):
    """Spherical k-means, started at `init`: farthest-first, rows drawn by their distance ("kmeans++"), or at random.

    A cluster left empty takes the row least similar to its own centroid, so the summed similarity never decreases.
    """

    name: ClassVar[str] = "kmeans"

    iterations: int = 10
    init: Init = "fps"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("iterations", self.iterations, 1)
        one_of("init", self.init, Init)
        whole_number("seed", self.seed, 0)
        if self.init == "fps" and self.seed != KMeans.seed:
            raise InputError('seed belongs to init="kmeans++" or "random": farthest-first draws nothing')

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        return self._reduce_each(D, w, [K], pages[0])[0]

    def _reduce_each(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], budgets: Sequence[int], page: PageVectors
    ) -> list[Reduction]:
        start = starting_rows(D, max(budgets, default=1), self.init, self.seed)
        return [Reduction(*lloyd(D, D[start[:K]], self.iterations)) for K in budgets]


def starting_rows(D: Float[Tensor, "N p"], K: int, init: Init, seed: int) -> Int[Tensor, " K"]:
    """K distinct rows in the order of their choice: fewer are the same without the last ones."""
    if init == "fps":
        return farthest_first(D, K, medoid(D))
    generator = torch.Generator().manual_seed(seed)
    if init == "random":
        return torch.randperm(D.shape[0], generator=generator)[:K].to(D.device)
    return _by_distance(D.cpu(), K, generator).to(D.device)


def lloyd(
    D: Float[Tensor, "N p"], C: Float[Tensor, "K p"], iterations: int
) -> tuple[Float[Tensor, "K p"], Int[Tensor, " N"]]:
    """Centroids after `iterations` of assigning rows and averaging them, and the clusters they are the means of."""
    ones = torch.ones(D.shape[0], device=D.device)
    assignment = torch.full((D.shape[0],), -1, device=D.device)
    for _ in range(iterations):
        similarity, nearest = gram(D, C).max(-1)
        nearest = _without_empty(nearest, similarity, C.shape[0])
        if torch.equal(nearest, assignment):
            break
        assignment = nearest
        C = lloyd_readout(D, ones, assignment, C)
    return C, assignment


def _by_distance(D: Float[Tensor, "N p"], K: int, generator: torch.Generator) -> Int[Tensor, " K"]:
    """k-means++: each next row with probability proportional to 1 − cosine to the nearest row chosen before.

    Copies of chosen rows have none; where only copies are left, they are taken in their order.
    """
    draws = torch.rand(K, generator=generator, dtype=torch.float64).tolist()
    cosine = torch.empty(D.shape[0])
    view = cosine.numpy()
    distance = np.full(D.shape[0], 2.0)
    taken = np.zeros(D.shape[0], dtype=bool)
    chosen: list[int] = []
    for draw in draws:
        reach = np.cumsum(distance)
        spread = reach[-1] > 0
        j = int(np.searchsorted(reach, draw * reach[-1], side="right") if spread else taken.argmin())
        chosen.append(j)
        taken[j] = True
        torch.mv(D, D[j], out=cosine)
        np.minimum(distance, np.where(view > SAME, 0.0, 1.0 - view), out=distance)
        distance[j] = 0.0
    return torch.tensor(chosen)


def _without_empty(assignment: Int[Tensor, " N"], similarity: Float[Tensor, " N"], K: int) -> Int[Tensor, " N"]:
    """Every empty cluster given one row: the least similar to its centroid whose cluster has others."""
    sizes = torch.bincount(assignment, minlength=K)
    if bool(sizes.all()):
        return assignment
    labels, counts = assignment.tolist(), sizes.tolist()
    empty = (k for k, size in enumerate(sizes.tolist()) if size == 0)
    k = next(empty, None)
    for j in similarity.argsort(stable=True).tolist():
        if k is None:
            break
        if counts[labels[j]] > 1:
            counts[labels[j]] -= 1
            labels[j], counts[k] = k, 1
            k = next(empty, None)
    return torch.tensor(labels, device=assignment.device)
