"""Caches: what an encoder made of a collection of pages and queries, in one folder; docs/cache.md has the layout."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from torch import Tensor

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.pages.datasets import Dataset, Query
from pagefacets.vectors.caching.manifest import EncoderNote, Manifest, PageTable
from pagefacets.vectors.caching.update import check_target, update
from pagefacets.vectors.caching.wanted import want
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.encoder import encoder as encoder_called
from pagefacets.vectors.files import VectorFile, open_vectors

__all__ = ["Cache", "Run", "encode"]


@final
@dataclass(frozen=True)
class Run:
    """What one call of `encode` did.

    Of the pages in the cache it encoded some, some were `kept` from before, and some were encoded meanwhile by other
    processes that `shared` the work. `dropped` pages are in the source no more, `damaged` shards were made again, and
    `skipped` says of each document or page that was left out why.
    """

    encoded: int
    kept: int
    shared: int
    dropped: int
    damaged: int
    queries_encoded: int
    skipped: tuple[PageError, ...]
    seconds: float


@final
class Cache:
    """The vectors of a collection in a folder, with everything known about how they came to be.

    `manifest` holds every choice behind them; `run` is what the call of `encode` did that returned this cache.
    """

    def __init__(self, path: Path, manifest: Manifest, run: Run | None = None) -> None:
        self.path, self.manifest, self.run = path, manifest, run

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Cache:
        """The finished cache in a folder; no vectors are read."""
        folder = Path(path).absolute()
        cache = cls(folder, Manifest.load(folder))
        len(cache.pages)
        return cache

    @functools.cached_property
    def pages(self) -> VectorFile:
        """The page vectors, with their queries and qrels by number, as `open_vectors` on the folder gives them."""
        return open_vectors(self.path)

    @property
    def page_ids(self) -> list[str]:
        return list(self._table.places.ids)

    @property
    def query_ids(self) -> list[str]:
        return list(self.manifest.queries.places.ids)

    @property
    def query_texts(self) -> list[str]:
        return list(self.manifest.queries.texts)

    @property
    def qrels(self) -> dict[str, dict[str, int]]:
        """Query id to page id to relevance, with pages that could not be encoded."""
        return {query: dict(judged) for query, judged in self.manifest.qrels.items()}

    def queries(self) -> list[Tensor]:
        """The query vectors, one matrix per query, in the order of `query_ids`."""
        return self.pages.queries()

    def encoder(self, **options: object) -> Encoder:
        """The encoder that made these vectors; `options`, such as a device, go beside the recorded ones."""
        arguments: dict[str, Any] = {**self.manifest.encoder.config, **options}
        return encoder_called(**arguments)

    @property
    def _table(self) -> PageTable:
        if self.manifest.pages is None:
            raise InputError(f"{self.path} is not finished: run the pagefacets encode that began it once more")
        return self.manifest.pages

    def __len__(self) -> int:
        return len(self._table.places)

    def __repr__(self) -> str:
        return f"Cache({str(self.path)!r}, pages={len(self)}, encoder={self.manifest.encoder.id!r})"


def encode(
    source: str | os.PathLike[str] | Dataset | Sequence[Page],
    encoder: Encoder | str,
    cache: str | os.PathLike[str],
    *,
    queries: Sequence[str] | Sequence[Query] | str | os.PathLike[str] | None = None,
    language: str | None = None,
    keep_going: bool = False,
    skipped: Skipped | None = None,
    progress: bool = False,
) -> Cache:
    """Bring the cache in a folder up to date with a source, encoding only what is not there yet.

    `source` is a document, a folder of documents, a dataset, whose queries and qrels go into the cache as well, or
    pages. `queries` are texts or a file of them; without any, queries that the cache holds stay. `language` chooses
    among queries. A page that cannot be read stops the run; with `keep_going` it is left out, recorded in the manifest,
    told to `skipped`, and tried again the next time. A run that is stopped loses no finished shard, and processes that
    are given the same cache and source share the work.
    """
    started = time.perf_counter()
    made = encoder if isinstance(encoder, Encoder) else encoder_called(encoder)
    folder = Path(cache).absolute()
    check_target(folder, EncoderNote.of(made))
    left_out: list[PageError] = []

    def leave_out(error: PageError) -> None:
        left_out.append(error)
        if skipped is not None:
            skipped(error)

    report = leave_out if keep_going else None
    wanted = want(source, queries, language, report)
    done = update(folder, made, wanted, tuple(left_out), skipped=report, progress=progress)
    run = Run(
        encoded=done.encoded,
        kept=done.kept,
        shared=done.shared,
        dropped=done.dropped,
        damaged=done.damaged,
        queries_encoded=done.queries_encoded,
        skipped=tuple(left_out),
        seconds=time.perf_counter() - started,
    )
    return Cache(folder, done.manifest, run)
