"""From rows and the facet of each to facets: sums of unit rows, put back on the sphere."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.products import gram

__all__ = ["cluster_means", "lloyd_readout", "spherical_step"]

# Below this norm a sum of unit vectors has no direction worth keeping.
VANISHING = 1e-8
# Up to so many facets one product with a selection matrix is quicker than adding row by row.
FEW = 16


def spherical_step(
    F: Float[Tensor, "*B K p"], barycentres: Float[Tensor, "*B K p"], eta: float
) -> Float[Tensor, "*B K p"]:
    """f ← norm((1 − η) f + η Σ_j W_kj d_j), Eq. barycenter-update; a facet whose step vanishes stays."""
    return _directions(torch.lerp(F, barycentres, eta), otherwise=F)


def lloyd_readout(
    D: Float[Tensor, "*B N p"], a: Float[Tensor, "*B N"], assignment: Int[Tensor, "*B N"], F: Float[Tensor, "*B K p"]
) -> Float[Tensor, "*B K p"]:
    """norm(Σ_{k(j)=k} a_j d_j), Eq. lloyd-readout; a facet without members or direction keeps its barycentre."""
    return _directions(_sums(D, a, assignment, F.shape[-2]), otherwise=F)


def cluster_means(D: Float[Tensor, "N p"], labels: Int[Tensor, " N"], *, normalize: bool) -> Float[Tensor, "K p"]:
    """The mean of each cluster, labels being 0 to K-1 with none empty; rows that cancel out keep their first one."""
    K = int(labels.max()) + 1
    sums = _sums(D, torch.ones(D.shape[0], device=D.device), labels, K)
    if not normalize:
        return sums / torch.bincount(labels, minlength=K).unsqueeze(-1)
    n = D.shape[0]
    first = torch.full((K,), n, device=D.device).scatter_reduce(0, labels, torch.arange(n, device=D.device), "amin")
    return _directions(sums, otherwise=D[first])


def _sums(
    D: Float[Tensor, "*B N p"], a: Float[Tensor, "*B N"], assignment: Int[Tensor, "*B N"], K: int
) -> Float[Tensor, "*B K p"]:
    if D.ndim == 2 and D.device.type == "cpu" and K > FEW:
        return torch.zeros(K, D.shape[-1]).index_add_(0, assignment, D * a.unsqueeze(-1))
    Z = torch.zeros(*D.shape[:-2], K, D.shape[-2], device=D.device)
    Z.scatter_(-2, assignment.unsqueeze(-2), a.unsqueeze(-2))
    return gram(Z, D.mT)


def _directions(sums: Float[Tensor, "*B K p"], *, otherwise: Float[Tensor, "*B K p"]) -> Float[Tensor, "*B K p"]:
    norms = torch.linalg.vector_norm(sums, dim=-1, keepdim=True)
    # A look at the smallest is free on a CPU and saves the choice for each; an accelerator would have to stop for it.
    if norms.device.type == "cpu" and float(norms.min()) >= VANISHING:
        return torch.div(sums, norms)
    return torch.where(norms < VANISHING, otherwise, sums / norms.clamp_min(VANISHING))
