"""Datasets: pages, queries, and which pages answer which query.

| layout | what it holds |
|---|---|
| ViDoRe/BEIR | Parquet tables: `corpus` (corpus-id, image or text), `queries` (query-id, query, language), `qrels` |
| QA | one Parquet table: query, image, image_filename |
| given text | `pages.jsonl` (id, text) and `queries.jsonl` (query, relevant) |
| documents | PDFs and images beside `queries.jsonl` (query, document, pages) |

A table is a file of its name, a folder of that name, or files that begin with it in `data/`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeAlias, TypeVar, final

from pagefacets.data import Page
from pagefacets.errors import InputError, Skipped
from pagefacets.pages.files import SourceFile, readable
from pagefacets.pages.folders import folder_pages, natural
from pagefacets.pages.hub import fetch, is_hub_id
from pagefacets.pages.tables import Table, table_pages
from pagefacets.pages.texts import json_lines, text_pages

__all__ = ["Dataset", "Query", "brings_queries", "dataset_pages", "open_dataset"]

_PAGES, _QUERIES = "pages.jsonl", "queries.jsonl"
_SHARD = re.compile(r"-\d+-of-\d+$")
_SPLITS = ("test", "validation", "valid", "val", "dev", "train")
_ROWS, _ASKED = "rows", {"queries", "qrels"}
_PAGE_ID, _QUERY_ID, _FILE_NAME = "corpus-id", "query-id", "image-filename"
_TABLES = {"corpus": "corpus", "queries": "queries", "query": "queries", "qrels": "qrels"}

_Value = TypeVar("_Value")
# A query's id, a page's id, and how relevant the page is.
Judgement: TypeAlias = tuple[str, str, int]


@final
@dataclass(frozen=True)
class Query:
    """A question, and its language where the dataset says so."""

    id: str
    text: str
    language: str | None = None


@final
@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Pages and queries; `qrels` maps query id to page id to relevance."""

    name: str
    pages: Sequence[Page]
    queries: tuple[Query, ...]
    qrels: Mapping[str, Mapping[str, int]]

    def __repr__(self) -> str:
        return f"Dataset({self.name!r}, pages={len(self.pages)}, queries={len(self.queries)})"


def open_dataset(
    source: str | Path,
    *,
    language: str | None = None,
    skipped: Skipped | None = None,
    split: str | None = None,
    shards: int | None = None,
) -> Dataset:
    """The dataset in a folder, or on the hub as owner/name; with the queries of one language, if one is given.

    Of several splits it is the one to measure on, or `split` where there is such a one; of a table of questions and
    images in many files, `shards` of them spread over all.

    Images are read when they are asked for. Documents that cannot be read are reported to `skipped` and left out. A
    page that answers a query and is not there stays in `qrels`: it is never found.
    """
    folder, name = Path(source), str(source)
    if folder.is_dir():
        name = readable(folder.resolve().name)
    elif not folder.exists() and is_hub_id(name):
        folder = fetch(name) if split is None else fetch(name, lambda names: _some_files(names, split, shards))
    else:
        raise InputError(f"{name} is no folder: give the folder of a dataset, or owner/name on the hub")
    tables = _tables(folder, split, shards)
    if not _brings_queries(folder, tables):
        raise InputError(f"{name} has no queries: add {_QUERIES}, or the Parquet tables 'queries' and 'qrels'")
    half = sorted(_ASKED & tables.keys())
    if len(half) == 1 and _ROWS not in tables and not (folder / _QUERIES).is_file():
        (other,) = _ASKED - tables.keys()
        raise InputError(f"{name} has a Parquet table {half[0]!r} and none of {other!r}: add that, or {_QUERIES}")
    pages = _pages_of(folder, tables)
    if pages is None:
        pages = folder_pages(folder, skipped=skipped)
    if _ASKED <= tables.keys():
        queries, judged = _from_tables(tables["queries"], tables["qrels"])
    elif _ROWS in tables:
        queries, judged = _from_rows(tables[_ROWS])
    else:
        queries, judged = _from_lines(folder / _QUERIES, pages)
    _all_different(name, "query", (query.id for query in queries))
    qrels = _qrels(name, judged, {page.id for page in pages}, {query.id for query in queries})
    if language is not None:
        queries = _of_language(name, queries, language)
    return Dataset(name, pages, tuple(queries), {query.id: qrels[query.id] for query in queries if query.id in qrels})


def brings_queries(source: str | Path) -> bool:
    """Whether a source is a dataset: a folder with queries, or owner/name on the hub where no such folder is."""
    folder = Path(source)
    if not folder.is_dir():
        return not folder.exists() and is_hub_id(str(source))
    return _brings_queries(folder, _tables(folder))


def _brings_queries(folder: Path, tables: Mapping[str, Table]) -> bool:
    return not _ASKED.isdisjoint(tables) or _ROWS in tables or (folder / _QUERIES).is_file()


def dataset_pages(folder: Path) -> list[Page] | None:
    """The pages that a dataset's own tables or lines hold; None where `folder` is a folder of documents."""
    return _pages_of(folder, _tables(folder))


def _pages_of(folder: Path, tables: Mapping[str, Table]) -> list[Page] | None:
    if "corpus" in tables:
        pages = table_pages(tables["corpus"], tables["corpus"].column(_PAGE_ID, "id"))
    elif (folder / _PAGES).is_file():
        pages = text_pages(folder / _PAGES)
    elif _ROWS in tables:
        # One page has as many rows as it has questions.
        rows = table_pages(tables[_ROWS], tables[_ROWS].column(_FILE_NAME))
        return list({page.id: page for page in reversed(rows)}.values())[::-1]
    else:
        return None
    _all_different(readable(folder.resolve().name), "page", (page.id for page in pages))
    return pages


def _tables(folder: Path, asked: str | None = None, shards: int | None = None) -> dict[str, Table]:
    """The Parquet tables by what they hold; of several splits the one asked for, or the one to measure on."""
    found: dict[str, dict[str, list[Path]]] = {}
    for path in sorted(_parquet_files(folder), key=lambda path: natural(path.as_posix())):
        role, split = _role(path.relative_to(folder))
        if split or role != _ROWS:
            found.setdefault(role, {}).setdefault(split, []).append(path)
    tables = {}
    for role, splits in found.items():
        paths = next(splits[split] for split in (asked, "", *_SPLITS) if split in splits)
        if role == _ROWS:
            paths = _spread(paths, shards)
        name = paths[0].relative_to(folder).as_posix() if len(paths) == 1 else role
        files = (SourceFile.of(path, path.relative_to(folder).as_posix(), hashed=False) for path in paths)
        tables[role] = Table(name, tuple(files))
    if _ROWS in tables and (len(tables) > 1 or not tables[_ROWS].has(_FILE_NAME, "query", "image")):
        del tables[_ROWS]
    return tables


def _role(path: PurePath) -> tuple[str, str]:
    """What the file of a table holds, and of which split, by its place in the dataset."""
    words = [_SHARD.sub("", path.stem), *path.parts[-2::-1]]
    role = next((_TABLES[word] for word in words if word in _TABLES), _ROWS)
    return role, next((word for word in words if word in _SPLITS), "")


def _some_files(names: Sequence[str], split: str, shards: int | None) -> list[str]:
    """Of all Parquet files of a dataset those that `_tables` would read."""
    ordered = sorted(names, key=natural)
    rows = [name for name in ordered if _role(PurePath(name)) == (_ROWS, split)]
    return [name for name in ordered if _role(PurePath(name))[0] != _ROWS] or _spread(rows, shards) or ordered


def _spread(values: Sequence[_Value], count: int | None) -> list[_Value]:
    """So many of the values, evenly spaced; all where none or no fewer are asked for."""
    if count is None or len(values) <= count:
        return list(values)
    return [values[i * len(values) // count] for i in range(count)]


def _parquet_files(folder: Path) -> Iterator[Path]:
    for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet"):
        for path in folder.glob(pattern):
            if not any(part.startswith(".") for part in path.relative_to(folder).parts):
                yield path


def _from_tables(queries: Table, qrels: Table) -> tuple[list[Query], list[Judgement]]:
    name, text, language = (
        queries.column(_QUERY_ID, "id"),
        queries.column("query", "text"),
        queries.optional("language"),
    )
    asked = []
    for _, number, row in queries.rows([name, text, *([language] if language else [])], texts=[text, language]):
        if row[name] is None or not row[text]:
            raise InputError(f"row {number} of {queries.name} lacks its {name} or its {text}: remove it")
        asked.append(Query(str(row[name]), row[text], row[language] if language else None))
    query, page, score = qrels.column(_QUERY_ID), qrels.column(_PAGE_ID), qrels.column("score")
    judged = []
    for _, number, row in qrels.rows([query, page, score]):
        if None in (row[query], row[page], row[score]):
            raise InputError(f"row {number} of {qrels.name} lacks its {query}, {page} or {score}: remove it")
        if not isinstance(row[score], int | float) or not float(row[score]).is_integer():
            raise InputError(f"row {number} of {qrels.name} has the {score} {row[score]!r}: write whole numbers")
        judged.append((str(row[query]), str(row[page]), int(row[score])))
    return asked, judged


def _from_rows(table: Table) -> tuple[list[Query], list[Judgement]]:
    """Each text is one query, answered by the images of all rows that ask it."""
    query, page, language = table.column("query"), table.column(_FILE_NAME), table.optional("language")
    asked: dict[str, Query] = {}
    judged = []
    for _, _, row in table.rows([query, page, *([language] if language else [])], texts=[query, language]):
        if row[query]:
            made = Query(str(len(asked)), row[query], row[language] if language else None)
            judged.append((asked.setdefault(row[query], made).id, str(row[page]), 1))
    return list(asked.values()), judged


def _from_lines(path: Path, pages: Sequence[Page]) -> tuple[list[Query], list[Judgement]]:
    places = {(page.source, page.number): page.id for page in pages}
    asked: list[Query] = []
    judged: list[Judgement] = []
    for where, line in json_lines(path):
        name, text, language = line.get("id", len(asked)), line.get("query"), line.get("language")
        relevant, document, numbers = line.get("relevant", []), line.get("document"), line.get("pages", [])
        if not isinstance(text, str) or not text.strip() or not isinstance(name, str | int):
            raise InputError(f'{where} is no query: write {{"query": "...", "relevant": ["page id", ...]}}')
        if not isinstance(relevant, list) or not isinstance(numbers, list) or not isinstance(document, str | None):
            raise InputError(
                f'{where} does not say which pages answer it: write "relevant": [...], or "document", "pages"'
            )
        asked.append(Query(str(name), text, None if language is None else str(language)))
        answers = [str(page) for page in relevant]
        answers += [places.get((document, number), f"{document}#{number}") for number in numbers if document]
        judged += [(str(name), page, 1) for page in answers]
    return asked, judged


def _qrels(name: str, judged: Iterable[Judgement], pages: Set[str], queries: Set[str]) -> dict[str, dict[str, int]]:
    """Judgements by query and page; one sentence says which of them name what is not there."""
    qrels: dict[str, dict[str, int]] = {}
    lost = []
    for query, page, score in judged:
        if query not in queries or page not in pages:
            lost.append((query, page))
        if query in queries and qrels.setdefault(query, {}).setdefault(page, score) != score:
            raise InputError(f"{name} judges page {page!r} for query {query!r} twice and differently: remove one")
    if not lost:
        return qrels
    query, page = lost[0]
    said = f"judgements of {name} name a query or a page that it does not have (first: query {query!r}, page {page!r})"
    if not any(page in pages for found in qrels.values() for page in found):
        raise InputError(f"all {said}: write the ids of its queries and pages")
    warnings.warn(f"{len(lost)} {said}: such a page is never found", stacklevel=3)
    return qrels


def _of_language(name: str, queries: Sequence[Query], language: str) -> list[Query]:
    kept = [query for query in queries if (query.language or "").casefold() == language.casefold()]
    if not kept:
        there = sorted({query.language for query in queries if query.language})
        said = f"they are in {', '.join(there)}" if there else "it does not say in which languages they are"
        raise InputError(f"{name} has no queries in {language!r}: {said}")
    return kept


def _all_different(name: str, what: str, ids: Iterable[str]) -> None:
    seen: set[str] = set()
    for one in ids:
        if one in seen:
            raise InputError(f"{name} has more than one {what} {one!r}: give each an id of its own")
        seen.add(one)
