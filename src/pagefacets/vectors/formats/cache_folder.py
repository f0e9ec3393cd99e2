"""A cache read as one file of page vectors: shards are opened when a page of theirs is asked for.

The layout is described in docs/cache.md; `pagefacets.vectors.cache` writes it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int

from pagefacets.errors import FileFormatError, InputError
from pagefacets.vectors.caching.manifest import Manifest, PageTable, Places
from pagefacets.vectors.formats import safetensors
from pagefacets.vectors.formats.record import Head, Labels, Reader, Record

__all__ = ["PAGES", "QUERIES", "Cached", "judgements", "read"]

PAGES = "pages"
QUERIES = "queries"

# Shards held open at once: few enough for any limit on open files, enough to go back and forth.
_OPEN = 8


def read(path: Path) -> Reader:
    """The pages of a cache whose first run has finished."""
    manifest = Manifest.load(path)
    if manifest.pages is None:
        raise InputError(f"{path} is not finished: run the pagefacets encode that began it once more")
    return Cached(path, manifest, manifest.pages)


@final
class Cached:
    """The pages of a cache, by its manifest."""

    def __init__(self, path: Path, manifest: Manifest, pages: PageTable) -> None:
        self._path, self._manifest, self._pages = path, manifest, pages
        self.head = Head(torch.float16, manifest.encoder.dim, "pages")
        known = {"encoder": manifest.encoder.id, "query_prefix": manifest.encoder.query_prefix}
        self.metadata = known if manifest.source is None else {**known, "source": manifest.source}
        for kind, places in ((PAGES, pages.places), (QUERIES, manifest.queries.places)):
            _check_files(path / kind, places)
        self._shards = _Shards(path / PAGES, pages.places)

    def __len__(self) -> int:
        return len(self._pages.places)

    def counts(self) -> Int[torch.Tensor, " P"]:
        return torch.tensor(self._pages.places.vectors)

    def record(self, index: int) -> Record:
        return self._shards.record(index)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        return map(self.record, range(start, stop))

    @functools.cached_property
    def labels(self) -> Labels:
        places = self._manifest.queries.places
        shards = _Shards(self._path / QUERIES, places)
        queries = tuple(shards.record(number).vectors for number in range(len(places)))
        numbers = judgements(self._manifest.qrels, places.ids, self._pages.places.ids)
        return Labels(queries, numbers, self._pages.sources)


@final
class _Shards:
    """The vectors behind a table of places."""

    def __init__(self, folder: Path, places: Places) -> None:
        self._folder, self._places = folder, places
        self._open: OrderedDict[int, Reader] = OrderedDict()

    def record(self, index: int) -> Record:
        number, row = self._places.shards[index], self._places.rows[index]
        shard = self._open.pop(number, None) or self._opened(number)
        self._open[number] = shard
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)
        record = shard.record(row) if row < len(shard) else None
        if record is None or record.id != self._places.ids[index]:
            raise FileFormatError(
                f"{self._folder / self._places.files[number].name} does not hold {self._places.ids[index]!r} where the "
                f"manifest says so: run pagefacets encode again to mend the cache"
            )
        return record

    def _opened(self, number: int) -> Reader:
        file = self._folder / self._places.files[number].name
        try:
            return safetensors.read(file)
        except FileNotFoundError as error:
            raise FileFormatError(
                f"{file} is gone: the cache has changed since it was opened, open it again"
            ) from error


def judgements(
    qrels: Mapping[str, Mapping[str, int]], query_ids: tuple[str, ...], page_ids: tuple[str, ...]
) -> Int[torch.Tensor, "J 2"] | None:
    """Rows of (query, page) numbers judged relevant, of queries and pages that are there; None where nothing is."""
    if not qrels:
        return None
    queries = {query: number for number, query in enumerate(query_ids)}
    pages = {page: number for number, page in enumerate(page_ids)}
    rows = [
        (queries[query], pages[page])
        for query, judged in qrels.items()
        for page, relevance in judged.items()
        if relevance > 0 and query in queries and page in pages
    ]
    return torch.tensor(sorted(rows), dtype=torch.int64).reshape(-1, 2)


def _check_files(folder: Path, places: Places) -> None:
    for file in places.files:
        try:
            size = (folder / file.name).stat().st_size
        except FileNotFoundError:
            size = None
        if size != file.nbytes:
            found = "is missing" if size is None else f"has {size} bytes and should have {file.nbytes}"
            raise FileFormatError(f"{folder / file.name} {found}: run pagefacets encode again to mend the cache")
