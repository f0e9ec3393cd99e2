"""ColChunk: chunks of patches that are alike and lie close together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.baselines.patches import grid_of, patch_mask
from pagefacets.facets.baselines.ward import ward_labels, ward_linkage
from pagefacets.facets.compressor import Compressor, Reduction, at_least, one_of
from pagefacets.facets.readout import cluster_means
from pagefacets.products import gram

__all__ = ["ColChunk", "positions"]

Prompt: TypeAlias = Literal["merge", "drop"]


@final
@dataclass(frozen=True, kw_only=True)
class ColChunk(Compressor):
    """Ward's clusters of z_j = (1 − ω) d_j + ω p_j, each stored as the normalised mean of its rows d_j.

    p_j is the unit sinusoidal encoding of the patch's place on the grid, and `pos_scale` how many radians its fastest
    wave takes across the page. `unit_fused` normalises z before clustering. Rows outside the grid have no place: they
    join the chunk they are most similar to, or are dropped.
    """

    name: ClassVar[str] = "colchunk"

    omega: float = 0.2
    pos_scale: float = 100.0
    unit_fused: bool = False
    prompt: Prompt = "merge"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.omega, int | float) or not 0 <= self.omega <= 1:
            raise InputError(f"omega must lie in [0, 1], got {self.omega!r}: 0 leaves places out, 1 sees nothing else")
        at_least("pos_scale", self.pos_scale, 1e-6)
        one_of("prompt", self.prompt, Prompt)

    def _budget(self, page: PageVectors) -> int:
        grid_of(page, self.name)
        return super()._budget(page)

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        return self._reduce_each(D, w, [K], pages[0])[0]

    def _reduce_each(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], budgets: Sequence[int], page: PageVectors
    ) -> list[Reduction]:
        grid = grid_of(page, self.name)
        patches = patch_mask(page, self.name)
        V = D[patches]
        Z = (1.0 - self.omega) * V + self.omega * positions(grid, D.shape[1], self.pos_scale).to(D.device)
        if self.unit_fused:
            Z = torch.nn.functional.normalize(Z, dim=1)
        tree = ward_linkage(Z)
        made = []
        for K in budgets:
            labels = ward_labels(tree, K).to(D.device) if K < V.shape[0] else torch.arange(V.shape[0], device=D.device)
            chunks = cluster_means(V, labels, normalize=True)
            assignment = torch.full((page.n,), -1, device=D.device)
            assignment[patches] = labels
            if self.prompt == "merge" and V.shape[0] < page.n:
                assignment[~patches] = gram(D[~patches], chunks).argmax(-1)
                chunks = cluster_means(D, assignment, normalize=True)
            made.append(Reduction(chunks, assignment))
        return made


def positions(grid: tuple[int, int], p: int, scale: float) -> Float[Tensor, "P p"]:
    """The unit sinusoidal encoding of every cell's centre, row by row: the first p // 2 numbers for y, the rest for x.

    With y and x in [0, 1] and h numbers for either, its waves are sin and cos of scale · y / 10000^(2i/h).
    """
    columns, rows = grid
    y = _waves((torch.arange(rows) + 0.5) / rows, p // 2, scale)
    x = _waves((torch.arange(columns) + 0.5) / columns, p - p // 2, scale)
    places = torch.cat([y.repeat_interleave(columns, 0), x.repeat(rows, 1)], dim=1)
    return torch.nn.functional.normalize(places, dim=1)


def _waves(at: Float[Tensor, " n"], h: int, scale: float) -> Float[Tensor, "n h"]:
    angles = scale * at.unsqueeze(1) / 10000.0 ** (2.0 * torch.arange(-(-h // 2)) / max(h, 1))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :h]
