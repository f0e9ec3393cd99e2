"""How a calibration pool is chosen: sampled queries and pages, a visual dictionary, and a selection of tokens."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import PageVectors, as_matrix, as_tensor, unit_rows
from pagefacets.errors import InputError
from pagefacets.farthest import farthest_first, medoid, score_biased_first
from pagefacets.products import gram
from pagefacets.vectors.fingerprint import Moments

__all__ = [
    "Variant",
    "checked_units",
    "choose",
    "dictionary_of",
    "read_pages",
    "read_queries",
    "visual_activation",
]

Variant: TypeAlias = Literal["magic", "no-visual", "no-diversity", "random"]

_BLOCK = 16_384


def checked_units(
    rows: Float[Tensor, "R p"], what: str, *, remedy: str = "leave such rows out", numbers: Tensor | None = None
) -> Float[Tensor, "R p"]:
    """Rows in float32 at unit length; one that is zero or not finite is refused by its number."""
    units, good = unit_rows(rows)
    bad = torch.nonzero(~good).flatten()
    if bad.numel():
        row = int(bad[0]) if numbers is None else int(numbers[bad[0]])
        raise InputError(f"row {row} of {what} is zero or not finite: {remedy}")
    return units


@final
class _Rows:
    """Rows gathered into one growing block, so that they are never held twice."""

    def __init__(self, dim: int) -> None:
        self._block = np.empty((0, dim), np.float32)
        self._count = 0

    def add(self, rows: Float[Tensor, "R p"]) -> None:
        end = self._count + rows.shape[0]
        if end > self._block.shape[0]:
            self._block.resize((max(end, self._block.shape[0] * 9 // 8), self._block.shape[1]), refcheck=False)
        self._block[self._count : end] = rows.numpy()
        self._count = end

    def take(self) -> Float[Tensor, "N p"]:
        self._block.resize((self._count, self._block.shape[1]), refcheck=False)
        return torch.from_numpy(self._block)


def _groups(values: object, what: str) -> Any:
    """`values` as a sequence of matrices that is only indexed, so that a lazy one stays lazy."""
    if isinstance(values, PageVectors):
        return [values]
    if isinstance(values, Tensor | np.ndarray) and values.dtype != object:
        if values.ndim not in (2, 3):
            raise InputError(f"{what} must be one matrix or a list of matrices, got shape {tuple(values.shape)}")
        return [values] if values.ndim == 2 else values
    if isinstance(values, str | bytes | Mapping) or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
        raise InputError(f"{what} must be a sequence of matrices, got {type(values).__name__}: make a list of it first")
    return values


def _draw(count: int, most: int, seed: int, stream: int) -> list[int]:
    """All of `count` positions, or a sample of `most` in ascending order; each stream draws on its own."""
    if count <= most:
        return list(range(count))
    drawn = np.random.default_rng([seed, stream]).permutation(count)[:most]
    return [int(position) for position in np.sort(drawn)]


def read_queries(
    query_vectors: object, exclude: object, *, seed: int, most: int
) -> tuple[Float[Tensor, "L p"], Moments]:
    """Unit tokens of the sampled queries, without the excluded rows."""
    queries = _groups(query_vectors, "query_vectors")
    masks = _masks(exclude, query_vectors, len(queries))
    gathered: _Rows | None = None
    dim = 0
    for number in _draw(len(queries), most, seed, 0):
        name = f"query {number}"
        matrix = as_matrix(queries[number], name)
        rows, kept = _without(matrix, None if masks is None else masks[number], name)
        if gathered is None:
            dim = matrix.shape[1]
            gathered, moments = _Rows(dim), Moments(dim)
        if matrix.shape[1] != dim:
            raise InputError(
                f"{name} has dimension {matrix.shape[1]} and those before it {dim}: use one encoder for all"
            )
        if rows.shape[0]:
            remedy = "strip padding rows by the attention mask, or mark them in exclude"
            units = checked_units(rows.cpu(), name, remedy=remedy, numbers=kept)
            gathered.add(units)
            moments.add(units)
    if gathered is None or moments.rows == 0:
        raise InputError("query_vectors leave no token to choose from: pass at least one query with a row not excluded")
    return gathered.take(), moments


def _masks(exclude: object, query_vectors: object, queries: int) -> Any:
    if exclude is None:
        return None
    single = isinstance(query_vectors, Tensor | np.ndarray) and query_vectors.ndim == 2
    masks: Any = [exclude] if single else exclude
    if not hasattr(masks, "__len__") or len(masks) != queries:
        received = len(masks) if hasattr(masks, "__len__") else type(masks).__name__
        raise InputError(f"exclude must hold one mask for each of the {queries} queries, got {received}")
    return masks


def _without(
    matrix: Float[Tensor, "M p"], mask: object | None, name: str
) -> tuple[Float[Tensor, "R p"], Tensor | None]:
    if mask is None:
        return matrix, None
    excluded = as_tensor(mask, f"exclude of {name}")
    if excluded.dtype != torch.bool or tuple(excluded.shape) != (matrix.shape[0],):
        raise InputError(
            f"exclude of {name} must be {matrix.shape[0]} booleans (true leaves a row out), "
            f"got {excluded.dtype} of shape {tuple(excluded.shape)}"
        )
    kept = torch.nonzero(~excluded.to(matrix.device)).flatten()
    return matrix[kept], kept


def read_pages(
    page_vectors: object, dim: int, *, seed: int, most: int, keep: bool
) -> tuple[Float[Tensor, "N p"] | None, Moments]:
    """Unit image rows of the sampled pages where `keep` asks for them, and the moments of all their rows."""
    pages = _groups(page_vectors, "page_vectors")
    images, moments = _Rows(dim), Moments(dim)
    patches = 0
    for number in _draw(len(pages), most, seed, 1):
        page = pages[number]
        name = f"page {number}"
        if isinstance(page, PageVectors):
            name = name if page.id is None else f"page {page.id!r}"
        else:
            page = PageVectors(as_matrix(page, name))
        if page.dim != dim:
            raise InputError(f"{name} has dimension {page.dim} and the queries {dim}: use one encoder for both")
        units = checked_units(page.vectors.cpu(), name, remedy="strip padding rows by the attention mask")
        moments.add(units)
        if keep:
            shown = units if page.image_mask is None else units[page.image_mask.cpu()]
            images.add(shown)
            patches += shown.shape[0]
    if moments.rows == 0:
        raise InputError(
            "page_vectors are empty: pass a sample of pages, or make a pool of tokens with CalibrationPool(tokens)"
        )
    if keep and patches == 0:
        raise InputError("no page has an image row by its image_mask: pass pages with images, or without a mask")
    return (images.take() if keep else None), moments


def dictionary_of(images: Float[Tensor, "N p"], count: int) -> Float[Tensor, "P p"]:
    """The corpus visual dictionary: `count` patches that differ from each other, the medoid first."""
    return images[farthest_first(images, min(count, images.shape[0]), medoid(images))]


def visual_activation(tokens: Float[Tensor, "L p"], entries: Float[Tensor, "P p"]) -> Float[Tensor, " L"]:
    """vis(q) = max(0, max_v q·v) over the visual dictionary."""
    return torch.cat([gram(block, entries).amax(1) for block in torch.split(tokens, _BLOCK)]).clamp_min_(0.0)


def choose(
    tokens: Float[Tensor, "L p"], entries: Float[Tensor, "P p"] | None, size: int, variant: Variant, seed: int
) -> Float[Tensor, "K p"]:
    """`size` tokens in the order of choice; fewer than `size` are all taken, in their own order."""
    if tokens.shape[0] <= size:
        return tokens
    if variant == "random":
        drawn = np.random.default_rng([seed, 2]).permutation(tokens.shape[0])[:size]
        return tokens[torch.from_numpy(drawn)]
    if variant == "no-visual" or entries is None:
        return tokens[farthest_first(tokens, size, medoid(tokens))]
    scores = visual_activation(tokens, entries)
    if variant == "no-diversity":
        return tokens[scores.sort(descending=True, stable=True).indices[:size]]
    chosen, unscored = score_biased_first(tokens, scores, size)
    if unscored:
        warnings.warn(
            f"{unscored} of the {size} calibration tokens were chosen by diversity alone: every other token is blind "
            "to the visual dictionary or a copy of a chosen one; check that queries and pages come from one encoder, "
            "or ask for a smaller size",
            UserWarning,
            stacklevel=3,
        )
    return tokens[chosen]
