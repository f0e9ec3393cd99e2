"""Prune-then-Merge: DocPruner's threshold first, Ward's clusters of what survives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.baselines.docpruner import Statistics, above_threshold, check_threshold, most_important
from pagefacets.facets.baselines.patches import importance_of, patch_mask
from pagefacets.facets.baselines.ward import ward_labels, ward_linkage
from pagefacets.facets.compressor import Compressor, Reduction, one_of, whole_number
from pagefacets.facets.readout import cluster_means

__all__ = ["PruneThenMerge"]

Prompt: TypeAlias = Literal["merge", "keep", "drop"]


@final
@dataclass(frozen=True, kw_only=True)
class PruneThenMerge(Compressor):
    """Patches above μ + kσ of the page's importance, merged into the normalised means of Ward's clusters.

    `ratio` and `budget` fix how many means there are; `merge_factor` is the published m instead: one mean for every m
    survivors. Where fewer patches survive than the budget has room for, the most important ones are kept. `prompt`
    merges the rows outside image_mask with the surviving patches, keeps them as they are (they use up the budget, but
    at least one mean is always made), or drops them.
    """

    name: ClassVar[str] = "prune-then-merge"

    threshold_k: float = -0.5
    merge_factor: int | None = None
    stats: Statistics = "plain"
    prompt: Prompt = "merge"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_threshold(self.threshold_k)
        if self.merge_factor is not None:
            whole_number("merge_factor", self.merge_factor, 1)
        one_of("stats", self.stats, Statistics)
        one_of("prompt", self.prompt, Prompt)

    def _check_budget(self) -> None:
        if [self.ratio, self.budget, self.merge_factor].count(None) != 2:
            raise InputError(
                f"{self.name} needs exactly one of ratio= (a share, 0.05), budget= (a count, 32) and "
                f"merge_factor= (survivors in a cluster, 4)"
            )

    def _budget(self, page: PageVectors) -> int:
        patches = patch_mask(page, self.name)
        importance = importance_of(page, patches, self.name)
        if self.merge_factor is None:
            return self.k(page.n)
        survivors = int(above_threshold(importance, self.threshold_k, self.stats).sum())
        others = page.n - len(importance)
        merged = survivors + others if self.prompt == "merge" else survivors
        return max(1, merged // self.merge_factor) + (others if self.prompt == "keep" else 0)

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        return self._reduce_each(D, w, [K], pages[0])[0]

    def _reduce_each(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], budgets: Sequence[int], page: PageVectors
    ) -> list[Reduction]:
        patches = patch_mask(page, self.name)
        importance = importance_of(page, patches, self.name)
        above = above_threshold(importance, self.threshold_k, self.stats)
        survivors = self._joined(patches, above)
        count = int(survivors.sum())
        kept = (~patches).nonzero().flatten() if self.prompt == "keep" else patches.nonzero().flatten()[:0]
        tree = None
        made = []
        for K in budgets:
            means = max(1, K - len(kept))
            assignment = torch.full((page.n,), -1, device=D.device)
            if count > means:
                if tree is None:
                    tree = ward_linkage(D[survivors], "condensed")
                assignment[survivors] = ward_labels(tree, means).to(D.device)
                means = int(assignment.max()) + 1
            else:
                rows = self._topped_up(patches, importance, means)
                means = int(rows.sum())
                assignment[rows] = torch.arange(means, device=D.device)
            assignment[kept] = torch.arange(means, means + len(kept), device=D.device)
            counted = assignment >= 0
            made.append(Reduction(cluster_means(D[counted], assignment[counted], normalize=True), assignment))
        return made

    def _joined(self, patches: Bool[Tensor, " N"], chosen: Bool[Tensor, " P"]) -> Bool[Tensor, " N"]:
        """The rows that are merged: the chosen patches, and the prompt rows where those are merged as well."""
        rows = patches.clone()
        rows[patches] = chosen
        return rows | ~patches if self.prompt == "merge" else rows

    def _topped_up(
        self, patches: Bool[Tensor, " N"], importance: Float[Tensor, " P"], means: int
    ) -> Bool[Tensor, " N"]:
        """As many rows as there are means: the prompt rows where those are merged, then the most important patches."""
        others = len(patches) - len(importance) if self.prompt == "merge" else 0
        chosen = torch.zeros(len(importance), dtype=torch.bool, device=importance.device)
        chosen[most_important(importance, means - others)] = True
        return self._joined(patches, chosen)
