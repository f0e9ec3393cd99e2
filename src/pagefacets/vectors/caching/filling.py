"""Filling shards: which items still have to be encoded, and encoding them beside other processes that do the same."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, final

import torch

from pagefacets.data import PageVectors
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.progress import track
from pagefacets.vectors.caching.locks import FileLock
from pagefacets.vectors.caching.shards import Chunk, Item, Shard, Shards, Skip, chunks_of

__all__ = ["Encode", "Filling", "Located", "locate", "outstanding"]

_PAUSE = 0.2

# Items in, their vectors out, in order and as they are asked for; what cannot be read raises or is reported.
Encode: TypeAlias = Callable[[Iterator[Item], Skipped | None], Iterable[PageVectors]]
# The shard that holds an item, the item's place in it, and how many vectors it has.
Located: TypeAlias = tuple[Shard, int, int]


def locate(wanted: Sequence[Item], shards: Iterable[Shard]) -> dict[str, Located]:
    """Where each of the wanted items lies whose vectors are there."""
    digests = {item.id: item.digest for item in wanted}
    found: dict[str, Located] = {}
    for shard in shards:
        for row, held in enumerate(shard.held):
            if digests.get(held.id) == held.digest:
                found.setdefault(held.id, (shard, row, held.vectors))
    return found


def outstanding(wanted: Sequence[Item], shards: Sequence[Shard], size: int) -> list[Chunk]:
    """The chunks that are left to encode.

    They are cut the same way whether nothing is done yet or any of them are, so that a run that was interrupted ends
    with the shards of one that was not. What could not be read the last time is tried again, apart from the rest.
    """
    there = locate(wanted, shards)
    missing = {item.id: item for item in wanted if item.id not in there}
    again = []
    for shard in shards:
        skipped = [missing[skip.id] for skip in shard.skipped if _matches(skip, missing)]
        if skipped:
            again.append(Chunk(tuple(skipped)))
        for item in skipped:
            del missing[item.id]
    return [*chunks_of(missing.values(), size), *again]


def _matches(skip: Skip, missing: Mapping[str, Item]) -> bool:
    return skip.id in missing and missing[skip.id].digest == skip.digest


@final
class _UnderWay:
    """A claimed chunk, and what has come of it so far."""

    def __init__(self, chunk: Chunk, claim: FileLock) -> None:
        self.chunk, self.claim = chunk, claim
        self.open = {item.id for item in chunk.items}
        self.pages: list[PageVectors] = []


@final
class Filling:
    """One pass of an encoder over chunks, written shard by shard.

    A chunk is claimed when the encoder asks for its first item, so that processes at work on the same chunks share
    them; a chunk that another process has claimed is waited for, and taken over should that process die.
    """

    def __init__(
        self,
        shards: Shards,
        encode: Encode,
        dim: int,
        *,
        skipped: Skipped | None,
        metadata: Mapping[str, str],
        unit: str,
        progress: bool,
    ) -> None:
        self._shards, self._encode, self._dim = shards, encode, dim
        self._skipped, self._metadata, self._unit, self._progress = skipped, metadata, unit, progress
        self._under_way: deque[_UnderWay] = deque()
        self._others: list[Chunk] = []
        self._reports: list[PageError] = []
        self.encoded = 0
        self.unread: dict[str, Skip] = {}

    def run(self, chunks: Sequence[Chunk]) -> None:
        """Encode the chunks, or see to it that another process has."""
        while chunks:
            self._others = []
            try:
                self._pass(chunks)
            finally:
                for left in self._under_way:
                    left.claim.release()
                self._under_way.clear()
            chunks = [chunk for chunk in self._others if not self._shards.finished(chunk.key)]
            if chunks:
                time.sleep(_PAUSE)

    def _pass(self, chunks: Sequence[Chunk]) -> None:
        items = self._claimed(chunks)
        # An encoder may take a while to start: it is not asked where nothing is left to claim.
        for first in itertools.islice(items, 1):
            left = sum(len(chunk.items) for chunk in chunks)
            with contextlib.closing(self._outputs(itertools.chain([first], items), left)) as outputs:
                for page in outputs:
                    self._accept(page)
            while self._under_way:
                self._finish()

    def _claimed(self, chunks: Sequence[Chunk]) -> Iterator[Item]:
        for chunk in chunks:
            claim = self._shards.claim(chunk.key)
            if claim is None:
                self._others.append(chunk)
            elif self._shards.finished(chunk.key):
                claim.release(remove=True)
            else:
                self._under_way.append(_UnderWay(chunk, claim))
                yield from chunk.items

    def _outputs(self, items: Iterator[Item], total: int) -> Generator[PageVectors, None, None]:
        outputs = self._encode(items, None if self._skipped is None else self._report)
        if self._progress:
            outputs = track(outputs, total, "encoding", unit=self._unit)
        yield from outputs

    def _report(self, error: PageError) -> None:
        self._reports.append(error)
        if self._skipped is not None:
            self._skipped(error)

    def _accept(self, page: PageVectors) -> None:
        if not any(page.id in shard.open for shard in self._under_way):
            raise InputError(f"the encoder gave vectors of {page.id!r}, which it was not asked for at that point")
        while page.id not in self._under_way[0].open:
            self._finish()
        current = self._under_way[0]
        current.open.discard(str(page.id))
        fault = self._fault(page)
        if fault is None:
            current.pages.append(_stored(page))
        else:
            error = PageError(str(page.id), fault)
            if self._skipped is None:
                raise error
            current.open.add(error.place)
            self._report(error)
        if not current.open:
            self._finish()

    def _fault(self, page: PageVectors) -> str | None:
        if page.dim != self._dim:
            return f"the encoder gave vectors of dimension {page.dim} and says {self._dim}: mend the encoder"
        if not bool(torch.isfinite(page.vectors).all()):
            return "the encoder gave vectors that are not finite: encode in float32, or leave the page out"
        return None

    def _finish(self) -> None:
        """Write the first of the chunks under way, whose items have all come or been left out."""
        done = self._under_way[0]
        order = {item.id: place for place, item in enumerate(done.chunk.items)}
        skipped = [self._skip(item) for item in done.chunk.items if item.id in done.open]
        self.unread.update((skip.id, skip) for skip in skipped)
        if done.pages:
            pages = sorted(done.pages, key=lambda page: order[str(page.id)])
            self._shards.write(done.chunk, pages, skipped, self._metadata)
            self.encoded += len(pages)
        self._under_way.popleft().claim.release(remove=bool(done.pages))

    def _skip(self, item: Item) -> Skip:
        """Why an item did not come: what was reported of it, or else what was reported of no item by its id."""
        named = [error for error in self._reports if error.place == item.id]
        if not named:
            known = {one.id for shard in self._under_way for one in shard.chunk.items}
            named = [error for error in self._reports if error.place not in known]
        if not named:
            raise InputError(f"the encoder left out {item.id!r} and did not say why: mend the encoder")
        error = named[0]
        self._reports.remove(error)
        return Skip(item.id, item.digest, error.why if error.place == item.id else str(error))


def _stored(page: PageVectors) -> PageVectors:
    """The page as it is stored: float16, in memory of its own that keeps no batch alive."""
    host = page.to("cpu")
    vectors = host.vectors.to(torch.float16, copy=True)
    return PageVectors(vectors, host.grid, host.image_mask, host.importance, host.boxes, host.id)
