"""The encoder that needs no network: the wordpieces of a page's text, by a small model that comes with the install."""

from __future__ import annotations

import itertools
import multiprocessing
import time
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Literal, TypeAlias, final, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import Page, PageVectors, Words, unit_rows
from pagefacets.errors import InputError, MissingExtraError, PageError, Skipped
from pagefacets.pages.letters import clean
from pagefacets.pages.ocr import LONGEST, has_ink, ink_outside, joined, read_image
from pagefacets.parallel import available_cores, ordered
from pagefacets.products import one_thread
from pagefacets.vectors.encoder import Encoder, asked
from pagefacets.vectors.minilm import DIM, Pieces, bundled, weights_digest
from pagefacets.vectors.windows import Window, windows

__all__ = ["Ocr", "WordsEncoder"]

Ocr: TypeAlias = Literal["auto", "never", "always"]

# Wordpieces that the model reads at once, as long as the texts it was trained on, and how many neighbours share.
ROOM, OVERLAP = 126, 16
# Wordpieces that go through the model together: their activations stay in a processor's cache.
BATCH = 1024
# Pages that are read and encoded together, and the seconds after which more of them are worth worker processes.
GROUP, WORTH_WORKERS = 4, 5.0
# A text layer of fewer words, with most of the page's ink outside them, is a stamp on a scan.
FEW, OUTSIDE = 20, 0.5

# Counts what happens to the vectors of a text: goes up whenever that changes.
_RECIPE = 1

Outcome: TypeAlias = PageVectors | PageError


@final
@dataclass(frozen=True, kw_only=True)
class WordsEncoder(Encoder):
    """One vector for each wordpiece of a page, and its box, by all-MiniLM-L6-v2.

    `ocr` says when words are read from the page's image: where the document holds none ("auto"), "never", "always".
    `workers` processes share the pages; by default one per core, once a few seconds have shown that it is worth it.
    """

    ocr: Ocr = "auto"
    workers: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.ocr not in get_args(Ocr):
            raise InputError(f"ocr must be one of {', '.join(map(repr, get_args(Ocr)))}, got {self.ocr!r}")
        whole = isinstance(self.workers, int | Integral) and not isinstance(self.workers, bool)
        if self.workers is not None and (not whole or self.workers < 1):
            raise InputError(f"workers must be a whole number, at least 1, got {self.workers!r}")

    @property
    def id(self) -> str:
        return f"words-{_RECIPE}/all-MiniLM-L6-v2@{weights_digest()}"

    @property
    def dim(self) -> int:
        return DIM

    @property
    def query_prefix(self) -> str:
        return ""

    def config(self) -> Mapping[str, object]:
        return {"name": "words", "ocr": self.ocr}

    def encode_pages(self, pages: Iterable[Page], *, skipped: Skipped | None = None) -> Iterator[PageVectors]:
        for outcome in self._outcomes(iter(pages)):
            if isinstance(outcome, PageVectors):
                yield outcome
            elif skipped is None:
                raise outcome
            else:
                skipped(outcome)

    def encode_queries(self, queries: Sequence[str]) -> list[Float[Tensor, "M p"]]:
        ids = [_query(query, f"query {i}")[1].ids for i, query in enumerate(asked(queries))]
        with one_thread():
            return _vectors(ids)

    def query_tokens(self, query: str) -> list[str]:
        """The part of the query that each wordpiece was cut from."""
        words, pieces = _query(query, "the query")
        texts = [words[word] for word in pieces.words]
        cuts = [(part * len(text)).round().astype(int) for part, text in zip(pieces.parts, texts, strict=True)]
        return [text[start:stop] for text, (start, stop) in zip(texts, cuts, strict=True)]

    def _outcomes(self, pages: Iterator[Page]) -> Iterator[Outcome]:
        groups = iter(lambda: list(itertools.islice(pages, GROUP)), [])
        cores = available_cores() if self.workers is None else self.workers
        if multiprocessing.current_process().daemon:
            cores = 1
        patience = 0.0 if self.workers is not None and cores > 1 else WORTH_WORKERS
        busy = 0.0
        while cores == 1 or busy < patience:
            start = time.perf_counter()
            group = next(groups, None)
            if group is None:
                return
            outcomes = self._encoded(group)
            busy += time.perf_counter() - start
            yield from outcomes
        yield from itertools.chain.from_iterable(ordered(_encoded, groups, workers=cores, shared=self))

    def _encoded(self, pages: Sequence[Page]) -> list[Outcome]:
        """Each page's vectors, or why it cannot be read."""
        outcomes: list[Outcome | None] = []
        texts: list[tuple[Page, Words, Pieces]] = []
        for page in pages:
            try:
                words = self._words(page)
            except PageError as error:
                outcomes.append(error)
                continue
            outcomes.append(None)
            texts.append((page, words, bundled().pieces(words.texts)))
        with one_thread():
            made = iter(_vectors([pieces.ids for _, _, pieces in texts]))
        encoded = (PageVectors(next(made), boxes=_boxes(*text), id=text[0].id) for text in texts)
        return [next(encoded) if outcome is None else outcome for outcome in outcomes]

    def _words(self, page: Page) -> Words:
        """The words that the page holds, or that its image shows."""
        held = None if self.ocr == "always" else page.words()
        stamp = held is not None and held.boxes is not None and len(held) < FEW
        if self.ocr == "never" or (held is not None and not stamp):
            return held or Words(())
        image = page.image(LONGEST)
        if not has_ink(image) or (held is not None and ink_outside(image, held) < OUTSIDE):
            return held or Words(())
        try:
            read = read_image(image, page.id)
        except MissingExtraError as error:
            if held is None:
                raise MissingExtraError(
                    f"{page.id} has no text, and reading its image takes a package that is not installed: "
                    "pip install 'pagefacets[ocr]', or leave such pages empty with ocr='never'"
                ) from error
            warnings.warn(
                f"{page.id} has {len(held)} words over a picture, whose own words are left out: "
                "pip install 'pagefacets[ocr]' to have them read",
                stacklevel=2,
            )
            return held
        return read if held is None else joined(held, read)


def _query(query: str, called: str) -> tuple[list[str], Pieces]:
    """The words of a query and their pieces."""
    words = clean(query).split()
    pieces = bundled().pieces(words)
    if not pieces.ids:
        raise InputError(f"{called} is {query!r}, which has no words to look for: ask with at least one")
    return words, pieces


def _encoded(encoder: WordsEncoder, pages: Sequence[Page]) -> list[Outcome]:
    return encoder._encoded(pages)


@torch.no_grad()
def _vectors(texts: Sequence[Sequence[int]]) -> list[Float[Tensor, "M 384"]]:
    """A unit vector for each wordpiece of each text; a text without any has those of the empty text, two."""
    jobs: list[tuple[int, Window]] = [
        (i, window) for i, ids in enumerate(texts) for window in windows(len(ids), ROOM, OVERLAP)
    ]
    parts: list[list[Tensor]] = [[] for _ in texts]
    for batch in _batches(jobs):
        states = bundled().states([texts[i][window.start : window.stop] for i, window in batch])
        for (i, window), state in zip(batch, states, strict=True):
            kept = state[1 + window.first - window.start : 1 + window.last - window.start] if texts[i] else state
            parts[i].append(kept)
    return [unit_rows(torch.cat(part))[0] for part in parts]


def _batches(jobs: Sequence[tuple[int, Window]]) -> Iterator[list[tuple[int, Window]]]:
    batch: list[tuple[int, Window]] = []
    held = 0
    for job in jobs:
        length = job[1].stop - job[1].start
        if batch and held + length > BATCH:
            yield batch
            batch, held = [], 0
        batch.append(job)
        held += length
    if batch:
        yield batch


def _boxes(page: Page, words: Words, pieces: Pieces) -> Float[Tensor, "N 4"] | None:
    """The box of each wordpiece: its share of a word that is written across, else the whole word's."""
    if not pieces.ids:
        return torch.full((2, 4), torch.nan)
    if words.boxes is None:
        return None
    width, height = page.size or (1.0, 1.0)
    boxes = words.boxes[pieces.words].astype(np.float64)
    left, across = boxes[:, 0], boxes[:, 2] - boxes[:, 0]
    starts, stops = pieces.parts.T
    mirrored = np.array([_right_to_left(text) for text in words.texts], dtype=bool)[pieces.words]
    starts, stops = np.where(mirrored, 1 - stops, starts), np.where(mirrored, 1 - starts, stops)
    lying = across * width >= (boxes[:, 3] - boxes[:, 1]) * height
    boxes[:, 0], boxes[:, 2] = np.where(lying, [left + starts * across, left + stops * across], boxes[:, [0, 2]].T)
    return torch.from_numpy(np.clip(boxes, 0, 1).astype(np.float32))


def _right_to_left(word: str) -> bool:
    """Whether the first letter of a word belongs to a script that is written from the right."""
    if word.isascii():
        return False
    sides = (unicodedata.bidirectional(character) for character in word)
    return next((side for side in sides if side in ("L", "R", "AL")), "L") != "L"
