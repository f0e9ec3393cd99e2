"""Entropic optimal transport between facets and rows (Eq. sinkhorn)."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.facets.demand import LOG2_E, SAFE_TEMPERATURE
from pagefacets.products import apply

__all__ = ["Plan", "Target", "transport"]

Target: TypeAlias = Literal["balanced", "free"]


class Plan(NamedTuple):
    """A transport plan T = mass · W, held as its row-normalised part and its row sums."""

    W: Float[Tensor, "*B K N"]
    mass: Float[Tensor, "*B K"]

    @property
    def T(self) -> Float[Tensor, "*B K N"]:
        return self.mass.unsqueeze(-1) * self.W


def transport(
    S: Float[Tensor, "*B K N"],
    a: Float[Tensor, "*B N"],
    epsilon: float,
    iterations: int = 5,
    target: Target = "balanced",
) -> Plan:
    """The plan after `iterations` of Sinkhorn on similarities S = F Dᵀ, u (facets) first, from v = 0.

    The target marginal is b = Σa / K for every facet; target="free" drops it and keeps only the source marginal.
    """
    if epsilon >= SAFE_TEMPERATURE:
        return _scaling(S, a, epsilon, iterations, target)
    return _log_domain(S, a, epsilon, iterations, target)


def _scaling(
    S: Float[Tensor, "*B K N"], a: Float[Tensor, "*B N"], epsilon: float, iterations: int, target: Target
) -> Plan:
    """Sinkhorn on scalings r = exp(u), c = exp(v): one exponential, then matrix-vector products only."""
    G = (S * (LOG2_E / epsilon)).exp2_()
    if target == "free":
        T = G * (a / G.sum(-2)).unsqueeze(-2)
    else:
        b = a.sum(-1, keepdim=True) / S.shape[-2]
        r = b / G.sum(-1)
        c = a / apply(G.mT, r)
        for _ in range(iterations - 1):
            r = b / apply(G, c)
            c = a / apply(G.mT, r)
        T = G.mul_(c.unsqueeze(-2)).mul_(r.unsqueeze(-1))
    mass = T.sum(-1)
    return Plan(T.div_(mass.clamp_min(torch.finfo(T.dtype).tiny).unsqueeze(-1)), mass)


def _log_domain(
    S: Float[Tensor, "*B K N"], a: Float[Tensor, "*B N"], epsilon: float, iterations: int, target: Target
) -> Plan:
    M = S / epsilon
    log_a = a.log()
    u = torch.zeros(M.shape[:-1], device=M.device, dtype=M.dtype)
    v = torch.zeros_like(a)
    if target == "free":
        v = log_a - torch.logsumexp(M, dim=-2)
    else:
        log_b = (a.sum(-1, keepdim=True) / S.shape[-2]).log()
        for _ in range(iterations):
            u = log_b - torch.logsumexp(M + v.unsqueeze(-2), dim=-1)
            v = log_a - torch.logsumexp(M + u.unsqueeze(-1), dim=-2)
    rows = M + v.unsqueeze(-2)
    return Plan(torch.softmax(rows, dim=-1), torch.exp(torch.logsumexp(rows, dim=-1) + u))
