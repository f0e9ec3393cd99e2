"""MAGIC: marginal-guided compression (Algorithm 1 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor, Reduction, at_least, one_of, whole_number
from pagefacets.facets.demand import soft_demand
from pagefacets.facets.readout import lloyd_readout, spherical_step
from pagefacets.facets.seeding import FirstSeed, seed_facets
from pagefacets.facets.sinkhorn import Target, transport
from pagefacets.products import best_column, gram
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["Magic"]


@final
@dataclass(frozen=True, kw_only=True)
class Magic(Compressor):
    """Facets by optimal transport from retrieval demand on the rows to balanced use of the facets.

    The defaults are the paper's. `source`, `target` and `readout` switch its ablations: a uniform instead of the
    demand marginal, no target marginal, the transport barycentres instead of the spherical-Lloyd readout.
    """

    name: ClassVar[str] = "magic"
    batches: ClassVar[bool] = True

    tau: float = 0.05
    epsilon: float = 0.05
    outer: int = 5
    inner: int = 5
    eta: float = 0.982
    first_seed: FirstSeed = "medoid"
    source: Literal["demand", "uniform"] = "demand"
    target: Target = "balanced"
    readout: Literal["lloyd", "transport"] = "lloyd"
    keep_plan: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("tau", self.tau, 1e-3)
        at_least("epsilon", self.epsilon, 1e-4)
        whole_number("outer", self.outer, 1)
        whole_number("inner", self.inner, 1)
        at_least("eta", self.eta, 0)
        if not 0 < self.eta <= 1:
            raise InputError(f"eta must lie in (0, 1], got {self.eta}")
        one_of("first_seed", self.first_seed, FirstSeed)
        one_of("source", self.source, Literal["demand", "uniform"])
        one_of("target", self.target, Target)
        one_of("readout", self.readout, Literal["lloyd", "transport"])
        one_of("keep_plan", self.keep_plan, Literal[True, False])

    @property
    def needs_pool(self) -> bool:
        return self.source == "demand"

    def _weigh(self, D: Float[Tensor, "*B N p"], pool: CalibrationPool | None) -> Float[Tensor, "*B N"]:
        if self.source == "demand" and pool is not None:
            return soft_demand(D, pool.tokens.to(D.device), self.tau)
        return super()._weigh(D, pool)

    def _plan_of_all(self, n: int, device: torch.device) -> Float[Tensor, "N N"] | None:
        return torch.eye(n, device=device) if self.keep_plan else None

    def _reduce(
        self, D: Float[Tensor, "*B N p"], w: Float[Tensor, "*B N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        a = w * D.shape[-2]
        F = seed_facets(D, K, first=self.first_seed, w=w)
        for _ in range(self.outer):
            plan = transport(F, D, a, self.epsilon, self.inner, self.target)
            F = spherical_step(F, plan.barycentres(D), self.eta)
        assignment = best_column(gram(F, D))
        if self.readout == "lloyd":
            F = lloyd_readout(D, a, assignment, F)
        return Reduction(F, assignment, plan.W if self.keep_plan else None)
