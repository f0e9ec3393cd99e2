"""What a page knows about its rows beyond their vectors: which are patches, how much each matters, the grid."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pagefacets.data import PageVectors
from pagefacets.errors import InputError
from pagefacets.facets.compressor import Reduction

__all__ = ["grid_of", "importance_of", "keep_rows", "patch_mask"]


def patch_mask(page: PageVectors, method: str) -> Bool[Tensor, " N"]:
    """The rows that are patches: those of image_mask; without it all of a grid, or those of finite importance."""
    if page.image_mask is not None:
        mask, why = page.image_mask, "image_mask marks no row"
    elif page.importance is not None and page.grid is None:
        mask, why = page.importance.isfinite(), "importance is finite at no row"
    else:
        return torch.ones(page.n, dtype=torch.bool, device=page.vectors.device)
    if not bool(mask.any()):
        raise InputError(f"{method} finds no patches on {_label(page)}, {why}: leave the page out or correct it")
    return mask


def importance_of(page: PageVectors, patches: Bool[Tensor, " N"], method: str) -> Float[Tensor, " P"]:
    """The importance of each patch."""
    if page.importance is None:
        raise InputError(
            f"{method} needs the importance of each patch, which {_label(page)} lacks: pass "
            f"PageVectors(vectors, importance=...), the attention that each patch receives in the encoder"
        )
    unknown = patches & ~page.importance.isfinite()
    if bool(unknown.any()):
        raise InputError(
            f"importance of {_label(page)} is not finite at patch row {int(unknown.to(torch.uint8).argmax())}: give "
            f"every patch a weight, and leave NaN to the rows outside image_mask"
        )
    return page.importance[patches]


def grid_of(page: PageVectors, method: str) -> tuple[int, int]:
    """(columns, rows) of the patch grid."""
    if page.grid is None:
        raise InputError(
            f"{method} needs the patch grid, which {_label(page)} lacks or has lost with a dropped patch: pass "
            f"PageVectors(vectors, grid=(columns, rows), image_mask=...)"
        )
    return page.grid


def keep_rows(D: Float[Tensor, "N p"], rows: Int[Tensor, " K"]) -> Reduction:
    """Only `rows`, in the page's order and as they are, each standing for itself."""
    kept = rows.sort().values.to(D.device)
    assignment = torch.full((D.shape[0],), -1, device=D.device)
    assignment[kept] = torch.arange(kept.shape[0], device=D.device)
    return Reduction(D[kept], assignment)


def _label(page: PageVectors) -> str:
    return "the page" if page.id is None else f"page {page.id!r}"
