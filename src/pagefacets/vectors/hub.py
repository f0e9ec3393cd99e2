"""Retrievers from a hub: ColPali, ColQwen2, ColQwen2.5, ColNomic and the multi-vector Jina-v4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pagefacets.data import Page, PageVectors
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.vectors.backbones.adapters import LoraAdapter
from pagefacets.vectors.backbones.batches import Batches
from pagefacets.vectors.backbones.importance import last_row
from pagefacets.vectors.backbones.parts import Parts
from pagefacets.vectors.backbones.pixels import ShapedPixels
from pagefacets.vectors.backbones.prompts import PageInput, pad, page_positions, query_ids
from pagefacets.vectors.backbones.weights import Retriever, load_retriever
from pagefacets.vectors.checkpoints import checkpoint_file
from pagefacets.vectors.encoder import Encoder, asked

__all__ = ["HubEncoder"]

# The longer side that a page is read at, in pixels: more than any of these models looks at.
_LONGEST = 4096
# The side of a visual token of Qwen2-VL and Qwen2.5-VL: two patches of 14 pixels.
_CELL = 28
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@final
class HubEncoder(Encoder):
    """A multi-vector retriever with its own weights, on a hub or in a local folder.

    `base` stands in for the base that an adapter names, `query_prefix` for the one the checkpoint was trained with.
    `max_visual_tokens` (28 x 28 pixels each), or `max_pixels` and `min_pixels`, bound what a page is scaled to, where
    the model takes pages in their own shape. With `importance`, every page carries the attention that its last token
    pays to each patch. Weights are read when the first page or query is encoded.
    """

    def __init__(
        self,
        name: str,
        *,
        family: str,
        revision: str | None = None,
        base: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | Literal["auto"] = "auto",
        max_visual_tokens: int | None = None,
        max_pixels: int | None = None,
        min_pixels: int | None = None,
        query_prefix: str | None = None,
        importance: bool = False,
        attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa",
    ) -> None:
        self.name, self.family, self.revision, self.base = name, family, revision, base
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = dtype or ("bfloat16" if self.device.type == "cuda" else "float32")
        if self.dtype not in _DTYPES:
            raise InputError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
        if attention == "flash_attention_2" and family == "colpali":
            raise InputError("ColPali attends in both directions, which flash_attention_2 here does not: use 'sdpa'")
        self.attention, self.importance = attention, importance
        if max_visual_tokens is not None:
            if max_pixels is not None:
                raise InputError("max_visual_tokens and max_pixels say one thing twice: give one of them")
            max_pixels = max_visual_tokens * _CELL * _CELL
        self._parts = Parts.read(
            name, family, revision=revision, base=base, min_pixels=min_pixels, max_pixels=max_pixels
        )
        self._query_prefix = self._parts.prompt.query_prefix if query_prefix is None else query_prefix
        self._pages: Batches[PageInput] = Batches(
            batch_size,
            tokens=lambda page: len(page.ids),
            device=self.device,
            remedy="lower max_visual_tokens, or take a device with more",
        )
        self._queries: Batches[Tensor] = Batches(
            batch_size, tokens=len, device=self.device, remedy="shorten the query, or take a device with more"
        )

    @property
    def id(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"

    @property
    def dim(self) -> int:
        return self._parts.dim

    @property
    def query_prefix(self) -> str:
        return self._query_prefix

    def config(self) -> Mapping[str, object]:
        pixels = self._parts.pixels
        bounds = (pixels.max_pixels, pixels.min_pixels) if isinstance(pixels, ShapedPixels) else (None, None)
        return {
            "name": self.name,
            "family": self.family,
            "revision": self.revision,
            "base": self.base,
            "dtype": self.dtype,
            "max_pixels": bounds[0],
            "min_pixels": bounds[1],
            "query_prefix": self._query_prefix,
            "importance": self.importance,
            "attention": self.attention,
        }

    def encode_pages(self, pages: Iterable[Page], *, skipped: Skipped | None = None) -> Iterator[PageVectors]:
        return self._pages.run(self._read(pages, skipped), self._encode_pages)

    def encode_queries(self, queries: Sequence[str]) -> list[Float[Tensor, "M p"]]:
        texts = [self._parts.prompt.query(query, self._query_prefix) for query in asked(queries)]
        ids = [query_ids(self._parts.tokenizer, text) for text in texts]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        found = dict(zip(order, self._queries.run((ids[i] for i in order), self._encode_queries), strict=True))
        return [found[i] for i in range(len(ids))]

    def query_tokens(self, query: str) -> list[str]:
        """The part of the prompted query that each token was cut from, prefix and augmentation included."""
        (text,) = (self._parts.prompt.query(one, self._query_prefix) for one in asked([query]))
        found = self._parts.tokenizer.encode(text, add_special_tokens=False)
        parts = (text[start:stop] for start, stop in found.offsets)
        return [part.strip() or part or token for part, token in zip(parts, found.tokens, strict=True)]

    def _read(self, pages: Iterable[Page], skipped: Skipped | None) -> Iterator[PageInput]:
        for page in pages:
            try:
                yield self._input(page)
            except PageError as error:
                if skipped is None:
                    raise
                skipped(error)

    def _input(self, page: Page) -> PageInput:
        image = page.image(_LONGEST)
        try:
            pixels, grid = self._parts.pixels(image)
        except InputError as error:
            raise PageError(page.id, str(error)) from error
        return PageInput(page.id, pixels, self._parts.template.ids(grid[0] * grid[1]), grid)

    @torch.no_grad()
    def _encode_pages(self, pages: Sequence[PageInput]) -> list[PageVectors]:
        template = self._parts.template
        ids, attended = pad([page.ids for page in pages], template.after[-1])
        inputs = self._inputs(ids, attended, [page.grid for page in pages])
        inputs["pixel_values"] = torch.cat([page.pixels for page in pages]).to(self.device, _DTYPES[self.dtype])
        weights = None
        if self.importance:
            with last_row(self._retriever.last_attention, attended.to(self.device)) as row:
                vectors = self._retriever(**inputs).cpu()
            weights = row.weights.cpu()
        else:
            vectors = self._retriever(**inputs).cpu()
        encoded = []
        for i, page in enumerate(pages):
            there = attended[i]
            image = ids[i, there] == template.image
            importance = None if weights is None else weights[i, there].masked_fill(~image, torch.nan)
            rows = self._finite(vectors[i, there], f"page {page.id!r}")
            encoded.append(PageVectors(rows, page.grid, image, importance, id=page.id))
        return encoded

    @torch.no_grad()
    def _encode_queries(self, queries: Sequence[Tensor]) -> list[Tensor]:
        ids, attended = pad(queries, self._parts.template.after[-1])
        vectors = self._retriever(**self._inputs(ids, attended, [None] * len(queries))).cpu()
        return [self._finite(rows[there], "a query") for rows, there in zip(vectors, attended, strict=True)]

    def _inputs(
        self, ids: Int[Tensor, "B S"], attended: Bool[Tensor, "B S"], grids: Sequence[tuple[int, int] | None]
    ) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = {"input_ids": ids, "attention_mask": attended.long()}
        pixels = self._parts.pixels
        if isinstance(pixels, ShapedPixels):
            positions = torch.zeros(3, *ids.shape, dtype=torch.long)
            for i, length in enumerate(attended.sum(1).tolist()):
                positions[:, i, :length] = page_positions(len(self._parts.template.before), grids[i], length)
            inputs["position_ids"] = positions
            shapes = [[1, grid[1] * pixels.merged, grid[0] * pixels.merged] for grid in grids if grid is not None]
            if shapes:
                inputs["image_grid_thw"] = torch.tensor(shapes)
        else:
            # Type 0 marks PaliGemma's prefix, within which attention goes both ways.
            inputs["token_type_ids"] = torch.zeros_like(ids)
        return {name: tensor.to(self.device) for name, tensor in inputs.items()}

    def _finite(self, rows: Float[Tensor, "N p"], of: str) -> Float[Tensor, "N p"]:
        if not torch.isfinite(rows).all():
            raise InputError(f"{self.name} gives no finite vectors of {of} in {self.dtype}: use bfloat16 or float32")
        return rows

    @cached_property
    def _retriever(self) -> Retriever:
        parts = self._parts
        adapter = None
        if parts.adapter is not None:
            weights, config = (checkpoint_file(self.name, file, revision=self.revision) for file in parts.adapter)
            task = "retrieval" if self.family == "jina-v4" else None
            adapter = LoraAdapter.read(self.name, weights, config, task=task)
        retriever = load_retriever(
            parts.base,
            parts.vlm_config,
            revision=parts.base_revision,
            adapter=adapter,
            dtype=_DTYPES[self.dtype],
            device=self.device,
            attention=self.attention,
        )
        if retriever.projection.out_features != parts.dim:
            raise InputError(
                f"{self.name} projects to {retriever.projection.out_features} dimensions, its config.json says "
                f"{parts.dim}: weights and config.json are of different checkpoints, download it again"
            )
        return retriever
