"""1D pooling: averages of consecutive rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor, Reduction, whole_number
from pagefacets.facets.readout import cluster_means

__all__ = ["Pool1D"]


@final
@dataclass(frozen=True, kw_only=True)
class Pool1D(Compressor):
    """The mean of each window of consecutive rows; the last window averages what is left.

    A window has `factor` rows, the nearest whole number to 1/ratio, or ⌈N/K⌉ where that is longer or a budget is
    given, so that ⌈N/window⌉ never exceeds the budget K. `normalize=False` stores plain means.
    """

    name: ClassVar[str] = "pool1d"

    factor: int | None = None
    normalize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.factor is not None:
            whole_number("factor", self.factor, 1)

    def _check_budget(self) -> None:
        if [self.ratio, self.budget, self.factor].count(None) != 2:
            raise InputError(
                f"{self.name} needs exactly one of ratio= (a share, 0.05), budget= (a count, 32) and "
                f"factor= (rows in a window, 20)"
            )

    def k(self, n: int) -> int:
        return super().k(n) if self.factor is None else -(-n // self.factor)

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        n = D.shape[0]
        window = self.factor
        if window is None:
            wished = 1 if self.ratio is None else round(1 / self.ratio)
            window = max(wished, -(-n // K))
        assignment = torch.arange(n, device=D.device) // window
        return Reduction(cluster_means(D, assignment, normalize=self.normalize), assignment)
