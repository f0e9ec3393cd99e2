"""Learned compact retrievers: a few vectors of the model's own width for a page (AGC and MetaEmbed)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.vectors.backbones.backbone import Backbone, Source
from pagefacets.vectors.backbones.pooled import PooledEncoder, Prompts, filled
from pagefacets.vectors.backbones.sequences import Prompt
from pagefacets.vectors.backbones.weights import canonical

__all__ = ["AGC", "METAEMBED", "AGCEncoder", "MetaEmbedEncoder", "cluster", "saliency"]

# What pages and queries are read within, where nothing else is asked for.
_SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
AGC = Prompts(
    page=f"{_SYSTEM}<|im_start|>user\nPassage: <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n",
    query=f"{_SYSTEM}<|im_start|>user\nQuery: {{query}}<|im_end|>\n",
)
METAEMBED = Prompts(
    page=f"{_SYSTEM}<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n",
    query=f"{_SYSTEM}<|im_start|>user\n{{query}}<|im_end|>\n",
)


@final
class AGCEncoder(PooledEncoder):
    """Attention-guided clustering: learned tokens behind a page weigh its tokens, and the heaviest gather the rest.

    The model sees in both directions. A query keeps every token's vector.
    """

    def __init__(
        self,
        name: str,
        *,
        family: str = "agc",
        revision: str | None = None,
        base: str | None = None,
        rows: int = 64,
        tokens: int = 64,
        page_prompt: str | None = None,
        query_prompt: str | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
        batch_size: int | Literal["auto"] = "auto",
    ) -> None:
        _refuse_empty(rows=rows, tokens=tokens)
        backbone = Backbone(
            Source(name, revision, base),
            "Qwen2_5_VL",
            bidirectional=True,
            keep_attention=True,
            min_pixels=min_pixels or 784 * 28 * 28,
            max_pixels=max_pixels or 1280 * 28 * 28,
            dtype=dtype,
            device=device,
        )
        self._rows = rows
        self._tokens = tokens
        super().__init__(
            name,
            family,
            backbone,
            Prompts(filled(page_prompt, AGC.page), filled(query_prompt, AGC.query)),
            revision=revision,
            batch_size=batch_size,
            page_suffix=backbone.tokens("<|mem{i}|>", tokens, follow=True),
        )

    def config(self) -> Mapping[str, object]:
        return {**super().config(), "rows": self._rows, "tokens": self._tokens}

    def _page_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "N p"]]:
        states, attention = self._backbone.states(prompts)
        pages = []
        for rows, heads in zip(states, attention if attention is not None else (), strict=True):
            n = len(rows) - self._tokens
            weights = saliency(heads[:, n : n + self._tokens, :n])
            pages.append(cluster(rows[:n], weights, self._rows))
        return pages

    def _query_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "M p"]]:
        return self._backbone.states(prompts).rows


@final
class MetaEmbedEncoder(PooledEncoder):
    """Meta tokens: learned tokens behind a page or a query, whose last hidden states are its vectors.

    A checkpoint is trained so that the first few rows alone already rank: `page_rows` and `query_rows` take as many.
    How a checkpoint keeps its tokens is not told by its authors, so it has to be told here: `page_tokens` and
    `query_tokens` name a tensor of the checkpoint with one row a token, or tokens of its vocabulary, as "<|page{i}|>".
    """

    def __init__(
        self,
        name: str,
        *,
        family: str = "metaembed",
        page_tokens: str | None = None,
        query_tokens: str | None = None,
        page_rows: int = 64,
        query_rows: int = 16,
        bidirectional: bool = False,
        revision: str | None = None,
        base: str | None = None,
        page_prompt: str | None = None,
        query_prompt: str | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
        batch_size: int | Literal["auto"] = "auto",
    ) -> None:
        if page_tokens is None or query_tokens is None:
            raise InputError(
                f"{name} does not tell where its meta tokens are: pass page_tokens= and query_tokens=, each the name "
                "of a tensor of the checkpoint or tokens of its vocabulary such as '<|page{i}|>'"
            )
        _refuse_empty(page_rows=page_rows, query_rows=query_rows)
        told = (page_tokens, query_tokens)
        self._options: dict[str, object] = {
            "page_tokens": page_tokens,
            "query_tokens": query_tokens,
            "page_rows": page_rows,
            "query_rows": query_rows,
            "bidirectional": bidirectional,
        }
        self._page_rows = page_rows
        self._query_rows = query_rows
        backbone = Backbone(
            Source(name, revision, base, apart=tuple(str(canonical(t)) for t in told if "{i}" not in t)),
            "Qwen2_5_VL",
            bidirectional=bidirectional,
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            dtype=dtype,
            device=device,
        )
        suffixes = [
            backbone.tokens(tokens, rows) if "{i}" in tokens else backbone.append_tokens(str(canonical(tokens)), rows)
            for tokens, rows in zip(told, (page_rows, query_rows), strict=True)
        ]
        super().__init__(
            name,
            family,
            backbone,
            Prompts(filled(page_prompt, METAEMBED.page), filled(query_prompt, METAEMBED.query)),
            revision=revision,
            batch_size=batch_size,
            page_suffix=suffixes[0],
            query_suffix=suffixes[1],
        )

    def config(self) -> Mapping[str, object]:
        return {**super().config(), **self._options}

    def _page_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "N p"]]:
        return [rows[-self._page_rows :] for rows in self._backbone.states(prompts).rows]

    def _query_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "M p"]]:
        return [rows[-self._query_rows :] for rows in self._backbone.states(prompts).rows]


def saliency(attention: Float[Tensor, "H U N"]) -> Float[Tensor, " N"]:
    """How much U learned tokens heed each of N tokens, by attention that already sums to one over all it saw.

    The mean over the heads goes through a second softmax, over the N alone, as in training; then the mean over U.
    """
    return attention.mean(0).softmax(-1).mean(0)


def cluster(states: Float[Tensor, "N p"], weights: Float[Tensor, " N"], k: int) -> Float[Tensor, "K p"]:
    """The k heaviest states gather all states by cosine; each cluster becomes its weighted mean, heaviest first.

    Of equal weights the earlier state leads. A leader whose own state went to an equal one leads nothing and is left
    out.
    """
    leaders = torch.sort(weights, descending=True, stable=True).indices[:k]
    units = torch.nn.functional.normalize(states, dim=1)
    assigned = (units @ units[leaders].T).argmax(1)
    member: Bool[Tensor, "K N"] = assigned == torch.arange(len(leaders), device=states.device).unsqueeze(1)
    mass = member * weights
    led = member.any(1)
    return (mass[led] @ states) / mass[led].sum(1, keepdim=True)


def _refuse_empty(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} must be at least 1, got {count}")
