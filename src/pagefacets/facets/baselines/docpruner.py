"""DocPruner: keep the patches that the encoder's own attention holds important."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.baselines.patches import importance_of, keep_rows, patch_mask
from pagefacets.facets.compressor import Compressor, Reduction, one_of

__all__ = ["DocPruner", "Statistics", "above_threshold", "check_threshold", "most_important"]

Statistics: TypeAlias = Literal["plain", "iqr_clip"]


@final
@dataclass(frozen=True, kw_only=True)
class DocPruner(Compressor):
    """Patches kept unmodified by `page.importance`, with the prompt rows on top unless `keep_prompt` is off.

    `ratio` and `budget` count patches: the most important ones of each page stay. `threshold_k` is the published
    method instead: patches above μ + kσ of their own page stay, however many they are. A single enormous weight
    inflates σ until nothing is pruned; stats="iqr_clip" takes μ and σ of the weights clipped at Q3 + 3 IQR.
    """

    name: ClassVar[str] = "docpruner"

    threshold_k: float | None = None
    stats: Statistics = "plain"
    keep_prompt: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("stats", self.stats, Statistics)
        if self.threshold_k is not None:
            check_threshold(self.threshold_k)
        elif self.stats != "plain":
            raise InputError(f"stats={self.stats!r} has no effect without a threshold: pass threshold_k= or leave it")

    def _check_budget(self) -> None:
        if [self.ratio, self.budget, self.threshold_k].count(None) != 2:
            raise InputError(
                f"{self.name} needs exactly one of ratio= (a share of the patches, 0.05), budget= (a count of patches, "
                f"32) and threshold_k= (-0.25 in the publication)"
            )

    @classmethod
    def calibrated(
        cls, pages: Iterable[PageVectors], ratio: float, *, stats: Statistics = "plain", keep_prompt: bool = True
    ) -> DocPruner:
        """The one threshold that keeps at least `ratio` of the patches of a page, averaged over `pages`.

        Pages still differ in how much each of them keeps. The prompt rows count neither as patches nor as kept.
        """
        if not 0 < ratio <= 1:
            raise InputError(f"ratio must lie in (0, 1], got {ratio}")
        one_of("stats", stats, Statistics)
        deviations = [_deviations(importance_of(page, patch_mask(page, cls.name), cls.name), stats) for page in pages]
        if not deviations:
            raise InputError("calibration needs at least one page with importance: pass a sample of the pages")
        every = torch.unique(torch.cat([z[z.isfinite()] for z in deviations]))
        between = torch.cat([every[:1] - 1.0, (every[:-1] + every[1:]) / 2]).tolist() or [0.0]
        low, high = 0, len(between)
        while high - low > 1:
            middle = (low + high) // 2
            shares = [max(1, int((z > between[middle]).sum())) / len(z) for z in deviations]
            low, high = (middle, high) if sum(shares) / len(shares) >= ratio - 1e-9 else (low, middle)
        return cls(threshold_k=between[low], stats=stats, keep_prompt=keep_prompt)

    def _budget(self, page: PageVectors) -> int:
        patches = patch_mask(page, self.name)
        importance = importance_of(page, patches, self.name)
        kept = self._kept(importance)
        if self.threshold_k is not None and self.stats == "plain" and len(kept) == len(importance) > 1:
            of = "a page" if page.id is None else f"page {page.id!r}"
            warnings.warn(
                f"threshold_k={self.threshold_k:g} prunes no patch of {of}: where one weight dwarfs the others, "
                f"stats='iqr_clip' or a ratio still prunes",
                stacklevel=2,
            )
        return len(kept) + (page.n - len(importance) if self.keep_prompt else 0)

    def _kept(self, importance: Float[Tensor, " P"]) -> Int[Tensor, " M"]:
        if self.threshold_k is None:
            return most_important(importance, self.k(len(importance)))
        return above_threshold(importance, self.threshold_k, self.stats).nonzero().flatten()

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        patches = patch_mask(pages[0], self.name)
        rows = patches.nonzero().flatten()[self._kept(importance_of(pages[0], patches, self.name))]
        return keep_rows(D, torch.cat([rows, (~patches).nonzero().flatten()]) if self.keep_prompt else rows)


def check_threshold(k: float) -> None:
    """Refuse a threshold that is not a finite number."""
    if not isinstance(k, int | float) or not math.isfinite(k):
        raise InputError(f"threshold_k must be a finite number of standard deviations, got {k!r}")


def most_important(importance: Float[Tensor, " P"], count: int) -> Int[Tensor, " M"]:
    """The `count` patches of largest importance, the lower index first among equals."""
    return torch.sort(importance, descending=True, stable=True).indices[:count]


def above_threshold(importance: Float[Tensor, " P"], k: float, stats: Statistics) -> Bool[Tensor, " P"]:
    """I_j > μ + kσ of the page's own importance; the largest alone where none is."""
    above = _deviations(importance, stats) > k
    if not bool(above.any()):
        above[importance.argmax()] = True
    return above


def _deviations(importance: Float[Tensor, " P"], stats: Statistics) -> Float[Tensor, " P"]:
    """(I_j − μ) / σ; where all weights are the same, every patch is infinitely far below any threshold."""
    weights = importance.double()
    counted = weights
    if stats == "iqr_clip":
        q1, q3 = torch.quantile(weights, torch.tensor([0.25, 0.75], dtype=weights.dtype, device=weights.device))
        counted = weights.clamp(max=float(q3 + 3.0 * (q3 - q1)))
    mu, sigma = counted.mean(), counted.std(correction=0)
    beyond = torch.where(weights > mu, torch.inf, -torch.inf).to(weights.dtype)
    return torch.where(sigma > 0, (weights - mu) / sigma, beyond)
