"""Retrieval demand: which rows of a page MaxSim will ask for (Eq. selection-estimator)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.products import EXPONENT, apply, exponential_, gram

__all__ = ["SAFE_TEMPERATURE", "check_weights", "soft_demand"]

# With unit vectors a cosine over a temperature of at least this much stays inside float32 under a bare exponential;
# below it the logarithmic domain is needed.
SAFE_TEMPERATURE = 0.03


def soft_demand(D: Float[Tensor, "*B N p"], Q: Float[Tensor, "L p"], tau: float) -> Float[Tensor, "*B N"]:
    """ŵ_j = mean_q softmax_j(q·d_j / τ) over unit rows; sums to 1."""
    fast = tau >= SAFE_TEMPERATURE
    rows = D * ((EXPONENT if fast else 1.0) / tau)
    w = torch.zeros(D.shape[:-1], device=D.device, dtype=D.dtype)
    for q in torch.split(Q, _block(D)):
        X = gram(q if D.ndim == 2 else q.expand(*D.shape[:-2], *q.shape), rows)
        if fast:
            exponential_(X)
            w += apply(X.mT, X.sum(-1).reciprocal_())
        else:
            w += torch.softmax(X, dim=-1).sum(-2)
    return w / w.sum(-1, keepdim=True)


def _block(D: Float[Tensor, "*B N p"]) -> int:
    """Tokens at a time: on a CPU a block of scores takes a MB, which a core's caches hold, elsewhere half a GB."""
    scores = 1 << 18 if D.device.type == "cpu" else 1 << 27
    return max(16, scores // max(1, math.prod(D.shape[:-1])))


def check_weights(weights: Float[Tensor, " N"], name: str) -> Float[Tensor, " N"]:
    """A caller's own demand, as a distribution."""
    w = weights.float()
    if not bool(torch.isfinite(w).all()) or bool((w < 0).any()) or not bool(w.sum() > 0):
        raise InputError(f"weights of {name} must be finite, not negative, and not all zero")
    return w / w.sum()
