"""Shards: files of a few encoded pages or queries each, and beside each a record that makes it count."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from pagefacets.data import PageVectors
from pagefacets.vectors.caching.locks import FileLock
from pagefacets.vectors.caching.manifest import ShardFile, writing
from pagefacets.vectors.files import open_vectors, save_vectors
from pagefacets.vectors.formats.aside import replacing

__all__ = ["Chunk", "Held", "Item", "Shard", "Shards", "Skip", "chunks_of"]

_RECORD = ".json"
_VECTORS = ".safetensors"
# A shard's file or record, or what was left of writing one.
_OURS = re.compile(rf"\.?(?P<key>[0-9a-f]{{32}})({re.escape(_RECORD)}|{re.escape(_VECTORS)})")


@runtime_checkable
class Item(Protocol):
    """A page or a query: with another digest it has to be encoded again."""

    @property
    def id(self) -> str: ...

    @property
    def digest(self) -> str: ...


@final
@dataclass(frozen=True)
class Held:
    """An item whose vectors a shard holds."""

    id: str
    digest: str
    vectors: int


@final
@dataclass(frozen=True)
class Skip:
    """An item that a shard lacks because it could not be read, and why."""

    id: str
    digest: str
    why: str


@final
@dataclass(frozen=True)
class Chunk:
    """Items that become one shard; the key follows from them, so that every process names it alike."""

    items: tuple[Item, ...]

    @property
    def key(self) -> str:
        named = json.dumps([[item.id, item.digest] for item in self.items])
        return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()


@final
@dataclass(frozen=True)
class Shard:
    """The record of a finished shard: what its file holds, in order, and what it lacks."""

    key: str
    held: tuple[Held, ...]
    skipped: tuple[Skip, ...]
    file: ShardFile


def chunks_of(items: Iterable[Item], size: int) -> list[Chunk]:
    """Items in runs of `size`."""
    supply = iter(items)
    return [Chunk(tuple(run)) for run in iter(lambda: list(itertools.islice(supply, size)), [])]


@final
class Shards:
    """The shards of one kind, in a folder of their own.

    A shard's file is written first and its record second, each aside and then in one step into its place: where there
    is a record, the shard is whole.
    """

    def __init__(self, folder: Path, locks: Path) -> None:
        self.folder = folder
        self._locks = locks

    def path(self, key: str) -> Path:
        """Where the vectors of a shard lie."""
        return self.folder / f"{key}{_VECTORS}"

    def load(self) -> list[Shard]:
        """The finished shards, by key."""
        found = (_parsed(record) for record in sorted(self.folder.glob(f"*{_RECORD}")))
        return [shard for shard in found if shard is not None]

    def finished(self, key: str) -> bool:
        """Whether a shard is there and counts."""
        return self._record(key).exists()

    def is_whole(self, shard: Shard) -> bool:
        """Whether a shard's file still has the length and the bytes that were recorded."""
        path = self.path(shard.key)
        try:
            return path.stat().st_size == shard.file.nbytes and _checksum(path) == shard.file.checksum
        except OSError:
            return False

    def claim(self, key: str) -> FileLock | None:
        """The right to write a shard, or None while another process has it."""
        lock = FileLock(self._locks / f"{self.folder.name}-{key}")
        return lock if lock.take() else None

    def write(
        self, chunk: Chunk, pages: Sequence[PageVectors], skipped: Sequence[Skip], metadata: Mapping[str, str]
    ) -> Shard:
        """Write a shard and its record; `pages`, at least one, are those of the chunk's items that could be read."""
        key, path = chunk.key, self.path(chunk.key)
        digests = {item.id: item.digest for item in chunk.items}
        held = tuple(Held(str(page.id), digests[str(page.id)], page.n) for page in pages)
        with writing(self.folder):
            save_vectors(path, pages, metadata=metadata)
            shard = Shard(key, held, tuple(skipped), ShardFile(path.name, path.stat().st_size, _checksum(path)))
            with replacing(self._record(key)) as partial:
                partial.write_text(json.dumps(_columns(shard)), encoding="ascii")
        return shard

    def without(self, shard: Shard, dead: Collection[str]) -> Shard:
        """A copy of a shard that lacks the items in `dead`, under the key of what is left; the old one stays."""
        held = [one for one in shard.held if one.id not in dead]
        skipped = [one for one in shard.skipped if one.id not in dead]
        with open_vectors(self.path(shard.key)) as file:
            pages = [page for page in file if page.id not in dead]
            return self.write(Chunk((*held, *skipped)), pages, skipped, file.metadata)

    def discard(self, key: str) -> None:
        """Remove a shard: first the record, then the vectors."""
        self._record(key).unlink(missing_ok=True)
        self.path(key).unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what killed processes left behind; to be called while no other is at work."""
        for entry in list(self.folder.iterdir()):
            named = _OURS.match(entry.name)
            if named is None:
                continue
            key, whole = named["key"], not entry.name.startswith(".")
            if not whole:
                entry.unlink(missing_ok=True)
            elif entry.suffix == _RECORD and _parsed(entry) is None:
                self.discard(key)
            elif entry.suffix == _VECTORS and not self.finished(key):
                entry.unlink(missing_ok=True)
        for lock in list(self._locks.glob(f"{self.folder.name}-*")):
            lock.unlink(missing_ok=True)

    def _record(self, key: str) -> Path:
        return self.folder / f"{key}{_RECORD}"


def _columns(shard: Shard) -> dict[str, object]:
    return {
        "held": [[one.id, one.digest, one.vectors] for one in shard.held],
        "skipped": [[one.id, one.digest, one.why] for one in shard.skipped],
        "bytes": shard.file.nbytes,
        "blake2b": shard.file.checksum,
    }


def _parsed(record: Path) -> Shard | None:
    """A shard by its record; a record that is damaged counts as none."""
    try:
        content: Any = json.loads(record.read_bytes())
        held = tuple(Held(str(name), str(digest), int(vectors)) for name, digest, vectors in content["held"])
        skipped = tuple(Skip(str(name), str(digest), str(why)) for name, digest, why in content["skipped"])
        file = ShardFile(f"{record.stem}{_VECTORS}", int(content["bytes"]), str(content["blake2b"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return Shard(record.stem, held, skipped, file)


def _checksum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
