"""Late interaction, MaxSim(Q, D) = Σ_i max_j q_i·d_j (Eq. maxsim), over ragged pages without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.data import ArrayLike, Facets, PageVectors, as_matrix, as_tensor
from pagefacets.errors import InputError
from pagefacets.products import gram

__all__ = ["PackedPages", "maxsim", "maxsim_reference"]

# Scores computed at a time: one block of them stays in a processor's cache between the product and the maximum.
BLOCK = 300_000
# Query tokens scored at a time, which bounds memory when many queries come at once.
TOKENS = 1024


@final
@dataclass(frozen=True, eq=False, repr=False)
class PackedPages:
    """Many pages as one matrix: page i is rows offsets[i] to offsets[i + 1]. Pack once, score often.

    `bias`, where there is one, is added to a page's score once per query token (the facets' offset).
    """

    rows: Float[Tensor, "R p"]
    offsets: Int[Tensor, " P1"]
    bias: Float[Tensor, " P"] | None = None

    @classmethod
    def of(cls, pages: Sequence[PageVectors | Facets | ArrayLike]) -> PackedPages:
        """Pack pages, facets or bare matrices of one dimension."""
        if len(pages) == 0:
            raise InputError("there are no pages to score: pass at least one")
        matrices, biases = [], []
        # A file of facets is a sequence of plain vectors; its facets carry the offsets.
        held = getattr(pages, "iter_facets")() if getattr(pages, "kind", None) == "facets" else pages  # noqa: B009
        for i, page in enumerate(held):
            matrices.append(page.vectors if isinstance(page, PageVectors | Facets) else as_matrix(page, f"page {i}"))
            biases.append((page.offset or 0.0) if isinstance(page, Facets) else 0.0)
            if matrices[i].shape[1] != matrices[0].shape[1]:
                raise InputError(
                    f"page {i} has dimension {matrices[i].shape[1]} but page 0 has {matrices[0].shape[1]}: "
                    f"pages of different models cannot be scored together"
                )
        lengths = torch.tensor([0, *(matrix.shape[0] for matrix in matrices)])
        rows = matrices[0] if len(matrices) == 1 else torch.cat(matrices)
        bias = torch.tensor(biases, device=rows.device) if any(biases) else None
        return cls(rows, lengths.cumsum(0), bias)

    @classmethod
    def from_padded(cls, vectors: ArrayLike, mask: ArrayLike) -> PackedPages:
        """Pack a padded (P, N, p) block, keeping the rows that the (P, N) mask marks."""
        block = as_tensor(vectors, "padded vectors")
        keep = as_tensor(mask, "mask").bool().to(block.device)
        if block.ndim != 3 or keep.shape != block.shape[:2]:
            raise InputError(
                f"padded vectors must be (pages, rows, dimension) with a mask (pages, rows), "
                f"got {tuple(block.shape)} and {tuple(keep.shape)}"
            )
        counts = keep.sum(1).cpu()
        if bool((counts == 0).any()):
            raise InputError(f"page {int((counts == 0).int().argmax())} has no row left after masking: leave it out")
        return cls(block[keep], torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)]))

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    def __repr__(self) -> str:
        return (
            f"PackedPages({len(self)} pages, {self.rows.shape[0]} vectors of {self.rows.shape[1]}, {self.rows.dtype})"
        )

    @property
    def nbytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    def to(self, device: str | torch.device) -> PackedPages:
        """The same pages with their rows on `device`; the offsets stay on the host."""
        bias = None if self.bias is None else self.bias.to(device)
        return PackedPages(self.rows.to(device), self.offsets, bias)


def maxsim(
    query: ArrayLike | Sequence[ArrayLike],
    pages: PackedPages | Sequence[PageVectors | Facets | ArrayLike],
    *,
    query_mask: ArrayLike | None = None,
) -> Float[Tensor, "*Q P"]:
    """The MaxSim score of every page, exact and in float32.

    One query is a (M, p) matrix and gives (P,) scores. Several, as a list of matrices or a padded (Q, M, p) block,
    give (Q, P). `query_mask` marks the tokens that count: (M,), or (Q, M) for a block.
    """
    packed = pages if isinstance(pages, PackedPages) else PackedPages.of(pages)
    queries, single = _queries(query, query_mask)
    device = packed.rows.device
    for i, tokens in enumerate(queries):
        if tokens.shape[1] != packed.rows.shape[1]:
            raise InputError(
                f"query {i} has dimension {tokens.shape[1]} but the pages have {packed.rows.shape[1]}: "
                f"encode queries with the model that made the pages"
            )
    scores = torch.cat([_score(batch, packed) for batch in _batches([q.to(device).float() for q in queries])])
    return scores[0] if single else scores


def maxsim_reference(query: ArrayLike, pages: Sequence[PageVectors | Facets | ArrayLike]) -> Float[Tensor, " P"]:
    """The definition, one inner product at a time in float64: for tests and for readers."""
    scores = []
    for page in pages:
        rows = page.vectors if isinstance(page, PageVectors | Facets) else as_matrix(page)
        offset = (page.offset or 0.0) if isinstance(page, Facets) else 0.0
        score = 0.0
        for q in as_matrix(query).double():
            score += max(float(torch.dot(q, d)) for d in rows.double()) + offset
        scores.append(score)
    return torch.tensor(scores, dtype=torch.float64)


def _queries(query: ArrayLike | Sequence[ArrayLike], mask: ArrayLike | None) -> tuple[list[Tensor], bool]:
    keep = None if mask is None else as_tensor(mask, "query_mask").bool()
    ragged = isinstance(query, Sequence) and len(query) > 0 and not _is_row(query[0])
    if ragged:
        if keep is not None:
            raise InputError("query_mask goes with one query or a padded block; a list of queries needs none")
        return [as_matrix(one, f"query {i}") for i, one in enumerate(query)], False
    block = as_tensor(query, "query")
    if block.ndim not in (2, 3):
        raise InputError(
            f"a query must be (tokens, dimension) or (queries, tokens, dimension), got {tuple(block.shape)}"
        )
    if keep is None:
        keep = torch.ones(block.shape[:-1], dtype=torch.bool)
    elif keep.shape != block.shape[:-1]:
        raise InputError(f"query_mask must have shape {tuple(block.shape[:-1])}, got {tuple(keep.shape)}")
    keep = keep.to(block.device)
    if block.ndim == 2:
        return [as_matrix(block[keep], "query")], True
    return [as_matrix(one[kept], f"query {i}") for i, (one, kept) in enumerate(zip(block, keep, strict=True))], False


def _is_row(item: object) -> bool:
    return isinstance(item, Sequence) and len(item) > 0 and isinstance(item[0], int | float)


def _batches(queries: list[Tensor]) -> list[list[Tensor]]:
    batches: list[list[Tensor]] = [[]]
    held = 0
    for tokens in queries:
        if batches[-1] and held + tokens.shape[0] > TOKENS:
            batches.append([])
            held = 0
        batches[-1].append(tokens)
        held += tokens.shape[0]
    return batches


def _score(queries: list[Tensor], packed: PackedPages) -> Float[Tensor, "Q P"]:
    tokens = queries[0] if len(queries) == 1 else torch.cat(queries)
    best = torch.empty(tokens.shape[0], len(packed), device=tokens.device)
    offsets = packed.offsets.numpy()
    per_block = max(1024, BLOCK // tokens.shape[0])
    start = 0
    while start < len(packed):
        stop = int(np.searchsorted(offsets, offsets[start] + per_block, side="right")) - 1
        stop = min(len(packed), max(start + 1, stop))
        scores = gram(tokens, packed.rows[offsets[start] : offsets[stop]].float())
        best[:, start:stop] = _page_maxima(scores, offsets[start : stop + 1] - offsets[start])
        start = stop
    if packed.bias is not None:
        best += packed.bias
    if len(queries) == 1:
        return best.sum(0, keepdim=True)
    return torch.stack([part.sum(0) for part in torch.split(best, [q.shape[0] for q in queries])])


def _page_maxima(
    scores: Float[Tensor, "M R"], offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Float[Tensor, "M P"]:
    """The largest score of each token within each page of a block."""
    lengths = np.diff(offsets)
    if (lengths == lengths[0]).all():
        return scores.view(scores.shape[0], len(lengths), lengths[0]).amax(2)
    if scores.device.type == "cpu":
        return torch.from_numpy(np.maximum.reduceat(scores.numpy(), offsets[:-1], axis=1))
    page = torch.repeat_interleave(torch.from_numpy(lengths).to(scores.device))
    best = torch.full((scores.shape[0], len(lengths)), -torch.inf, device=scores.device)
    return best.scatter_reduce_(1, page.expand_as(scores), scores, "amax")
