"""What a Qwen vision-language model reads: a prompt as tokens, with one image's patches among them or none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.vectors.backbones.pixels import ShapedPixels
from pagefacets.vectors.backbones.prompts import page_positions

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Positions", "Prompt", "Prompter", "Stack", "stack"]

# How the tokens of an image are placed: in its rows and columns, or one after the other as if they were words. The
# second is what older transformers do, without a word, where no <|vision_start|> announces an image.
Positions = Literal["grid", "text"]

_IMAGE = "<|image_pad|>"
_QUERY = "{query}"


@final
@dataclass(frozen=True, eq=False)
class Prompt:
    """Token ids, and where an image is among them its patches and its (columns, rows) of tokens."""

    ids: tuple[int, ...]
    start: int = 0
    grid: tuple[int, int] | None = None
    patches: Float[Tensor, "P d"] | None = None
    shape: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def image(self) -> slice:
        """The tokens of the image; empty where there is none."""
        return slice(self.start, self.start + (0 if self.grid is None else self.grid[0] * self.grid[1]))

    def positions(self, kind: Positions) -> Int[Tensor, "3 N"]:
        """(time, row, column) of every token."""
        return page_positions(self.start, None if kind == "text" else self.grid, len(self.ids))


class Stack(NamedTuple):
    """Prompts of one batch, padded on the right, as the model's arguments."""

    input_ids: Int[Tensor, "B S"]
    attention_mask: Int[Tensor, "B S"]
    position_ids: Int[Tensor, "3 B S"]
    pixel_values: Float[Tensor, "P d"] | None
    image_grid_thw: Int[Tensor, "I 3"] | None


def stack(prompts: Sequence[Prompt], kind: Positions, *, padding: int) -> Stack:
    """Prompts of any lengths as one batch."""
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), padding)
    attended = torch.zeros_like(ids)
    positions = torch.zeros(3, len(prompts), longest, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt.ids)
        attended[row, : len(prompt)] = 1
        positions[:, row, : len(prompt)] = prompt.positions(kind)
    patches = [prompt.patches for prompt in prompts if prompt.patches is not None]
    shapes = [prompt.shape for prompt in prompts if prompt.shape is not None]
    return Stack(
        ids,
        attended,
        positions,
        torch.cat(patches) if patches else None,
        torch.tensor(shapes) if shapes else None,
    )


@final
class Prompter:
    """Makes prompts of images and of queries, by a checkpoint's own tokenizer and image processor.

    In a template, <|image_pad|> stands for the image and {query} for the text of a query. Only the template's special
    tokens are special: a query that spells one is read as the letters it is written with.
    """

    def __init__(self, tokenizer: Any, pixels: ShapedPixels, *, longest: int) -> None:
        self._tokenizer = tokenizer
        self._pixels = pixels
        self._longest = longest
        self.added: dict[str, int] = tokenizer.get_added_vocab()
        if _IMAGE not in self.added:
            raise InputError(f"the tokenizer has no token {_IMAGE}: it is none of Qwen2-VL, Qwen2.5-VL or Qwen3-VL")
        by_length = sorted(self.added, key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, by_length))})")
        # What the tokenizer puts behind every text, such as the <|endoftext|> that an embedding is read from.
        self.size = len(tokenizer)
        self._last: tuple[int, ...] = tuple(tokenizer("")["input_ids"])

    def refuse(self, page: str, query: str) -> None:
        """Raise InputError where a template has no place, or several, for what it is filled with."""
        for name, template, place in (("page_prompt", page, _IMAGE), ("query_prompt", query, _QUERY)):
            if template.count(place) != 1:
                raise InputError(f"{name} must hold {place} exactly once, got {template!r}")

    def page(self, image: Image, template: str, *, suffix: Sequence[int] = ()) -> Prompt:
        """The prompt around an image; `suffix` are token ids put behind everything."""
        patches, (columns, rows) = self._pixels(image)
        before, _, after = template.partition(_IMAGE)
        head = self._ids(before)
        ids = (*head, *[self.added[_IMAGE]] * (rows * columns), *self._ids(after), *self._last, *suffix)
        merged = self._pixels.merged
        return Prompt(ids, len(head), (columns, rows), patches, (1, rows * merged, columns * merged))

    def query(self, text: str, template: str, *, suffix: Sequence[int] = ()) -> Prompt:
        """The prompt around a query."""
        ids = (*self._ids(template, text), *self._last, *suffix)
        if not ids:
            raise InputError("a query is empty and its prompt adds nothing to it: leave such a query out")
        if len(ids) > self._longest:
            raise InputError(f"a query has {len(ids)} tokens and the model reads {self._longest}: shorten the query")
        return Prompt(ids)

    def _ids(self, template: str, text: str = "") -> list[int]:
        # Lone surrogates, which no tokenizer takes, become U+FFFD.
        readable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids: list[int] = []
        for piece in self._special.split(template):
            if piece in self.added:
                ids.append(self.added[piece])
            elif piece:
                whole = piece.replace(_QUERY, readable)
                ids += self._tokenizer(whole, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids
