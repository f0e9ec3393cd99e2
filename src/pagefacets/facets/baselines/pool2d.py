"""2D pooling: averages of square windows of the patch grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.baselines.patches import grid_of, patch_mask
from pagefacets.facets.compressor import Compressor, Reduction, one_of, whole_number
from pagefacets.facets.readout import cluster_means

__all__ = ["Pool2D", "windows"]

Prompt: TypeAlias = Literal["drop", "keep", "append_mean"]


@final
@dataclass(frozen=True, kw_only=True)
class Pool2D(Compressor):
    """The normalised mean of each m × m window of the grid, row by row; windows at the border average what they hold.

    `ratio` takes the m whose 1/m² is nearest (0.1 → 3, 0.01 → 10), so that what is kept is near the ratio and, with
    windows at the border, above it: 24 × 31 cells leave 88 vectors at 0.1 and 12 at 0.01. `budget` takes the smallest
    m that fits, `kernel` is m itself. `prompt` drops the rows outside the grid, keeps them after the windows, or
    appends their mean.
    """

    name: ClassVar[str] = "pool2d"

    kernel: int | None = None
    prompt: Prompt = "drop"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kernel is not None:
            whole_number("kernel", self.kernel, 1)
        one_of("prompt", self.prompt, Prompt)

    def _check_budget(self) -> None:
        if [self.ratio, self.budget, self.kernel].count(None) != 2:
            raise InputError(
                f"{self.name} needs exactly one of ratio= (a share, 0.1), budget= (a count, 32) and "
                f"kernel= (the side of a window, 3)"
            )

    def _budget(self, page: PageVectors) -> int:
        grid = grid_of(page, self.name)
        if self.kernel is None and self.k(page.n) == page.n:
            return page.n
        return _count(grid, self._side(grid, page)) + self._beside(grid, page)

    def _beside(self, grid: tuple[int, int], page: PageVectors) -> int:
        """How many vectors the rows outside the grid add."""
        others = page.n - grid[0] * grid[1]
        return {"drop": 0, "keep": others, "append_mean": min(others, 1)}[self.prompt]

    def _side(self, grid: tuple[int, int], page: PageVectors) -> int:
        if self.kernel is not None:
            return self.kernel
        if (r := self.ratio) is not None:
            below = math.floor(1 / math.sqrt(r))
            return min((below, below + 1), key=lambda m: abs(1 / m**2 - r))
        room = self.k(page.n) - self._beside(grid, page)
        if room < 1:
            raise InputError(
                f"budget={self.budget} leaves no vector for the grid beside {self._beside(grid, page)} of the prompt: "
                f"raise the budget or pass prompt='drop'"
            )
        return next(m for m in range(1, max(grid) + 1) if _count(grid, m) <= room)

    def _reduce(
        self, D: Float[Tensor, "N p"], w: Float[Tensor, " N"], K: int, pages: Sequence[PageVectors]
    ) -> Reduction:
        page = pages[0]
        grid = grid_of(page, self.name)
        patches = patch_mask(page, self.name)
        m = self._side(grid, page)
        cells = _count(grid, m)
        assignment = torch.full((page.n,), -1, device=D.device)
        assignment[patches] = windows(grid, m).to(D.device)
        if self.prompt == "keep":
            assignment[~patches] = torch.arange(cells, cells + page.n - grid[0] * grid[1], device=D.device)
        elif self.prompt == "append_mean":
            assignment[~patches] = cells
        counted = assignment >= 0
        return Reduction(cluster_means(D[counted], assignment[counted], normalize=True), assignment)


def windows(grid: tuple[int, int], m: int) -> Int[Tensor, " P"]:
    """The m × m window of every cell of a (columns, rows) grid, both counted row by row."""
    columns, rows = grid
    across = torch.arange(columns) // m
    down = torch.arange(rows) // m
    return (down.unsqueeze(1) * -(-columns // m) + across).flatten()


def _count(grid: tuple[int, int], m: int) -> int:
    return -(-grid[0] // m) * -(-grid[1] // m)
