"""The rows that facets start from: farthest-first by cosine."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.farthest import farthest_first, medoid

__all__ = ["FirstSeed", "seed_facets"]

FirstSeed: TypeAlias = Literal["medoid", "first", "demand"]


def seed_facets(
    D: Float[Tensor, "*B N p"], K: int, *, first: FirstSeed = "medoid", w: Float[Tensor, "*B N"] | None = None
) -> Float[Tensor, "*B K p"]:
    """K rows of D, each the one least like those before it; the first is the medoid, row 0, or the most demanded."""
    if first == "medoid":
        start = medoid(D)
    elif first == "demand" and w is not None:
        start = w.argmax(-1)
    else:
        start = torch.zeros(D.shape[:-2], dtype=torch.long, device=D.device)
    chosen = farthest_first(D, K, start)
    return D.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, D.shape[-1]))
