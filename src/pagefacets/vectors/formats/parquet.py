"""Parquet files: the column layout of `columns.py`, read by row groups.

A page read alone costs its row group, which is kept until another is needed; pages read in order stream with bounded
memory however large the row groups are.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from pagefacets.errors import FileFormatError
from pagefacets.extras import require
from pagefacets.vectors.formats.columns import Table, batches_of, reading, schema_of
from pagefacets.vectors.formats.record import Head, Reader, Record

__all__ = ["read", "write"]

_GROUP_BYTES = 8 << 20
_PAGES_AT_ONCE = 16
_NAME = "a Parquet file"


def read(path: Path) -> Reader:
    require("pyarrow", extra="arrow")
    with reading(path, _NAME):
        source = _Groups(path)
    return Table(path, _NAME, source)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    parquet = require("pyarrow.parquet", extra="arrow")
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
        parquet = require("pyarrow.parquet", extra="arrow")
        self._file = parquet.ParquetFile(path)
        self.schema = self._file.schema_arrow
        sizes = [self._file.metadata.row_group(number).num_rows for number in range(self._file.num_row_groups)]
        if min(sizes, default=0) < 0:
            raise FileFormatError(f"{path.name} is damaged (a row group of {min(sizes)} rows): write it again")
        self._starts: list[int] = [0, *itertools.accumulate(sizes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def block(self, index: int, columns: Sequence[str]) -> tuple[int, Sequence[Any]]:
        group = bisect.bisect_right(self._starts, index) - 1
        return self._starts[group], self._file.read_row_group(group, columns=list(columns)).to_batches()

    def scan(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
        first = bisect.bisect_right(self._starts, start) - 1
        last = bisect.bisect_left(self._starts, stop)
        at = self._starts[first]
        for batch in self._file.iter_batches(
            _PAGES_AT_ONCE, row_groups=list(range(first, last)), columns=list(columns), use_threads=False
        ):
            piece = batch.slice(max(0, start - at), stop - max(at, start)) if at < stop else batch.slice(0, 0)
            at += batch.num_rows
            if piece.num_rows:
                yield piece
            if at >= stop:
                return
