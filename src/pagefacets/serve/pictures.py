"""Pictures of pages: drawn once, kept while there is room."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
from collections import OrderedDict
from typing import NamedTuple, final

from pagefacets.serve.lanes import Lane
from pagefacets.serve.limits import Limits
from pagefacets.serve.shelf import Shelf

__all__ = ["Picture", "Pictures"]

_QUALITY = 86


class Picture(NamedTuple):
    """A JPEG, and a mark that another picture would not have."""

    jpeg: bytes
    mark: str


@final
class Pictures:
    """Pictures of pages by id and side. The latest stay in memory, up to so many bytes; equal requests share one."""

    def __init__(self, shelf: Shelf, lane: Lane, limits: Limits) -> None:
        self._shelf, self._lane, self._limits = shelf, lane, limits
        self._kept: OrderedDict[tuple[str, str, int], Picture] = OrderedDict()
        self._drawing: dict[tuple[str, str, int], asyncio.Task[Picture]] = {}
        self.nbytes = self.hits = self.misses = 0

    async def get(self, id: str, digest: str, longest: int) -> Picture:
        """The picture of a page that the index lists, no side much longer than asked for."""
        key = (id, digest, self._limits.side(longest))
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self.hits += 1
            return kept
        if key not in self._drawing:
            self.misses += 1
            task = asyncio.create_task(self._draw(key))
            self._drawing[key] = task
            task.add_done_callback(lambda done: self._drawn(key, done))
        return await asyncio.shield(self._drawing[key])

    async def _draw(self, key: tuple[str, str, int]) -> Picture:
        return await self._lane.run(functools.partial(self._jpeg, key[0], key[2]))

    def _drawn(self, key: tuple[str, str, int], task: asyncio.Task[Picture]) -> None:
        del self._drawing[key]
        if task.cancelled() or task.exception() is not None:
            return
        picture = task.result()
        if len(picture.jpeg) > self._limits.picture_bytes:
            return
        self._kept[key] = picture
        self.nbytes += len(picture.jpeg)
        while self.nbytes > self._limits.picture_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.nbytes -= len(oldest.jpeg)

    def _jpeg(self, id: str, side: int) -> Picture:
        image = self._shelf.page(id).image(side).convert("RGB")
        image.thumbnail((side, side))
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=_QUALITY, subsampling=0, optimize=True)
        jpeg = stream.getvalue()
        return Picture(jpeg, hashlib.blake2b(jpeg, digest_size=12).hexdigest())
