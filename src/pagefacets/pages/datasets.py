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
from pathlib import Path
from typing import TypeAlias, final

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


def open_dataset(source: str | Path, *, language: str | None = None, skipped: Skipped | None = None) -> Dataset:
    """The dataset in a folder, or on the hub as owner/name; with the queries of one language, if one is given.

    Images are read when they are asked for. Documents that cannot be read are reported to `skipped` and left out. A
    page that answers a query and is not there stays in `qrels`: it is never found.
    """
    folder, name = Path(source), str(source)
    if folder.is_dir():
        name = readable(folder.resolve().name)
    elif not folder.exists() and is_hub_id(name):
        folder = fetch(name)
    else:
        raise InputError(f"{name} is no folder: give the folder of a dataset, or owner/name on the hub")
    tables = _tables(folder)
    if not _brings_queries(folder, tables):
        raise InputError(f"{name} has no queries: add {_QUERIES}, or the Parquet tables 'queries' and 'qrels'")
    pages = dataset_pages(folder)
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
    return _ASKED <= tables.keys() or _ROWS in tables or (folder / _QUERIES).is_file()


def dataset_pages(folder: Path) -> list[Page] | None:
    """The pages that a dataset's own tables or lines hold; None where `folder` is a folder of documents."""
    tables = _tables(folder)
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


def _tables(folder: Path) -> dict[str, Table]:
    """The Parquet tables by what they hold; of several splits the one that is there to measure on."""
    found: dict[str, dict[str, list[Path]]] = {}
    for path in sorted(_parquet_files(folder), key=lambda path: natural(path.as_posix())):
        words = [_SHARD.sub("", path.stem), *path.relative_to(folder).parts[-2::-1]]
        role = next((_TABLES[word] for word in words if word in _TABLES), _ROWS)
        split = next((word for word in words if word in _SPLITS), "")
        if split or role != _ROWS:
            found.setdefault(role, {}).setdefault(split, []).append(path)
    tables = {}
    for role, splits in found.items():
        paths = next(splits[split] for split in ("", *_SPLITS) if split in splits)
        name = paths[0].relative_to(folder).as_posix() if len(paths) == 1 else role
        files = (SourceFile.of(path, path.relative_to(folder).as_posix(), hashed=False) for path in paths)
        tables[role] = Table(name, tuple(files))
    if _ROWS in tables and (len(tables) > 1 or not tables[_ROWS].has(_FILE_NAME, "query", "image")):
        del tables[_ROWS]
    return tables


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
    for _, number, row in queries.rows([name, text, *([language] if language else [])]):
        if row[name] is None or not row[text]:
            raise InputError(f"row {number} of {queries.name} lacks its {name} or its {text}: remove it")
        asked.append(Query(str(row[name]), row[text], row[language] if language else None))
    query, page, score = qrels.column(_QUERY_ID), qrels.column(_PAGE_ID), qrels.column("score")
    judged = []
    for _, number, row in qrels.rows([query, page, score]):
        if None in (row[query], row[page], row[score]):
            raise InputError(f"row {number} of {qrels.name} lacks its {query}, {page} or {score}: remove it")
        judged.append((str(row[query]), str(row[page]), int(row[score])))
    return asked, judged


def _from_rows(table: Table) -> tuple[list[Query], list[Judgement]]:
    """Each text is one query, answered by the images of all rows that ask it."""
    query, page, language = table.column("query"), table.column(_FILE_NAME), table.optional("language")
    asked: dict[str, Query] = {}
    judged = []
    for _, _, row in table.rows([query, page, *([language] if language else [])]):
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
