"""Bringing a cache up to date: entering it beside other processes, encoding what is missing, and the new manifest."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast, final

from pagefacets.data import Page, PageVectors
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.progress import track
from pagefacets.vectors.caching.filling import Filling, Located, locate, outstanding
from pagefacets.vectors.caching.locks import FileLock, locked
from pagefacets.vectors.caching.manifest import (
    MANIFEST,
    EncoderNote,
    Manifest,
    PageTable,
    Places,
    QueryTable,
    ShardFile,
    is_cache,
    writing,
)
from pagefacets.vectors.caching.shards import Item, Shard, Shards, Skip
from pagefacets.vectors.caching.wanted import Asked, Wanted
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.formats.cache_folder import PAGES, QUERIES

__all__ = ["PAGES_PER_SHARD", "QUERIES_PER_SHARD", "Outcome", "check_target", "update"]

# Pages enough for a file worth having, and few enough to lose to a kill.
PAGES_PER_SHARD = 32
QUERIES_PER_SHARD = 256

_LOCKS = "locks"
_QUERIES_AT_ONCE = 64
_PAUSE = 0.2
# Bytes whose checksums take long enough to show how far they are.
_WORTH_A_BAR = 4_000_000_000


@final
@dataclass(frozen=True)
class Outcome:
    """What an update did: pages encoded here, there before and made by other processes, and what else it found."""

    manifest: Manifest
    encoded: int
    kept: int
    shared: int
    dropped: int
    damaged: int
    queries_encoded: int


def check_target(folder: Path, note: EncoderNote) -> None:
    """Refuse a folder that is no place for this encoder's cache."""
    if is_cache(folder):
        _check_encoder(folder, Manifest.load(folder), note)
    elif not folder.parent.is_dir():
        raise InputError(f"the folder {folder.parent} does not exist: create it first")
    elif folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: a cache is a folder, name another")
    elif folder.exists() and not all(_begun(entry) for entry in folder.iterdir()):
        raise InputError(f"{folder} holds other files than a cache: name another folder")


def update(
    folder: Path,
    encoder: Encoder,
    wanted: Wanted,
    unread: Sequence[PageError],
    *,
    skipped: Skipped | None,
    progress: bool,
) -> Outcome:
    """Make the cache in `folder` hold what is wanted; `unread` are places of the source that could not be opened."""
    with writing(folder):
        (folder / _LOCKS).mkdir(parents=True, exist_ok=True)
    members = FileLock(folder / _LOCKS / "members")
    try:
        work = _Update(folder, encoder, wanted, members, skipped, progress)
        damaged = work.enter()
        kept = work.fill()
        manifest, dropped = work.commit(tuple((error.place, error.why) for error in unread))
    finally:
        members.release()
    pages = 0 if manifest.pages is None else len(manifest.pages.places)
    encoded = work.encoded[PAGES]
    return Outcome(manifest, encoded, kept, pages - encoded - kept, dropped, damaged, work.encoded[QUERIES])


@final
class _Update:
    """One process at work on a cache."""

    def __init__(
        self,
        folder: Path,
        encoder: Encoder,
        wanted: Wanted,
        members: FileLock,
        skipped: Skipped | None,
        progress: bool,
    ) -> None:
        self._folder, self._encoder, self._wanted = folder, encoder, wanted
        self._members, self._skipped, self._progress = members, skipped, progress
        self._gate = folder / _LOCKS / "gate"
        self._shards = {kind: Shards(folder / kind, folder / _LOCKS) for kind in (PAGES, QUERIES)}
        self._queries: Sequence[Asked] = ()
        self._unread: dict[str, dict[str, Skip]] = {PAGES: {}, QUERIES: {}}
        self.encoded = {PAGES: 0, QUERIES: 0}

    def enter(self) -> int:
        """Begin, alone or beside processes that want the same; returns how many damaged shards were found."""
        plan = self._folder / _LOCKS / "plan"
        waited = False
        while True:
            with locked(self._gate):
                if self._members.take():
                    damaged = self._prepare()
                    with writing(self._folder):
                        plan.write_text(self._wanted.plan, encoding="ascii")
                    self._members.take(shared=True)
                    return damaged
                if plan.read_text(encoding="ascii") == self._wanted.plan and self._members.take(shared=True):
                    self._read(Manifest.load(self._folder))
                    return 0
            if self._progress and not waited:
                sys.stderr.write(f"another process brings {self._folder} up to date with something else: waiting\n")
                waited = True
            time.sleep(_PAUSE)

    def fill(self) -> int:
        """Encode what is missing; returns how many of the wanted pages were there already."""
        there = self._shards[PAGES].load()
        kept = len(locate(self._wanted.pages, there))
        self._fill(PAGES, self._wanted.pages, there, PAGES_PER_SHARD)
        self._fill(QUERIES, self._queries, self._shards[QUERIES].load(), QUERIES_PER_SHARD)
        return kept

    def commit(self, unread: tuple[tuple[str, str], ...]) -> tuple[Manifest, int]:
        """Write the manifest of what is there now; the last to leave removes what nothing refers to any more."""
        with locked(self._gate):
            before = Manifest.load(self._folder)
            last = self._members.take()
            there = {kind: self._there(kind, items, shed=last) for kind, items in self._items()}
            now = self._manifest(before, unread, there)
            if now.same_content(before):
                now = before
            else:
                now.save(self._folder)
            if last:
                self._sweep(now)
            self._members.release()
        return now, len(_lost(before, self._wanted))

    def _prepare(self) -> int:
        """Create the cache or check the one that is there, with no other process at work."""
        with writing(self._folder):
            for leftover in list(self._folder.glob(f".{MANIFEST}.*")):
                leftover.unlink(missing_ok=True)
        note = EncoderNote.of(self._encoder)
        if not is_cache(self._folder):
            Manifest(note, self._wanted.name).save(self._folder)
        manifest = Manifest.load(self._folder)
        _check_encoder(self._folder, manifest, note)
        with writing(self._folder):
            for shards in self._shards.values():
                shards.folder.mkdir(exist_ok=True)
                shards.tidy()
        self._check_source(manifest)
        self._read(manifest)
        return self._mend()

    def _read(self, manifest: Manifest) -> None:
        """Settle which queries the cache is to hold: those that were given, or those it has."""
        held = manifest.queries
        there = (Asked(*entry) for entry in zip(held.places.ids, held.texts, held.languages, strict=True))
        self._queries = tuple(there) if self._wanted.queries is None else self._wanted.queries

    def _check_source(self, manifest: Manifest) -> None:
        """Refuse to drop pages for a source that is another one, most likely by a slip."""
        if manifest.pages is None:
            held = {one.id for shard in self._shards[PAGES].load() for one in shard.held}
        else:
            held = set(manifest.pages.places.ids)
        lost = held - {page.id for page in self._wanted.pages}
        if lost and (len(lost) == len(held) or manifest.source != self._wanted.name):
            raise InputError(
                f"{self._folder} holds {len(held):,} pages of {manifest.source or 'a list of pages'} and would lose "
                f"{len(lost):,} of them to {self._wanted.name or 'the pages given'}: name another folder"
            )

    def _mend(self) -> int:
        """Discard shards whose bytes are not those that were written, to be made again."""
        damaged = 0
        for shards in self._shards.values():
            found: Iterable[Shard] = shards.load()
            total = sum(shard.file.nbytes for shard in found)
            if self._progress and total > _WORTH_A_BAR:
                found = track(found, len(list(found)), "checking", unit="shards")
            for shard in found:
                if not shards.is_whole(shard):
                    shards.discard(shard.key)
                    damaged += 1
        return damaged

    def _items(self) -> tuple[tuple[str, Sequence[Item]], ...]:
        return (PAGES, self._wanted.pages), (QUERIES, self._queries)

    def _fill(self, kind: str, items: Sequence[Item], there: Sequence[Shard], size: int) -> None:
        filling = Filling(
            self._shards[kind],
            self._pages if kind == PAGES else self._asked,
            self._encoder.dim,
            skipped=self._skipped if kind == PAGES else None,
            metadata={"encoder": self._encoder.id},
            unit=kind,
            progress=self._progress,
        )
        try:
            filling.run(outstanding(items, there, size))
        finally:
            self.encoded[kind] = filling.encoded
            self._unread[kind] = filling.unread

    def _pages(self, items: Iterator[Item], skipped: Skipped | None) -> Iterator[PageVectors]:
        return self._encoder.encode_pages(cast("Iterator[Page]", items), skipped=skipped)

    def _asked(self, items: Iterator[Item], _: Skipped | None) -> Iterator[PageVectors]:
        queries = cast("Iterator[Asked]", items)
        while batch := list(itertools.islice(queries, _QUERIES_AT_ONCE)):
            encoded = self._encoder.encode_queries([query.text for query in batch])
            for query, vectors in zip(batch, encoded, strict=True):
                yield PageVectors(vectors, id=query.id)

    def _there(self, kind: str, items: Sequence[Item], *, shed: bool) -> list[Shard]:
        """The finished shards; with `shed`, those that hold what nobody wants any more are written again without."""
        shards = self._shards[kind]
        found = shards.load()
        if not shed:
            return found
        places = locate(items, found)
        kept = []
        for shard in found:
            dead = {one.id for one in shard.held if one.id not in places or places[one.id][0].key != shard.key}
            if len(dead) < len(shard.held):
                kept.append(shards.without(shard, dead) if dead else shard)
        return kept

    def _manifest(
        self, before: Manifest, unread: tuple[tuple[str, str], ...], there: Mapping[str, Sequence[Shard]]
    ) -> Manifest:
        pages, queries = self._wanted.pages, self._queries
        places = locate(pages, there[PAGES])
        absent = {skip.id: skip for shard in there[PAGES] for skip in shard.skipped} | self._unread[PAGES]
        skipped = [(page.id, absent[page.id].why) for page in pages if page.id not in places]
        held = [page for page in pages if page.id in places]
        if not held:
            first = skipped[0] if skipped else unread[0]
            raise InputError(f"none of the pages could be encoded, the first is {first[0]}: {first[1]}")
        asked = locate(queries, there[QUERIES])
        return Manifest(
            encoder=before.encoder,
            source=self._wanted.name,
            pages=PageTable(
                _table(held, places),
                tuple(page.source for page in held),
                tuple(page.number for page in held),
                tuple(None if page.size is None else (float(page.size[0]), float(page.size[1])) for page in held),
            ),
            queries=QueryTable(
                _table(queries, asked),
                tuple(query.text for query in queries),
                tuple(query.language for query in queries),
            ),
            qrels=before.qrels if self._wanted.qrels is None else self._wanted.qrels,
            skipped=(*unread, *skipped),
        )

    def _sweep(self, manifest: Manifest) -> None:
        """Remove the shards that the manifest does not name."""
        assert manifest.pages is not None  # noqa: S101
        for kind, places in ((PAGES, manifest.pages.places), (QUERIES, manifest.queries.places)):
            named = {file.name for file in places.files}
            for shard in self._shards[kind].load():
                if shard.file.name not in named:
                    self._shards[kind].discard(shard.key)
            self._shards[kind].tidy()


def _table(items: Sequence[Item], places: Mapping[str, Located]) -> Places:
    """Where items lie, with the shards numbered as they are first met."""
    numbers: dict[str, int] = {}
    files: list[ShardFile] = []
    for item in items:
        shard = places[item.id][0]
        if shard.key not in numbers:
            numbers[shard.key] = len(files)
            files.append(shard.file)
    return Places(
        ids=tuple(item.id for item in items),
        digests=tuple(item.digest for item in items),
        vectors=tuple(places[item.id][2] for item in items),
        shards=tuple(numbers[places[item.id][0].key] for item in items),
        rows=tuple(places[item.id][1] for item in items),
        files=tuple(files),
    )


def _lost(before: Manifest, wanted: Wanted) -> set[str]:
    return set() if before.pages is None else set(before.pages.places.ids) - {page.id for page in wanted.pages}


def _check_encoder(folder: Path, manifest: Manifest, note: EncoderNote) -> None:
    different = manifest.encoder.difference(note)
    if different is not None:
        raise InputError(f"{folder} was encoded by {different}: name another folder for each encoder")


def _begun(entry: Path) -> bool:
    """Whether this may be all there is of a cache that was killed before it had a manifest."""
    return entry.name == _LOCKS or entry.name.startswith(f".{MANIFEST}.")
