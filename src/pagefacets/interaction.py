"""Late interaction, MaxSim(Q, D) = Σ_i max_j q_i·d_j (Eq. maxsim), over ragged pages without padding."""

from __future__ import annotations

import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.data import ArrayLike, Facets, PageVectors, as_matrix, as_tensor
from pagefacets.errors import InputError
from pagefacets.products import gram

__all__ = ["PackedPages", "StoredRows", "maxsim", "maxsim_reference"]

Offsets: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"


# Scores computed at a time on an accelerator, and bytes of rows and scores on a CPU: the scores of a block stay in a
# core's caches between the product and the maximum. Stored rows become numbers in memory of every thread's own: half.
BLOCK = 300_000
CACHED = 1 << 22
# Pages with fewer vectors than this on average are reduced row by row.
SHORT = 24
# PyTorch takes maxima over a middle axis quickly where the last has a multiple of so many numbers, and over the last
# where it has at least as many. The former suits more tokens than these.
LANES, FEW = 32, 24
# Query tokens scored at a time, which bounds memory when many queries come at once.
TOKENS = 1024


class StoredRows(ABC):
    """Rows in another form than numbers, which become numbers block by block when they are scored."""

    shape: tuple[int, int]
    device: torch.device

    @abstractmethod
    def __getitem__(self, rows: slice) -> Float[Tensor, "S p"]:
        """Some neighbouring rows in float32."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all rows as they are stored."""


@final
@dataclass(frozen=True, eq=False, repr=False)
class PackedPages:
    """Many pages as one matrix: page i is rows offsets[i] to offsets[i + 1]. Pack once, score often.

    `bias`, where there is one, is added to a page's score once per query token (the facets' offset).
    """

    rows: Float[Tensor, "R p"] | StoredRows
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
        kind = self.rows.dtype if isinstance(self.rows, Tensor) else "stored"
        return f"PackedPages({len(self)} pages, {self.rows.shape[0]} vectors of {self.rows.shape[1]}, {kind})"

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def to(self, device: str | torch.device) -> PackedPages:
        """The same pages with their rows on `device`; the offsets stay on the host."""
        bias = None if self.bias is None else self.bias.to(device)
        rows = self.rows if isinstance(self.rows, Tensor) else self.rows[0 : self.rows.shape[0]].half()
        return PackedPages(rows.to(device), self.offsets, bias)


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
    counts = [query.shape[0] for query in queries]
    scores = torch.empty(len(queries), len(packed), device=tokens.device)
    if tokens.device.type == "cpu":
        block = CACHED if isinstance(packed.rows, Tensor) else CACHED // 2
        per_block = max(1024, block // (4 * sum(tokens.shape)))
    else:
        per_block = max(1024, BLOCK // tokens.shape[0])
    blocks = iter(_blocks(packed.offsets.numpy(), per_block))

    def sweep() -> None:
        for start, stop in blocks:
            best = _block_maxima(tokens, packed, start, stop)
            if packed.bias is not None:
                best = best + packed.bias[start:stop]
            # Sums of float32 in float64 are exact, but for extremes: equal pages score the same wherever they stand.
            for query, part in enumerate(torch.split(best.double(), counts)):
                scores[query, start:stop] = part.sum(0)

    workers = torch.get_num_threads() if tokens.device.type == "cpu" and len(packed) > 1 else 1
    if workers == 1 or packed.rows.shape[0] <= 2 * per_block:
        sweep()
    else:
        # One thread for each block beats all threads on one block after another: nobody waits for the slowest.
        threads = _threads(workers)
        for done in [threads.submit(sweep) for _ in range(workers)]:
            done.result()
    return scores


def _blocks(offsets: Offsets, per_block: int) -> list[tuple[int, int]]:
    """Runs of whole pages of about so many rows."""
    blocks, start, pages = [], 0, len(offsets) - 1
    while start < pages:
        stop = int(np.searchsorted(offsets, offsets[start] + per_block, side="right")) - 1
        stop = min(pages, max(start + 1, stop))
        blocks.append((start, stop))
        start = stop
    return blocks


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Threads that compute on one core each; they wait for the next query."""
    before = torch.get_num_threads()
    threads = ThreadPoolExecutor(count, "maxsim", initializer=torch.set_num_threads, initargs=(1,))
    barrier = threading.Barrier(count)
    list(threads.map(lambda _: barrier.wait(), range(count)))
    # What a thread sets for itself is also what threads that start later begin with.
    torch.set_num_threads(before)
    return threads


# Threads do not survive a fork: a child starts its own.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)


def _block_maxima(tokens: Float[Tensor, "M p"], packed: PackedPages, start: int, stop: int) -> Float[Tensor, "M S"]:
    """The largest score of each token within each of some neighbouring pages."""
    offsets = packed.offsets.numpy()[start : stop + 1]
    rows = packed.rows[int(offsets[0]) : int(offsets[-1])].float()
    lengths = np.diff(offsets)
    if (lengths == lengths[0]).all():
        if rows.device.type != "cpu":
            return gram(tokens, rows).view(tokens.shape[0], len(lengths), lengths[0]).amax(2)
        return _equal_maxima(tokens, rows, int(lengths[0]))
    if rows.device.type != "cpu":
        scores = gram(tokens, rows)
        page = torch.repeat_interleave(torch.from_numpy(lengths).to(rows.device))
        best = torch.full((scores.shape[0], len(lengths)), -torch.inf, device=rows.device)
        return best.scatter_reduce_(1, page.expand_as(scores), scores, "amax")
    if lengths.mean() < SHORT:
        return torch.segment_reduce(gram(rows, tokens), "max", lengths=torch.from_numpy(lengths), axis=0).T.contiguous()
    return torch.from_numpy(np.maximum.reduceat(gram(tokens, rows).numpy(), offsets[:-1] - offsets[0], axis=1))


def _equal_maxima(tokens: Float[Tensor, "M p"], rows: Float[Tensor, "S p"], n: int) -> Float[Tensor, "M P"]:
    """The same on a CPU for pages of n vectors, by the reduction that PyTorch vectorises for so many tokens."""
    count = tokens.shape[0]
    if count > FEW:
        filled = torch.nn.functional.pad(tokens, (0, 0, 0, -count % LANES))
        return gram(rows, filled).view(-1, n, filled.shape[0]).amax(1)[:, :count].T.contiguous()
    scores = gram(tokens, rows)
    if n < LANES:
        return torch.nn.functional.max_pool1d(scores.unsqueeze(1), n).squeeze(1)
    return scores.view(count, -1, n).amax(2)
