"""What a retriever reads: the prompt around a page's image, the text of a query, and where each token stands.

Token ids come from a checkpoint's own tokenizer.json, whatever a version of transformers would make of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from tokenizers import Tokenizer
from torch import Tensor

from pagefacets.errors import InputError

__all__ = ["PROMPTS", "PageInput", "Prompt", "Template", "pad", "page_positions", "query_ids"]

_QWEN_PAGE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|>"


@dataclass(frozen=True)
class Prompt:
    """The words that a family was trained with: around the image of a page, and around a query."""

    page: str
    image_token: str
    query_prefix: str
    before_query: str = ""
    augmentation: str = ""
    after_query: str = ""

    def query(self, text: str, prefix: str) -> str:
        """The text that stands for a query; lone surrogates, which no tokenizer takes, become U+FFFD."""
        readable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return f"{self.before_query}{prefix}{readable}{self.augmentation}{self.after_query}"


PROMPTS: dict[str, Prompt] = {
    "colpali": Prompt(
        page="<image><bos>Describe the image.\n",
        image_token="<image>",  # noqa: S106
        query_prefix="Query: ",
        before_query="<bos>",
        augmentation="<pad>" * 10,
        after_query="\n",
    ),
    "colqwen2": Prompt(
        page=_QWEN_PAGE + "<|endoftext|>",
        image_token="<|image_pad|>",  # noqa: S106
        query_prefix="Query: ",
        augmentation="<|endoftext|>" * 10,
    ),
    "colqwen2.5": Prompt(
        page=_QWEN_PAGE + "<|endoftext|>",
        image_token="<|image_pad|>",  # noqa: S106
        query_prefix="Query: ",
        augmentation="<|endoftext|>" * 10,
    ),
    "jina-v4": Prompt(page=_QWEN_PAGE + "\n", image_token="<|image_pad|>", query_prefix="Query: "),  # noqa: S106
}


@dataclass(frozen=True)
class Template:
    """A page's prompt as token ids: those before its one image token, and those after."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    image: int

    @classmethod
    def of(cls, prompt: Prompt, tokenizer: Tokenizer, *, image: int, place: str) -> Template:
        known = tokenizer.token_to_id(prompt.image_token)
        if known != image:
            raise InputError(
                f"{place} has the image token {image} in its config.json, but its tokenizer.json gives "
                f"{prompt.image_token} the id {known}: the two are of different checkpoints, download them again"
            )
        ids = tokenizer.encode(prompt.page, add_special_tokens=False).ids
        split = ids.index(image)
        return cls(tuple(ids[:split]), tuple(ids[split + 1 :]), image)

    def ids(self, cells: int) -> Int[Tensor, " S"]:
        """The whole prompt of a page whose image takes `cells` tokens."""
        return torch.tensor([*self.before, *[self.image] * cells, *self.after])


@dataclass(frozen=True, eq=False)
class PageInput:
    """One page ready for a model: its pixels, its prompt, and the grid of its image as (columns, rows)."""

    id: str
    pixels: Tensor
    ids: Int[Tensor, " S"]
    grid: tuple[int, int]


def query_ids(tokenizer: Tokenizer, text: str) -> Int[Tensor, " S"]:
    return torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)


def page_positions(before: int, grid: tuple[int, int] | None, length: int) -> Int[Tensor, "3 S"]:
    """Multimodal rotary positions (time, height, width) of a prompt with one image after `before` tokens, or none.

    Text counts on along all three; the cells of an image share one moment and stand at their row and column; what
    follows starts after the largest position so far.
    """
    if grid is None:
        return torch.arange(length).expand(3, -1)
    columns, rows = grid
    cells = torch.stack(
        [
            torch.zeros(rows * columns, dtype=torch.long),
            torch.arange(rows).repeat_interleave(columns),
            torch.arange(columns).repeat(rows),
        ]
    )
    rest = torch.arange(length - before - rows * columns) + before + max(grid)
    return torch.cat([torch.arange(before).expand(3, -1), cells + before, rest.expand(3, -1)], dim=1)


def pad(rows: Sequence[Int[Tensor, " _"]], filler: int) -> tuple[Int[Tensor, "B S"], Bool[Tensor, "B S"]]:
    """Rows of ids side by side, filled up on the right, and which places are theirs."""
    padded = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=filler)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(padded.shape[1]) < lengths[:, None]
