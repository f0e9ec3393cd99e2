"""Parquet files: the column layout of `columns.py`, read by row groups.

A page read alone costs its row group, which is kept until another is needed. A group too large to keep, as writers that
are not told otherwise make them, is decoded in small batches up to the page instead. A reading that is left off is
parked and goes on from there when a later page of the same group is asked for, so any ascending order decodes a group
once; a step back starts the group anew.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from pagefacets.errors import FileFormatError
from pagefacets.vectors.formats.columns import Table, batches_of, reading, schema_of
from pagefacets.vectors.formats.record import Head, Reader, Record

__all__ = ["read", "write"]

_GROUP_BYTES = 8 << 20
_PAGES_AT_ONCE = 16
_LARGEST_KEPT = 64 << 20
_READ_BYTES = 1 << 20
_MOST_PARKED = 2
_NAME = "a Parquet file"


def read(path: Path) -> Reader:
    with reading(path, _NAME):
        source = _Groups(path)
    return Table(path, _NAME, source)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    from pyarrow import parquet

    schema = schema_of(head, metadata)
    compression = {name: "none" if name == "vectors" else "zstd" for name in schema.names}
    with parquet.ParquetWriter(
        path, schema, compression=compression, use_dictionary=False, write_statistics=False
    ) as writer:
        for batch in batches_of(records, schema, _GROUP_BYTES):
            writer.write_batch(batch)


@final
class _Groups:
    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        # Unless told so, pyarrow fetches all columns of a group before the first row of it.
        self._file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=_READ_BYTES)
        self.schema = self._file.schema_arrow
        sizes = [self._file.metadata.row_group(number).num_rows for number in range(self._file.num_row_groups)]
        if min(sizes, default=0) < 0:
            raise FileFormatError(f"{path.name} is damaged (a row group of {min(sizes)} rows): write it again")
        self._starts: list[int] = [0, *itertools.accumulate(sizes)]
        self._parked: tuple[_Cursor, ...] = ()

    def __len__(self) -> int:
        return self._starts[-1]

    def block(self, index: int, columns: Sequence[str]) -> tuple[int, Sequence[Any]]:
        group = self._group(index)
        if self._decoded_bytes(group) <= _LARGEST_KEPT:
            return self._starts[group], self._file.read_row_group(group, columns=list(columns)).to_batches()
        cursor = self._cursor(index, columns)
        try:
            return (cursor.first, [cursor.batch]) if cursor.reach(index) else (index, [])
        finally:
            self._park(cursor)

    def scan(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
        if start >= stop:
            return
        cursor = self._cursor(start, columns)
        try:
            while start < stop and cursor.reach(start):
                piece = cursor.batch.slice(start - cursor.first, stop - start)
                yield piece
                start += piece.num_rows
        finally:
            self._park(cursor)

    def _group(self, index: int) -> int:
        return bisect.bisect_right(self._starts, index) - 1

    def _decoded_bytes(self, group: int) -> int:
        """About what all columns of a group take in memory; a dictionary makes numbers smaller in the file."""
        about = self._file.metadata.row_group(group)
        columns = map(about.column, range(about.num_columns))
        return sum(max(column.total_uncompressed_size, 8 * column.num_values) for column in columns)

    def _cursor(self, index: int, columns: Sequence[str]) -> _Cursor:
        """A reading that has not passed row `index`: the parked one nearest to it, or one from its group's start."""
        first = self._starts[self._group(index)]
        for cursor in sorted(self._parked, key=lambda cursor: cursor.end, reverse=True):
            if cursor.free.acquire(blocking=False):
                if cursor.columns == tuple(columns) and cursor.first <= index and cursor.end >= first:
                    return cursor
                cursor.free.release()
        batches = self._file.iter_batches(
            _PAGES_AT_ONCE,
            row_groups=list(range(self._group(index), self._file.num_row_groups)),
            columns=list(columns),
            use_threads=False,
        )
        return _Cursor(batches, first, tuple(columns))

    def _park(self, cursor: _Cursor) -> None:
        others = [other for other in self._parked if other is not cursor]
        self._parked = (*others, cursor)[-_MOST_PARKED:] if not cursor.ended else tuple(others)
        cursor.free.release()


@final
class _Cursor:
    """Batches of rows on their way through a file, of which the latest, with rows `first` to `end`, is held."""

    def __init__(self, batches: Iterator[Any], first: int, columns: tuple[str, ...]) -> None:
        self._batches = batches
        self.columns = columns
        self.batch: Any = None
        self.first = self.end = first
        self.ended = False
        # Threads that read the same file, or a reading left off in the midst of another, never share a cursor.
        self.free = threading.Lock()
        self.free.acquire()

    def reach(self, row: int) -> bool:
        """Go on until the batch that holds `row`; whether the file has that row."""
        while row >= self.end and not self.ended:
            # Batches that raise do not go on: the end is taken back only when there is one more.
            self.ended = True
            following = next(self._batches, None)
            if following is not None:
                self.ended = False
                self.batch, self.first, self.end = following, self.end, self.end + following.num_rows
        return row < self.end
