"""A random choice of rows: what any method that reads the page has to beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.facets.compressor import Compressor, Reduction, whole_number

__all__ = ["RandomRows"]


@final
@dataclass(frozen=True, kw_only=True)
class RandomRows(Compressor):
    """K rows drawn uniformly, kept as they are; a larger budget keeps these and more.

    Pages of the same length keep the same row numbers: the draw depends on `seed` and N alone.
    """

    name: ClassVar[str] = "random"

    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("seed", self.seed, 0)

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        order = torch.randperm(D.shape[0], generator=torch.Generator().manual_seed(self.seed))
        kept = order[:K].sort().values.to(D.device)
        assignment = torch.full((D.shape[0],), -1, device=D.device)
        assignment[kept] = torch.arange(K, device=D.device)
        return Reduction(D[kept], assignment)
