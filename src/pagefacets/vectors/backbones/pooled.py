"""What encoders over a backbone share: pages and queries become prompts, prompts go through in batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from jaxtyping import Float
from torch import Tensor

from pagefacets.data import Page, PageVectors, unit_rows
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.vectors.backbones.backbone import Backbone
from pagefacets.vectors.backbones.batches import Batches
from pagefacets.vectors.backbones.sequences import Prompt
from pagefacets.vectors.encoder import Encoder, asked

__all__ = ["PooledEncoder", "Prompts", "filled"]


# The longer side to which a page is rendered, in pixels: more than any of these models looks at.
_LONGEST = 4096


@dataclass(frozen=True)
class Prompts:
    """What a checkpoint was trained to read: <|image_pad|> stands for the page, {query} for the query."""

    page: str
    query: str


class PooledEncoder(Encoder):
    """An encoder that reads its vectors off the last hidden states of a Qwen vision-language model."""

    def __init__(
        self,
        name: str,
        family: str,
        backbone: Backbone,
        prompts: Prompts,
        *,
        revision: str | None,
        batch_size: int | Literal["auto"],
        page_suffix: Sequence[int] = (),
        query_suffix: Sequence[int] = (),
        square: int | None = None,
    ) -> None:
        self._name = name
        self._family = family
        self._backbone = backbone
        self._prompts = prompts
        self._revision = revision
        self._page_suffix = tuple(page_suffix)
        self._query_suffix = tuple(query_suffix)
        self._square = square
        self._batches: Batches[Prompt] = Batches(
            batch_size, tokens=len, device=backbone.device, remedy="lower max_pixels, or encode on a larger device"
        )
        backbone.prompter.refuse(prompts.page, prompts.query)

    @property
    def id(self) -> str:
        return self._name if self._revision is None else f"{self._name}@{self._revision}"

    @property
    def dim(self) -> int:
        return self._backbone.dim

    @property
    def query_prefix(self) -> str:
        return self._prompts.query.partition("{query}")[0]

    def config(self) -> Mapping[str, object]:
        backbone = self._backbone
        return {
            "name": self._name,
            "family": self._family,
            "revision": self._revision,
            "base": None if backbone.base == self._name else backbone.base,
            "dtype": backbone.dtype,
            "min_pixels": backbone.min_pixels,
            "max_pixels": backbone.max_pixels,
            **{f"{side}_prompt": prompt for side, prompt in asdict(self._prompts).items()},
        }

    def encode_pages(self, pages: Iterable[Page], *, skipped: Skipped | None = None) -> Iterator[PageVectors]:
        ids: list[str] = []

        def prompts() -> Iterator[Prompt]:
            for page in pages:
                try:
                    prompt = self._page(page)
                except PageError as error:
                    if skipped is None:
                        raise
                    skipped(error)
                    continue
                ids.append(page.id)
                yield prompt

        for vectors in self._batches.run(prompts(), lambda batch: self._units(self._page_vectors(batch))):
            yield PageVectors(vectors, id=ids.pop(0))

    def encode_queries(self, queries: Sequence[str]) -> list[Float[Tensor, "M p"]]:
        query, template = self._backbone.prompter.query, self._prompts.query
        prompts = (query(text, template, suffix=self._query_suffix) for text in asked(queries))
        return list(self._batches.run(prompts, lambda batch: self._units(self._query_vectors(batch))))

    @abstractmethod
    def _page_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "N p"]]:
        """The rows of each page, of any length."""

    @abstractmethod
    def _query_vectors(self, prompts: Sequence[Prompt]) -> list[Float[Tensor, "M p"]]:
        """The rows of each query, of any length."""

    def _page(self, page: Page) -> Prompt:
        image = page.image(_LONGEST).convert("RGB")
        if self._square is not None:
            image = image.resize((self._square, self._square))
        try:
            return self._backbone.prompter.page(image, self._prompts.page, suffix=self._page_suffix)
        except InputError as error:
            raise PageError(page.id, str(error)) from error

    def _units(self, pages: Sequence[Tensor]) -> list[Tensor]:
        vectors = []
        for rows in pages:
            units, directed = unit_rows(rows)
            if not bool(directed.all()):
                raise InputError(
                    f"{self._name} answers with a vector that is zero, NaN or infinite in {self._backbone.dtype}: "
                    "encode with dtype='float32'"
                )
            vectors.append(units.cpu())
        return vectors


def filled(chosen: str | None, default: str) -> str:
    """An option as given, or the family's own."""
    return default if chosen is None else chosen
