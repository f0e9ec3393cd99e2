"""DocPruner's importance: how much the last token of a page attends to each other token, in the last layer.

Only one row of one attention matrix is computed, from what the last layer is given; the pass itself may use any
attention kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

__all__ = ["LastRow", "attention_row", "last_row"]


class LastRow:
    """What `last_row` found: one weight for each token of each page; empty until the pass is done."""

    def __init__(self) -> None:
        self.weights = torch.empty(0)


@contextmanager
def last_row(attention: nn.Module, attended: Bool[Tensor, "B S"]) -> Iterator[LastRow]:
    """Record, during one forward pass inside the block, the row of each page's last attended token.

    `attention` is the self-attention module of the last decoder layer. Causal and bidirectional models are alike here:
    the last token sees every attended one.
    """
    found = LastRow()

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs["position_embeddings"]
        found.weights = attention_row(module, hidden, cos, sin, attended)

    handle = attention.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def attention_row(
    attention: Any, hidden: Float[Tensor, "B S h"], cos: Tensor, sin: Tensor, attended: Bool[Tensor, "B S"]
) -> Float[Tensor, "B S"]:
    """The attention of each page's last attended token, as a mean over the heads; each row sums to 1."""
    cos, sin = (_by_token(angles, attention).float() for angles in (cos, sin))
    pages = torch.arange(len(hidden), device=hidden.device)
    last = _last(attended)
    width = attention.head_dim
    keys = _by_head(attention.k_proj(hidden), width)
    query = _by_head(attention.q_proj(hidden[pages, last]), width)
    cos, sin = cos.expand(len(hidden), -1, -1), sin.expand(len(hidden), -1, -1)
    keys = _turned(keys, cos.unsqueeze(2), sin.unsqueeze(2))
    query = _turned(query, cos[pages, last].unsqueeze(1), sin[pages, last].unsqueeze(1))
    # Grouped-query attention: neighbouring query heads share a key head.
    query = query.reshape(len(query), keys.shape[2], -1, width)
    scores = torch.einsum("bkgd,bskd->bkgs", query, keys) * attention.scaling
    scores = scores.masked_fill(~attended[:, None, None], -torch.inf)
    return torch.softmax(scores, -1).mean((1, 2))


def _last(attended: Bool[Tensor, "B S"]) -> Int[Tensor, " B"]:
    places = torch.arange(attended.shape[1], device=attended.device)
    return torch.where(attended, places, -1).argmax(1)


def _by_head(rows: Tensor, width: int) -> Tensor:
    return rows.float().reshape(*rows.shape[:-1], -1, width)


def _turned(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = rows.chunk(2, -1)
    return rows * cos + torch.cat((-second, first), -1) * sin


def _by_token(angles: Tensor, attention: Any) -> Tensor:
    """One row of angles for each token; older transformers hand over those of time, height and width apart."""
    if angles.ndim == 3:
        return angles
    sections = attention.config.rope_parameters["mrope_section"]
    parts = torch.split(angles, [*sections, *sections], dim=-1)
    return torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1)
