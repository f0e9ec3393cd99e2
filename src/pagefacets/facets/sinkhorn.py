"""Entropic optimal transport between facets and rows (Eq. sinkhorn)."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.facets.demand import SAFE_TEMPERATURE
from pagefacets.products import EXPONENT, apply, exponential_, gram

__all__ = ["Plan", "Target", "transport"]

Target: TypeAlias = Literal["balanced", "free"]


class Plan(NamedTuple):
    """A transport plan T = r · G: rows G whose scale carries no meaning of its own, their sums, and the scale r."""

    G: Float[Tensor, "*B K N"]
    sums: Float[Tensor, "*B K"]
    r: Float[Tensor, "*B K"]

    @property
    def T(self) -> Float[Tensor, "*B K N"]:
        return self.r.unsqueeze(-1) * self.G

    @property
    def W(self) -> Float[Tensor, "*B K N"]:
        """The rows, each summing to 1."""
        return self.G / self.sums.unsqueeze(-1)

    @property
    def mass(self) -> Float[Tensor, "*B K"]:
        """The row sums of T."""
        return self.r * self.sums

    def barycentres(self, D: Float[Tensor, "*B N p"]) -> Float[Tensor, "*B K p"]:
        """W D, without the pass over the plan that W costs."""
        return gram(self.G, D.mT) / self.sums.unsqueeze(-1)


def transport(
    F: Float[Tensor, "*B K p"],
    D: Float[Tensor, "*B N p"],
    a: Float[Tensor, "*B N"],
    epsilon: float,
    iterations: int = 5,
    target: Target = "balanced",
) -> Plan:
    """The plan after `iterations` of Sinkhorn on M = F Dᵀ / ε, u (facets) first, from v = 0.

    The target marginal is b = Σa / K for every facet; target="free" drops it and keeps only the source marginal.
    """
    if epsilon >= SAFE_TEMPERATURE:
        # The facets are scaled and not their products, which are many times as many.
        return _scaling(exponential_(gram(F * (EXPONENT / epsilon), D)), a, iterations, target)
    return _log_domain(gram(F / epsilon, D), a, iterations, target)


def _scaling(G: Float[Tensor, "*B K N"], a: Float[Tensor, "*B N"], iterations: int, target: Target) -> Plan:
    """Sinkhorn on scalings r = exp(u), c = exp(v) of G = exp(M): matrix-vector products only. Takes G's memory."""
    if target == "free":
        r = torch.ones_like(G[..., 0])
        c = a / G.sum(-2)
    else:
        b = a.sum(-1, keepdim=True) / G.shape[-2]
        r = b / G.sum(-1)
        Gt = G.mT
        c = a / apply(Gt, r)
        for _ in range(iterations - 1):
            r = b / apply(G, c)
            c = a / apply(Gt, r)
    sums = apply(G, c).clamp_min_(torch.finfo(G.dtype).tiny)
    return Plan(G.mul_(c.unsqueeze(-2)), sums, r)


def _log_domain(M: Float[Tensor, "*B K N"], a: Float[Tensor, "*B N"], iterations: int, target: Target) -> Plan:
    log_a = a.log()
    u = torch.zeros(M.shape[:-1], device=M.device, dtype=M.dtype)
    v = torch.zeros_like(a)
    if target == "free":
        v = log_a - torch.logsumexp(M, dim=-2)
    else:
        log_b = (a.sum(-1, keepdim=True) / M.shape[-2]).log()
        for _ in range(iterations):
            u = log_b - torch.logsumexp(M + v.unsqueeze(-2), dim=-1)
            v = log_a - torch.logsumexp(M + u.unsqueeze(-1), dim=-2)
    rows = M + v.unsqueeze(-2)
    return Plan(torch.softmax(rows, dim=-1), torch.ones_like(u), torch.exp(torch.logsumexp(rows, dim=-1) + u))
