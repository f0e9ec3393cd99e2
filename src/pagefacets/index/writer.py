"""Writing an index: every change is one commit, so that a reader or a restart finds it whole."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, final

from pagefacets.errors import InputError
from pagefacets.index.checks import CHECKS, record
from pagefacets.index.format import Entry, Manifest, row_of, schema
from pagefacets.index.reader import (
    GRACE,
    PACKED,
    TABLE,
    Reading,
    dataset,
    first_line,
    is_index,
    manifest_of,
    refuse_cut,
)
from pagefacets.vectors.caching.locks import FileLock

__all__ = ["POOL", "Held", "Writer"]

_LOCK = "write.lock"
POOL = "pool.safetensors"
# Rows that make a piece of the table large enough to be left alone, and those in memory while pieces are joined.
_PIECE, _AT_ONCE = 8192, 256
# So many small pieces are joined.
_PIECES = 64


class Held(NamedTuple):
    """What a writer knows of a page that is there."""

    root: str | None
    source: str
    digest: str


@final
class Writer:
    """The one process that changes an index; a second one is told so. A context manager, because it holds a lock.

    What a process that was killed left behind is no part of any version, and the next commit goes on from the last.
    """

    def __init__(self, path: Path, lock: FileLock) -> None:
        self.path, self._lock = path, lock
        self._table = dataset(path)
        self.manifest = manifest_of(self._table, path)
        columns = ("id", "root", "source", "digest")
        with Reading(path):
            refuse_cut(path, self._table)
            listed = self._table.to_table(columns=list(columns))
        ids, *values = (listed[name].to_pylist() for name in columns)
        self.held = {name: Held(*about) for name, *about in zip(ids, *values, strict=True)}
        # Of a commit after which its writer was killed, too.
        self._record()

    @classmethod
    def create(cls, path: Path, manifest: Manifest, prepare: Callable[[Path], None]) -> Writer:
        """The index at `path`, made where there is none; `prepare` then puts what belongs beside the table there."""
        import lance

        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is a file: choose another path for the index")
        if path.is_dir() and not _only_ours(path):
            raise InputError(f"{path} holds something else than an index: choose another path")
        if not path.parent.is_dir():
            raise InputError(f"the folder {path.parent} does not exist: create it first")
        try:
            path.mkdir(exist_ok=True)
            lock = _locked(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            begun = is_index(path)
            if not begun or _void(path, manifest):
                prepare(path)
                if not begun:
                    _clear(path / TABLE)
                    (path / CHECKS).unlink(missing_ok=True)
                mode = "overwrite" if begun else "create"
                with _Writing(path):
                    lance.write_dataset(schema(manifest).empty_table(), str(path / TABLE), mode=mode)
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: Path) -> Writer:
        dataset(path)
        try:
            lock = _locked(path)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            return cls(path, lock)
        except BaseException:
            lock.release()
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def put(self, entries: Sequence[Entry]) -> None:
        """Add pages, each in the place of the one that has its id, as one commit."""
        if not entries:
            return
        import pyarrow as pa

        table = pa.Table.from_pylist([row_of(entry, self.manifest) for entry in entries], schema=self._table.schema)
        with _Writing(self.path):
            if any(entry.id in self.held for entry in entries):
                merge = self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
                merge.execute(table)
            else:
                self._table.insert(table)
        self._committed()
        self.held |= {entry.id: Held(entry.root, entry.source, entry.digest) for entry in entries}

    def delete(self, ids: Iterable[str]) -> int:
        """Remove pages by id as one commit; returns how many were there."""
        gone = sorted(self.held.keys() & set(ids))
        if gone:
            with _Writing(self.path):
                self._table.delete(f"id IN ({', '.join(map(_quoted, gone))})")
            self._committed()
            for name in gone:
                del self.held[name]
        return len(gone)

    def move(self, sources: Iterable[str], root: str) -> None:
        """Note that documents lie below another folder now."""
        moved = ", ".join(map(_quoted, sorted(set(sources))))
        with _Writing(self.path):
            elsewhere = f"(root IS NULL OR root <> {_quoted(root)})"
            self._table.update({"root": _quoted(root)}, where=f"source IN ({moved}) AND {elsewhere}")
        self._committed()

    def tidy(self) -> None:
        """Join the pieces that commits left, once there are many."""
        small = sum(fragment.metadata.physical_rows < _PIECE for fragment in self._table.get_fragments())
        if small > _PIECES:
            self.compact()

    def compact(self, *, keep_versions: bool = True) -> None:
        """Rewrite what many small commits left; older versions stay for an hour, for those who still read them."""
        with _Writing(self.path):
            self._table.optimize.compact_files(
                target_rows_per_fragment=_PIECE,
                materialize_deletions_threshold=0.0,
                batch_size=_AT_ONCE,
                num_threads=2,
            )
            self._committed()
            # Whoever holds the lock is the only writer: a file that no version names was left by one that was killed.
            self._table.cleanup_old_versions(
                older_than=GRACE if keep_versions else timedelta(0), delete_unverified=True
            )

    def _committed(self) -> None:
        self._table = dataset(self.path)
        self._record()

    def _record(self) -> None:
        with _Writing(self.path):
            record(self.path / CHECKS, self.path / TABLE, self._table)


@final
class _Writing:
    """Says in one sentence what the system or Lance says of a full or forbidden disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | RuntimeError) and not isinstance(error, InputError):
            raise _unwritable(self.path, error) from error


def _unwritable(path: Path, error: BaseException) -> InputError:
    why = getattr(error, "strerror", None) or first_line(error)
    return InputError(f"{path} cannot be written ({why}): mend that and run it again, what was committed stays")


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _void(path: Path, manifest: Manifest) -> bool:
    """Whether an index has no page yet and was begun with other choices, which then bind nobody."""
    table = dataset(path)
    return int(table.count_rows()) == 0 and manifest_of(table, path) != manifest


def _only_ours(path: Path) -> bool:
    ours, begun = (TABLE, PACKED, CHECKS, _LOCK, POOL), (f".{POOL}.", f".{CHECKS}.")
    return all(entry.name in ours or entry.name.startswith(begun) for entry in path.iterdir())


def _clear(table: Path) -> None:
    """Remove what a process left that was killed before its first commit."""
    if not table.exists():
        return
    if not table.is_dir() or any(entry.name != "data" and not entry.name.startswith("_") for entry in table.iterdir()):
        raise InputError(f"{table} is no table of an index: choose another path")
    shutil.rmtree(table)


def _locked(path: Path) -> FileLock:
    """The lock of the index; when its holder dies, the system takes it back."""
    lock = FileLock(path / _LOCK)
    if not lock.take():
        raise InputError(f"{path} is being written by another process: wait until it is done")
    return lock
