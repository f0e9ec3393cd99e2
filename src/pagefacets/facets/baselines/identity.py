"""No compression: the page itself, as the reference every method is measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor, Reduction

__all__ = ["Identity"]


@final
@dataclass(frozen=True, kw_only=True)
class Identity(Compressor):
    """Every row, normalised. It has no budget, so it takes neither `ratio`, `budget` nor `rounding`."""

    name: ClassVar[str] = "identity"

    def _check_budget(self) -> None:
        for argument, default in (("ratio", None), ("budget", None), ("rounding", "ceil")):
            if getattr(self, argument) != default:
                raise InputError(f"identity keeps every row: leave out {argument}, got {getattr(self, argument)!r}")

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        return Reduction(D, torch.arange(D.shape[0], device=D.device))
