"""Data to measure on: page vectors, query vectors, and which pages answer which query.

| given | read as |
|---|---|
| a cache | pages, queries, languages and graded qrels of its dataset |
| a file of vectors with queries and qrels inside | pages and queries called by their numbers |
| a folder with one such file | that file |
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import torch
from torch import Tensor

from pagefacets.data import ArrayLike, PageVectors, as_matrix, as_page
from pagefacets.errors import InputError
from pagefacets.evidence.measures import judged
from pagefacets.evidence.suites import known
from pagefacets.vectors.cache import Cache
from pagefacets.vectors.caching.manifest import is_cache
from pagefacets.vectors.files import VectorFile, open_vectors

__all__ = ["Labelled", "Source", "digest_of", "holds_vectors", "open_all", "open_labelled"]

_PACKED = (".npz", ".safetensors", ".pt", ".pth", ".arrow", ".feather", ".parquet", ".lance")

# Anything that vectors with labels are read from.
Source: TypeAlias = "Labelled | Cache | VectorFile | str | os.PathLike[str]"


@final
@dataclass(frozen=True, eq=False, repr=False)
class Labelled:
    """Page vectors and encoded queries; `qrels` maps query id to page id to relevance.

    `languages` has one entry per query, None where it is unknown. A page that is judged and not there is never found.
    """

    name: str
    pages: Sequence[PageVectors]
    page_ids: tuple[str, ...]
    queries: tuple[Tensor, ...]
    query_ids: tuple[str, ...]
    qrels: Mapping[str, Mapping[str, int]]
    languages: tuple[str | None, ...] = ()
    source: str | None = None

    def __post_init__(self) -> None:
        if not self.pages:
            raise InputError(f"{self.name} has no pages: pass at least one")
        for what, ids, count in (
            ("page", self.page_ids, len(self.pages)),
            ("query", self.query_ids, len(self.queries)),
        ):
            if len(ids) != count:
                raise InputError(f"{self.name} has {count} {what} vectors and {len(ids)} {what} ids: give each its own")
            if len(set(ids)) != count:
                twice = next(one for one in ids if ids.count(one) > 1)
                raise InputError(f"{self.name} has more than one {what} {twice!r}: give each an id of its own")
        if not self.languages:
            object.__setattr__(self, "languages", (None,) * len(self.queries))
        elif len(self.languages) != len(self.queries):
            raise InputError(f"{self.name} has {len(self.queries)} queries and {len(self.languages)} languages")
        dim = as_page(self.pages[0]).dim
        for name, query in zip(self.query_ids, self.queries, strict=True):
            if query.shape[1] != dim:
                raise InputError(
                    f"query {name!r} of {self.name} has dimension {query.shape[1]} and its pages have {dim}: encode "
                    f"both with one model"
                )
        if not self.asked:
            raise InputError(f"{self.name} has no judged query: it needs queries, and which pages answer them (qrels)")

    @classmethod
    def of(
        cls,
        name: str,
        pages: Sequence[PageVectors | ArrayLike],
        queries: Sequence[ArrayLike],
        qrels: Mapping[str, Mapping[str, int]],
        *,
        page_ids: Sequence[str] | None = None,
        query_ids: Sequence[str] | None = None,
    ) -> Labelled:
        """Pages and queries at hand; without ids, a page goes by its own or its number, and a query by its number."""
        made = [as_page(page) for page in pages]
        own = [str(i) if page.id is None else page.id for i, page in enumerate(made)]
        return cls(
            name,
            made,
            tuple(own if page_ids is None else page_ids),
            tuple(as_matrix(query, f"query {i}") for i, query in enumerate(queries)),
            tuple(map(str, range(len(queries)))) if query_ids is None else tuple(query_ids),
            qrels,
        )

    def __repr__(self) -> str:
        return (
            f"Labelled({self.name!r}, pages={len(self.pages)}, queries={len(self.queries)}, judged={len(self.asked)})"
        )

    @functools.cached_property
    def asked(self) -> tuple[int, ...]:
        """Positions of the queries that are judged: the others are not measured on."""
        return tuple(judged(self.query_ids, self.qrels))

    @functools.cached_property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """The judged queries by language, as positions in `asked`; under "" where there is but one."""
        found: dict[str, list[int]] = {}
        for place, i in enumerate(self.asked):
            found.setdefault(self.languages[i] or "", []).append(place)
        if len(found) < 2:
            return {"": tuple(range(len(self.asked)))}
        return {language or "unknown": tuple(places) for language, places in found.items()}

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all that a measurement depends on."""
        whole = hashlib.blake2b(digest_size=16)
        whole.update(json.dumps([self.page_ids, self.query_ids, self.languages]).encode())
        whole.update(json.dumps({q: dict(self.qrels[q]) for q in sorted(self.qrels)}, sort_keys=True).encode())
        whole.update(digest_of(self.pages, self.queries).encode())
        return whole.hexdigest()

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of the data before believing a number."""
        said = []
        if len(self.asked) < len(self.queries):
            said.append(f"{len(self.queries) - len(self.asked)} of its queries have no judgement and are left out")
        there = set(self.page_ids)
        lost = sum(page not in there for i in self.asked for page in self.qrels[self.query_ids[i]])
        if lost:
            said.append(f"{lost} judgements name pages that it does not have: they are never found")
        task = known(self.source or self.name)
        expected = None if task is None or task.pages is None else (task.pages, (task.queries or 0) * task.languages)
        if expected is not None and expected != (len(self.pages), len(self.asked)):
            said.append(f"it should have {expected[0]:,} pages and {expected[1]:,} queries, by its description")
        return tuple(f"{self.name}: {one}" for one in said)


def open_labelled(source: Source) -> Labelled:
    """Vectors with labels: a cache, a file with queries and qrels inside, or a folder that holds one such file."""
    if isinstance(source, Labelled):
        return source
    if isinstance(source, Cache):
        return _of_cache(source)
    if isinstance(source, VectorFile):
        return _of_file(source, source.path.stem)
    path = Path(source)
    if is_cache(path):
        return _of_cache(Cache.open(path))
    if path.is_dir() and path.suffix.lower() not in _PACKED:
        packed = _packed_in(path)
        if len(packed) > 1:
            raise InputError(f"{path} holds several files of vectors ({', '.join(p.name for p in packed)}): name one")
        if packed:
            return _of_file(open_vectors(packed[0]), path.resolve().name)
    return _of_file(open_vectors(path), path.stem)


def open_all(sources: Source | Sequence[Source]) -> list[Labelled]:
    """One or several data sets, with a name for each."""
    several = [sources] if isinstance(sources, Labelled | Cache | VectorFile | str | os.PathLike) else list(sources)
    if not several:
        raise InputError("there is no data to measure on: pass at least one cache or file of vectors with qrels")
    found = [open_labelled(source) for source in several]
    dims = {as_page(data.pages[0]).dim for data in found}
    if len(dims) > 1:
        raise InputError(f"the data sets have dimensions {sorted(dims)}: measure the vectors of one model at a time")
    names = [data.name for data in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two data sets are called {name!r}: rename the folder or file of one")
    return found


def holds_vectors(path: Path) -> bool:
    """Whether `path` is a cache, a file of vectors, or a folder with such files, rather than pages to encode."""
    if path.is_file():
        return path.suffix.lower() in _PACKED
    return path.is_dir() and (is_cache(path) or path.suffix.lower() == ".lance" or _packed_in(path) != [])


def _packed_in(folder: Path) -> list[Path]:
    """Files of vectors beside each other; Parquet is what datasets of pages are made of, so it does not count."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in (".npz", ".safetensors"))


def _of_cache(cache: Cache) -> Labelled:
    source = cache.manifest.source
    task = None if source is None else known(source)
    return Labelled(
        cache.path.name if task is None else task.name,
        cache.pages,
        tuple(cache.page_ids),
        tuple(cache.queries()),
        tuple(cache.query_ids),
        cache.qrels,
        tuple(cache.manifest.queries.languages),
        source,
    )


def _of_file(file: VectorFile, name: str) -> Labelled:
    if file.kind == "facets":
        raise InputError(f"{file.name} already holds facets: measure on the page vectors they were made from")
    queries, pairs = file.queries(), file.qrels
    if pairs is None or not queries:
        raise InputError(
            f"{file.name} has no labelled queries: it needs query_vectors and qrels beside its pages, or be a cache of "
            f"a dataset"
        )
    # A page's own id, where every page has one and no two the same; the file's qrels go by number all the same.
    qrels: dict[str, dict[str, int]] = {}
    ids = tuple(_ids(file))
    for query, page in pairs.tolist():
        qrels.setdefault(str(query), {})[ids[page]] = 1
    return Labelled(name, file, ids, tuple(queries), tuple(map(str, range(len(queries)))), qrels)


def _ids(file: VectorFile) -> Iterator[str]:
    for number, page in enumerate(file):
        yield str(number) if page.id is None else page.id
    file.release()


def digest_of(pages: Sequence[PageVectors], queries: Sequence[Tensor]) -> str:
    """A hash of vectors and of what is known about each row of a page that a compressor may read."""
    whole = hashlib.blake2b(digest_size=16)
    for query in queries:
        _add(whole, query)
    for page in pages:
        for tensor in (page.vectors, page.image_mask, page.importance):
            _add(whole, tensor)
        whole.update(repr(page.grid).encode())
    if isinstance(pages, VectorFile):
        pages.release()
    return whole.hexdigest()


def _add(whole: hashlib.blake2b, tensor: Tensor | None) -> None:
    if tensor is None:
        whole.update(b"none")
        return
    plain = tensor.cpu().contiguous()
    whole.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
    whole.update((plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain).numpy().tobytes())
