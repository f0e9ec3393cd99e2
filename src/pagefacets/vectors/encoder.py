"""What every encoder is: a frozen retriever that turns pages and queries into vectors of one space."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module

from jaxtyping import Float
from torch import Tensor

from pagefacets.data import Page, PageVectors
from pagefacets.errors import InputError, Skipped

__all__ = ["Encoder", "asked", "encoder"]

# Encoders by name; any other name is a checkpoint, on a hub or in a local folder.
ENCODERS = {"words": "pagefacets.vectors.words:WordsEncoder"}
CHECKPOINTS = "pagefacets.vectors.checkpoints:load"


class Encoder(ABC):
    """A frozen retriever.

    Vectors have unit length and are ragged: padding never leaves an encoder. Encoding is deterministic, and a page has
    the same vectors alone and among others.
    """

    @property
    @abstractmethod
    def id(self) -> str:
        """The embedding space: what was encoded under another id cannot be compared."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """The length of each vector."""

    @property
    @abstractmethod
    def query_prefix(self) -> str:
        """What is put before the text of a query."""

    @abstractmethod
    def config(self) -> Mapping[str, object]:
        """Every choice that changes vectors, as JSON takes it: `encoder(**config)` makes this encoder again."""

    @abstractmethod
    def encode_pages(self, pages: Iterable[Page], *, skipped: Skipped | None = None) -> Iterator[PageVectors]:
        """The vectors of each page, in order, with the page's id, read as they are needed.

        A page that cannot be read raises PageError, or is reported to `skipped` and left out.
        """

    @abstractmethod
    def encode_queries(self, queries: Sequence[str]) -> list[Float[Tensor, "M p"]]:
        """One matrix for each query, every row of which takes part in MaxSim.

        InputError for one text instead of several, and for a query without a word.
        """

    def query_tokens(self, query: str) -> list[str] | None:
        """What each row of an encoded query stands for, where the encoder can tell."""
        return None


def asked(queries: Sequence[str]) -> list[str]:
    """Queries that an encoder can take: several, each with something to look for."""
    if isinstance(queries, str):
        raise InputError("encode_queries takes several queries, got one text: put it in a list")
    for i, query in enumerate(queries):
        if not query.strip():
            raise InputError(f"query {i} is {query!r}, which has no words to look for: ask with at least one")
    return list(queries)


def encoder(name: str = "words", **options: object) -> Encoder:
    """The encoder called `name`: "words", which needs no network, or a checkpoint by its hub id or folder."""
    module, _, attribute = ENCODERS.get(name, CHECKPOINTS).partition(":")
    made = getattr(import_module(module), attribute)
    encoder: Encoder = made(**options) if name in ENCODERS else made(name, **options)
    return encoder
