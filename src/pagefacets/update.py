"""Bringing an index up to date with a source: which pages are new, changed or gone, and what is written of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

from pagefacets.data import Facets, Page, PageVectors
from pagefacets.errors import InputError, PageError, PoolMismatchError, Skipped
from pagefacets.facets.compressor import Compressor
from pagefacets.index.format import Entry
from pagefacets.index.writer import Held, Writer
from pagefacets.progress import track
from pagefacets.vectors.pool import CalibrationPool
from pagefacets.vectors.supply import Supply

__all__ = ["Change", "LeftOut", "Update"]

# Pages and seconds after which finished pages are committed: what a kill can cost.
PAGES, SECONDS = 64, 15.0

Item = TypeVar("Item")


@final
@dataclass(frozen=True)
class Change:
    """What one call did to an index, in pages."""

    added: int
    replaced: int
    kept: int
    removed: int
    skipped: tuple[PageError, ...]
    seconds: float


@final
class LeftOut:
    """Keeps what was left out, and tells of it."""

    def __init__(self, skipped: Skipped | None) -> None:
        self.errors: list[PageError] = []
        self._skipped = skipped

    def __call__(self, error: PageError) -> None:
        self.errors.append(error)
        if self._skipped is not None:
            self._skipped(error)


@final
class Update:
    """One source on its way into an index. With `keep_going` pages that cannot be used are left out."""

    def __init__(self, writer: Writer, supply: Supply, left_out: LeftOut, *, keep_going: bool, progress: bool) -> None:
        self._writer, self._supply, self._left_out = writer, supply, left_out
        self._report: Skipped | None = left_out if keep_going else None
        self._progress = progress
        self._wanted = {page.id: page for page in supply.pages}
        self._documents = {page.source for page in supply.pages}

    def run(self, compressor: Compressor, pool: CalibrationPool | None, *, whole: bool) -> Change:
        """Make the index hold the pages of the source; `whole` removes all others, not only those of its documents."""
        started = time.perf_counter()
        self._check(whole=whole)
        writer, pages, held = self._writer, self._supply.pages, dict(self._writer.held)
        new = [page for page in pages if page.id not in held or held[page.id].digest != page.digest]
        gone = [name for name, about in held.items() if name not in self._wanted and (whole or self._lost(about))]
        if whole and held and len(gone) == len(held):
            raise InputError(
                f"{writer.path} holds {len(held):,} pages, none of which is in {self._supply.name}: "
                f"'pagefacets add' keeps them beside new ones, another path makes another index"
            )
        put: set[str] = set()
        for run in _runs(self._vectors(new)):
            entries = self._entries(run, compressor, pool)
            writer.put(entries)
            put |= {entry.id for entry in entries}
            writer.tidy()
        unread = {error.place for error in self._left_out.errors}
        stale = [page.id for page in new if page.id in held and page.id in unread]
        removed = writer.delete([*gone, *stale])
        self._move()
        return Change(
            added=len(put - held.keys()),
            replaced=len(put & held.keys()),
            kept=len(pages) - len(new),
            removed=removed,
            skipped=tuple(self._left_out.errors),
            seconds=time.perf_counter() - started,
        )

    def _check(self, *, whole: bool) -> None:
        name, pages = self._supply.name, self._supply.pages
        if not pages:
            raise InputError(f"{name} holds no page that can be read: name another source")
        if len(self._wanted) < len(pages):
            twice = next(one for one, count in Counter(page.id for page in pages).items() if count > 1)
            raise InputError(f"{name} has two pages {twice!r}: give each an id of its own")
        for page in () if whole else pages:
            _check_place(self._writer.held.get(page.id), page, self._supply.root)

    def _lost(self, held: Held) -> bool:
        """Whether a page that the source has not is of one of its documents, and not of another of the same name."""
        root = self._supply.root
        same = held.root is None or root is None or held.root == root or not Path(held.root, held.source).exists()
        return held.source in self._documents and same

    def _vectors(self, new: list[Page]) -> Iterator[PageVectors]:
        made = self._supply.vectors(new, skipped=self._report)
        return track(made, len(new), "indexing", unit="pages") if self._progress else made

    def _entries(self, run: list[PageVectors], compressor: Compressor, pool: CalibrationPool | None) -> list[Entry]:
        entries = []
        for full, facets in self._compressed(run, compressor, pool):
            page, root = self._wanted[str(full.id)], self._supply.root
            entries.append(Entry(page.id, root, page.source, page.number, page.size, page.digest, full, facets))
        return entries

    def _compressed(
        self, run: list[PageVectors], compressor: Compressor, pool: CalibrationPool | None
    ) -> list[tuple[PageVectors, Facets]]:
        """The facets of each page; a page whose vectors cannot be used is reported where pages may be left out."""
        try:
            return list(zip(run, compressor.compress_many(run, pool, workers=1), strict=True))
        except PoolMismatchError:
            raise
        except InputError:
            if self._report is None:
                raise
        made = []
        for page in run:
            try:
                made.append((page, compressor.compress(page, pool)))
            except InputError as error:
                self._report(PageError(str(page.id), f"cannot be compressed ({error})"))
        return made

    def _move(self) -> None:
        """Note where documents lie that were not encoded again and are in another folder than before."""
        root = self._supply.root
        if root is not None:
            held = self._writer.held
            moved = {page.source for page in self._supply.pages if page.id in held and held[page.id].root != root}
            if moved:
                self._writer.move(moved, root)


def _runs(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Items in runs that are worth a commit each."""
    run: list[Item] = []
    since = time.monotonic()
    for item in items:
        run.append(item)
        if len(run) >= PAGES or time.monotonic() - since > SECONDS:
            yield run
            run, since = [], time.monotonic()
    if run:
        yield run


def _check_place(held: Held | None, page: Page, root: str | None) -> None:
    """Refuse a document that would take the place of another one with its name."""
    if held is None or held.root is None or root is None or held.root == root or held.digest == page.digest:
        return
    before, now = Path(held.root, held.source), Path(root, page.source)
    if before.exists() and now.exists() and not before.samefile(now):
        raise InputError(
            f"{page.source} lies in {held.root} and in {root}, and an index calls one document by one name: "
            f"index the folder above both"
        )
