"""What a cache is to hold: the pages of a source, and the queries that are asked of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from pagefacets.data import Page
from pagefacets.errors import InputError, Skipped
from pagefacets.pages.datasets import Dataset, Query, brings_queries, open_dataset
from pagefacets.pages.files import readable
from pagefacets.pages.source import open_pages
from pagefacets.pages.texts import json_lines
from pagefacets.vectors.caching.manifest import is_cache

__all__ = ["Asked", "Qrels", "Source", "Wanted", "read_queries", "want"]

Qrels: TypeAlias = Mapping[str, Mapping[str, int]]

# A document, a folder of them, a dataset, or pages.
Source: TypeAlias = "str | os.PathLike[str] | Dataset | Sequence[Page]"


@final
@dataclass(frozen=True)
class Asked:
    """A query as a cache knows it."""

    id: str
    text: str
    language: str | None = None

    @property
    def digest(self) -> str:
        return hashlib.blake2b(self.text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@final
@dataclass(frozen=True)
class Wanted:
    """Pages and queries; queries and qrels are None where those of the cache should stay."""

    name: str | None
    pages: Sequence[Page]
    queries: tuple[Asked, ...] | None = None
    qrels: Qrels | None = None

    @property
    def plan(self) -> str:
        """A hash that processes share when they want the same of a cache."""
        asked = None if self.queries is None else [[query.id, query.digest] for query in self.queries]
        content = json.dumps([[[page.id, page.digest] for page in self.pages], asked, self.qrels])
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def want(
    source: Source,
    queries: Sequence[str] | Sequence[Query] | str | os.PathLike[str] | None,
    language: str | None,
    skipped: Skipped | None,
) -> Wanted:
    """What `encode` was asked for, its pages listed and its queries read."""
    name, pages, asked, qrels = _opened(source, language, skipped)
    if queries is not None:
        if isinstance(queries, str | os.PathLike):
            asked, qrels = read_queries(Path(queries), pages)
            if skipped is None:
                _check_answers(Path(queries), pages, qrels)
        else:
            asked, qrels = tuple(_asked(number, query) for number, query in enumerate(queries)), {}
        if language is not None:
            asked = tuple(query for query in asked if query.language == language)
    elif language is not None and asked is None:
        raise InputError(f"language {language!r} chooses among queries, and {name} brings none: pass them, or leave it")
    for kind, ids in (("page", (page.id for page in pages)), ("query", (query.id for query in asked or ()))):
        _check_unique(ids, kind)
    for query in asked or ():
        if not query.text.strip():
            raise InputError(f"query {query.id!r} is {query.text!r}, which asks nothing: leave it out")
    if not pages:
        raise InputError(f"{name or 'the sequence'} holds no page that can be read: name another source")
    judged = None if qrels is None else {query: dict(answers) for query, answers in qrels.items()}
    return Wanted(name, pages, asked, judged)


def read_queries(path: Path, pages: Sequence[Page] = ()) -> tuple[tuple[Asked, ...], Qrels]:
    """The queries of a file, numbered from 0: one in each line, or in a .jsonl file the "query" of each object.

    An object may have an "id", a "language" and the pages that answer it: their ids under "relevant", or a "document"
    and the numbers of its "pages".
    """
    if not path.is_file():
        raise InputError(f"there is no file of queries {path}: check the path")
    found: list[Asked] = []
    qrels: dict[str, dict[str, int]] = {}
    if path.suffix.lower() != ".jsonl":
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{path.name} is not UTF-8 ({error.reason}): save it as UTF-8") from error
        texts = [line.strip() for line in lines if line.strip()]
        found = [Asked(str(number), text) for number, text in enumerate(texts)]
    else:
        places = {(page.source, page.number): page.id for page in pages}
        for where, line in json_lines(path):
            query, answers = _from_line(line, len(found), where, places)
            found.append(query)
            if answers:
                qrels[query.id] = dict.fromkeys(answers, 1)
    if not found:
        raise InputError(f"{path.name} holds no queries: write one per line")
    return tuple(found), qrels


def _from_line(
    line: Mapping[str, Any], number: int, where: str, places: Mapping[tuple[str, int], str]
) -> tuple[Asked, list[str]]:
    match {"id": number, "language": None, "relevant": [], "document": "", "pages": [], **line}:
        case {
            "query": str(text),
            "id": str() | int() as name,
            "language": str() | None as language,
            "relevant": list(relevant),
            "document": str(document),
            "pages": list(numbers),
        } if text.strip():
            answers = [str(page) for page in relevant]
            answers += [places.get((document, page), f"{document}#{page}") for page in numbers]
            return Asked(str(name), text, language), answers
    raise InputError(f'{where} is no query: write {{"query": "...", "relevant": ["page id", ...]}}')


def _check_answers(path: Path, pages: Sequence[Page], qrels: Qrels) -> None:
    there = {page.id for page in pages}
    for query, answers in qrels.items():
        for page in answers:
            if page not in there:
                raise InputError(
                    f"{path.name} names page {page!r} for query {query!r}, and the source has no such page"
                )


def _opened(
    source: Source, language: str | None, skipped: Skipped | None
) -> tuple[str | None, Sequence[Page], tuple[Asked, ...] | None, Qrels | None]:
    if isinstance(source, str | os.PathLike):
        place = Path(source)
        if is_cache(place):
            raise InputError(f"{source} is a cache, its pages are encoded already: name documents or a dataset")
        if not brings_queries(os.fspath(source)):
            return readable(place.resolve().name), open_pages(place, skipped=skipped), None, None
        source = open_dataset(os.fspath(source), language=language, skipped=skipped)
    if isinstance(source, Dataset):
        asked = tuple(Asked(query.id, query.text, query.language) for query in source.queries)
        return source.name, source.pages, asked, source.qrels
    return None, source, None, None


def _asked(number: int, query: object) -> Asked:
    match query:
        case str():
            return Asked(str(number), query)
        case Query():
            return Asked(query.id, query.text, query.language)
        case _:
            raise InputError(f"query {number} is a {type(query).__name__}: pass texts, or Query objects of a dataset")


def _check_unique(ids: Iterable[str], kind: str) -> None:
    seen: set[str] = set()
    for one in ids:
        if one in seen:
            raise InputError(f"two {'pages' if kind == 'page' else 'queries'} have the id {one!r}: rename one")
        seen.add(one)
