"""Farthest-first selection among unit rows: each next row is the one least like all rows chosen so far."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.products import apply, gram

__all__ = ["farthest_first", "medoid", "score_biased_first"]

# Two unit rows whose cosine is above this are the same row up to float32 rounding.
SAME = 1.0 - 1e-6
_CHOSEN = 4.0
_BLOCK, _SHORT = 16_384, 4096


def medoid(rows: Float[Tensor, "*B N p"]) -> Int[Tensor, "*B"]:
    """The row most similar to the mean of the rows (the lowest index among equals)."""
    return apply(rows, rows.mean(-2)).argmax(-1)


def farthest_first(rows: Float[Tensor, "*B N p"], count: int, first: Int[Tensor, "*B"]) -> Int[Tensor, "*B K"]:
    """`count` distinct indices in the order of choice; ties and duplicates go to the lowest index.

    On an accelerator nothing leaves the device, so a batch of pages costs no synchronisation.
    """
    if rows.device.type == "cpu" and rows.ndim == 2:
        return _farthest_on_cpu(rows, count, int(first))
    *batch, n, p = rows.shape
    flat = rows.reshape(-1, p)
    start = torch.arange(flat.shape[0] // n, device=rows.device).reshape(batch) * n
    nearest = torch.full(rows.shape[:-1], -1.0, device=rows.device, dtype=rows.dtype)
    flat_nearest = nearest.view(-1)
    chosen = [first]
    for _ in range(count - 1):
        at = (chosen[-1] + start).reshape(-1)
        newest = flat.index_select(0, at).reshape(*batch, p)
        torch.maximum(nearest, apply(rows, newest).clamp_(max=SAME), out=nearest)
        flat_nearest.index_fill_(0, at, _CHOSEN)
        chosen.append(nearest.argmin(-1))
    return torch.stack(chosen, dim=-1)


def _farthest_on_cpu(rows: Float[Tensor, "N p"], count: int, first: int) -> Int[Tensor, " K"]:
    """The same for one page, with NumPy for the short vectors, where its calls cost a quarter of PyTorch's."""
    cosine = torch.empty(rows.shape[0])
    view = cosine.numpy()
    nearest = np.full(rows.shape[0], -1.0, dtype=np.float32)
    chosen = [first]
    for _ in range(count - 1):
        torch.mv(rows, rows[chosen[-1]], out=cosine)
        np.maximum(nearest, view, out=nearest)
        nearest[chosen[-1]] = _CHOSEN
        best = int(nearest.argmin())
        if nearest[best] >= SAME:
            # Only copies of chosen rows are left, and rounding must not order them.
            np.minimum(nearest, SAME, out=nearest, where=nearest < _CHOSEN)
            best = int(nearest.argmin())
        chosen.append(best)
    return torch.tensor(chosen)


def score_biased_first(
    rows: Float[Tensor, "N p"], scores: Float[Tensor, " N"], count: int
) -> tuple[Int[Tensor, " K"], int]:
    """Farthest-first that maximises score times distance, started at the largest score; scores are at least 0.

    Returns the indices and how many of them were chosen by distance alone, because every product had become 0.
    Copies of a chosen row are at distance 0, whatever rounding makes of their cosine. A product only ever falls, so a
    short list of the largest answers for all rows until its best is no longer above every product left out of it.
    """
    nearest = torch.full_like(scores, -1.0)
    chosen, seen = [int(scores.argmax())], 0
    while len(chosen) < count:
        new = rows[chosen[seen:]]
        seen = len(chosen)
        for near, block in zip(torch.split(nearest, _BLOCK), torch.split(rows, _BLOCK), strict=True):
            _approach(near, gram(block, new).amax(1))
        nearest[chosen] = _CHOSEN
        gain = (1.0 - nearest) * scores
        index = int(gain.argmax())
        if gain[index] <= 0:
            return torch.tensor(chosen + _by_distance(rows, nearest, count - seen), device=rows.device), count - seen
        chosen.append(index)
        largest, short = gain.topk(min(_SHORT, gain.shape[0]))
        bar = largest[-1].clamp_min(0.0) if gain.shape[0] > _SHORT else 0.0
        short = short.sort().values
        few, few_scores, few_nearest = rows[short], scores[short], nearest[short]
        while len(chosen) < count:
            few_nearest[short == chosen[-1]] = _CHOSEN
            _approach(few_nearest, apply(few, rows[chosen[-1]]))
            few_gain = (1.0 - few_nearest) * few_scores
            best = few_gain.argmax()
            if few_gain[best] <= bar:
                break
            chosen.append(int(short[best]))
    return torch.tensor(chosen, device=rows.device), 0


def _approach(nearest: Float[Tensor, " N"], similar: Float[Tensor, " N"]) -> None:
    torch.maximum(nearest, similar.masked_fill_(similar > SAME, 1.0), out=nearest)


def _by_distance(rows: Float[Tensor, "N p"], nearest: Float[Tensor, " N"], count: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        index = int(nearest.argmin())
        chosen.append(index)
        _approach(nearest, apply(rows, rows[index]))
        nearest[index] = _CHOSEN
    return chosen
