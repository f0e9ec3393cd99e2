"""Retrievers with one vector for a page: VLM2Vec, VLM2Vec-V2, UniME-V2, Qwen3-VL-Embedding, Jina-v4's single one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.vectors.backbones.backbone import Architecture, Backbone, Source
from pagefacets.vectors.backbones.pooled import PooledEncoder, Prompts, filled
from pagefacets.vectors.backbones.sequences import Positions, Prompt

__all__ = ["RECIPES", "Pooling", "Recipe", "SingleVectorEncoder"]

_WHOLE = Source("")
# One adapter for each task; the projection of Jina-v4's multi-vectors is not needed.
_JINA = Source("", folder="adapters", task="retrieval", apart=("projection.",))

# Which hidden states make the vector: the last one, or the mean of an image's tokens with the two around them, or the
# mean of all.
Pooling = Literal["last", "image", "mean"]


@final
@dataclass(frozen=True)
class Recipe:
    """How the authors of a family read its checkpoints."""

    architecture: Architecture
    prompts: Prompts
    positions: Positions = "grid"
    page_pooling: Pooling = "last"
    query_pooling: Pooling = "last"
    min_pixels: int | None = None
    max_pixels: int | None = None
    # The side of the square that a page is stretched to before anything else.
    square: int | None = None
    # The first entries of the vector, as many as are kept.
    dim: int | None = None
    source: Source = _WHOLE


_DOCUMENTS = Prompts(
    page="<|image_pad|> Understand the content of the provided document image.",
    query="Find a document image that matches the given query: {query}",
)
_VLM2VEC = Recipe("Qwen2VL", _DOCUMENTS, positions="text", min_pixels=56 * 56, max_pixels=1280 * 28 * 28)

RECIPES: dict[str, Recipe] = {
    "vlm2vec": _VLM2VEC,
    "vlm2vec-v2": _VLM2VEC,
    "unime-v2": Recipe(
        "Qwen2VL",
        Prompts(page="<|image_pad|> Find an image caption describing the given image.", query="{query}"),
        positions="text",
        square=1344,
    ),
    "qwen3-vl-embedding": Recipe(
        "Qwen3VL",
        Prompts(
            page=(
                "<|im_start|>system\nRepresent the user's input.<|im_end|>\n"
                "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n"
            ),
            query=(
                "<|im_start|>system\nFind a screenshot that relevant to the user's question.<|im_end|>\n"
                "<|im_start|>user\n{query}<|im_end|>\n<|im_start|>assistant\n"
            ),
        ),
        min_pixels=4 * 32 * 32,
        max_pixels=1800 * 32 * 32,
        dim=2048,
    ),
    "jina-v4-single": Recipe(
        "Qwen2_5_VL",
        Prompts(
            page=("<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>\n"),
            query="Query: {query}",
        ),
        page_pooling="image",
        query_pooling="mean",
        source=_JINA,
    ),
}


@final
class SingleVectorEncoder(PooledEncoder):
    """Pages and queries as one vector each: MaxSim between them is their cosine.

    `dim` keeps the first entries of the vector and normalises it again, as checkpoints trained to be cut allow.
    """

    def __init__(
        self,
        name: str,
        *,
        family: str,
        revision: str | None = None,
        base: str | None = None,
        page_prompt: str | None = None,
        query_prompt: str | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        dim: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
        batch_size: int | Literal["auto"] = "auto",
    ) -> None:
        if family not in RECIPES:
            raise InputError(f"family must be one of {', '.join(RECIPES)}, got {family!r}")
        self._recipe = recipe = RECIPES[family]
        backbone = Backbone(
            recipe.source._replace(name=name, revision=revision, base=base),
            recipe.architecture,
            positions=recipe.positions,
            min_pixels=min_pixels or recipe.min_pixels,
            max_pixels=max_pixels or recipe.max_pixels,
            dtype=dtype,
            device=device,
        )
        if dim is not None and not 1 <= dim <= backbone.dim:
            raise InputError(f"dim must be from 1 to {backbone.dim}, the dimension of {name}, got {dim}")
        self._dim = dim or min(recipe.dim or backbone.dim, backbone.dim)
        own = recipe.prompts
        prompts = replace(own, page=filled(page_prompt, own.page), query=filled(query_prompt, own.query))
        super().__init__(
            name, family, backbone, prompts, revision=revision, batch_size=batch_size, square=recipe.square
        )

    @property
    def id(self) -> str:
        kind = ":single" if self._family == "jina-v4-single" else ""
        return super().id + kind + ("" if self._dim == self._backbone.dim else f":{self._dim}")

    @property
    def dim(self) -> int:
        return self._dim

    def config(self) -> Mapping[str, object]:
        return {**super().config(), "dim": self._dim}

    def _page_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "N p"]]:
        return self._pooled(prompts, self._recipe.page_pooling)

    def _query_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "M p"]]:
        return self._pooled(prompts, self._recipe.query_pooling)

    def _pooled(self, prompts: Sequence[Prompt], pooling: Pooling) -> list[Tensor]:
        states = self._backbone.states(prompts).rows
        if pooling == "last":
            vectors = [rows[-1] for rows in states]
        elif pooling == "mean":
            vectors = [rows.mean(0) for rows in states]
        else:
            spans = [slice(prompt.image.start - 1, prompt.image.stop + 1) for prompt in prompts]
            vectors = [rows[span].mean(0) for rows, span in zip(states, spans, strict=True)]
        return [vector[: self._dim].unsqueeze(0) for vector in vectors]
