"""Where the rows of a page lie on it: in the boxes of words, in the cells of a patch grid, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pagefacets.data import ArrayLike, as_tensor
from pagefacets.errors import InputError

__all__ = ["Layout", "Place", "Spots"]


@final
class Place(NamedTuple):
    """A box on the page, in [0, 1] from its top left, and the share of the evidence that lies there."""

    left: float
    top: float
    right: float
    bottom: float
    weight: float


@final
@dataclass(frozen=True, eq=False)
class Spots:
    """The distinct places of a page: `row[j]` is the one of source row j, or -1; `cell` is its grid cell, or -1."""

    corners: Float[Tensor, "S 4"]
    cell: Int[Tensor, " S"]
    row: Int[Tensor, " N"]
    grid: tuple[int, int] | None

    def gathered(self, weights: Float[Tensor, " N"]) -> Float[Tensor, " S"]:
        """The weight of each place: the sum over its rows."""
        held = self.row >= 0
        found = torch.zeros(len(self.corners), dtype=weights.dtype)
        return found.index_add(0, self.row[held], weights[held])


@final
@dataclass(frozen=True, eq=False, init=False)
class Layout:
    """What is known of where the rows of a page lie, as `PageVectors` has it, and the page's (width, height)."""

    grid: tuple[int, int] | None
    image_mask: Bool[Tensor, " N"] | None
    boxes: Float[Tensor, "N 4"] | None
    size: tuple[float, float] | None

    def __init__(
        self,
        grid: Sequence[int] | None = None,
        image_mask: ArrayLike | None = None,
        boxes: ArrayLike | None = None,
        size: Sequence[float] | None = None,
    ) -> None:
        if size is not None and (len(size) != 2 or not 0 < min(size) <= max(size) < float("inf")):
            raise InputError(f"size must be (width, height), two positive numbers, got {tuple(size)}")
        values: dict[str, object] = {
            "grid": None if grid is None else (int(grid[0]), int(grid[1])),
            "image_mask": None if image_mask is None else as_tensor(image_mask, "image_mask").bool().cpu(),
            "boxes": None if boxes is None else as_tensor(boxes, "boxes").float().cpu(),
            "size": None if size is None else (float(size[0]), float(size[1])),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def spots(self, n: int) -> Spots:
        """The places of a page's n rows: its box where a row has one, else the grid cell it was made from."""
        corners = torch.full((n, 4), torch.nan)
        cell = torch.full((n,), -1)
        if self.grid is not None:
            columns, rows = self.grid
            mask = self._mask(n)
            patches = torch.nonzero(mask).flatten()
            if len(patches) != columns * rows:
                raise InputError(f"grid {self.grid} has {columns * rows} cells but the page has {len(patches)} patches")
            order = torch.arange(len(patches))
            x, y = order % columns, order // columns
            cell[patches] = order
            corners[patches] = torch.stack([x / columns, y / rows, (x + 1) / columns, (y + 1) / rows], dim=1)
        if self.boxes is not None:
            if self.boxes.shape != (n, 4):
                raise InputError(f"boxes must have shape ({n}, 4), one per row, got {tuple(self.boxes.shape)}")
            known = torch.isfinite(self.boxes).all(dim=1)
            box = self.boxes[known].clamp(0, 1)
            corners[known] = torch.cat(
                [torch.minimum(box[:, :2], box[:, 2:]), torch.maximum(box[:, :2], box[:, 2:])], 1
            )
            cell[known] = -1
        placed = torch.isfinite(corners).all(dim=1)
        row = torch.full((n,), -1)
        distinct = torch.empty(0, 5)
        if bool(placed.any()):
            keyed = torch.cat([corners[placed], cell[placed].unsqueeze(1).float()], dim=1)
            distinct, row[placed] = torch.unique(keyed, dim=0, return_inverse=True)
        return Spots(distinct[:, :4].contiguous(), distinct[:, 4].long(), row, self.grid)

    def _mask(self, n: int) -> Bool[Tensor, " N"]:
        if self.image_mask is None:
            return torch.ones(n, dtype=torch.bool)
        if self.image_mask.shape != (n,):
            raise InputError(f"image_mask must have shape ({n},), one per row, got {tuple(self.image_mask.shape)}")
        return self.image_mask
