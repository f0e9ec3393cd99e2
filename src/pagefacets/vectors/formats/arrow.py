"""Arrow IPC files (`.arrow`, `.feather`): the column layout of `columns.py`, mapped when read.

Both the file and the stream format are read; the file format is written, uncompressed. Compressed files are read one
record batch at a time, of which the latest is kept, and streams, which have no index, are walked through once when
opened.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from pagefacets.vectors.formats.columns import Table, batches_of, reading, schema_of
from pagefacets.vectors.formats.record import Head, Reader, Record
from pagefacets.vectors.formats.stored import map_file

__all__ = ["read", "write"]

_BATCH_BYTES = 16 << 20
_NAME = "an Arrow IPC file"


def read(path: Path) -> Reader:
    import pyarrow as pa

    memory = map_file(path)
    with reading(path, _NAME):
        source = _Batches.of(pa.py_buffer(memory.numpy()))
    return Table(path, _NAME, source, memory)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    import pyarrow as pa

    schema = schema_of(head, metadata)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches_of(records, schema, _BATCH_BYTES):
            writer.write_batch(batch)


@final
class _Batches:
    def __init__(self, schema: Any, sizes: Iterable[int], batch: Callable[[int], Any]) -> None:
        self.schema, self._batch = schema, batch
        self._starts = [0, *itertools.accumulate(sizes)]
        self._latest: tuple[int, tuple[str, ...], Any] = (-1, (), None)

    @classmethod
    def of(cls, buffer: Any) -> _Batches:
        from pyarrow import ipc

        if bytes(buffer[:6]) == b"ARROW1":
            file = ipc.open_file(buffer)
            sizes = (file.get_batch(number).num_rows for number in range(file.num_record_batches))
            return cls(file.schema, sizes, file.get_batch)
        with ipc.open_stream(buffer) as stream:
            batches = list(stream)
        return cls(stream.schema, (batch.num_rows for batch in batches), batches.__getitem__)

    def __len__(self) -> int:
        return self._starts[-1]

    def block(self, index: int, columns: Sequence[str]) -> tuple[int, Sequence[Any]]:
        number = bisect.bisect_right(self._starts, index) - 1
        known, names, batch = self._latest
        if (known, names) != (number, tuple(columns)):
            batch = self._batch(number).select(list(columns))
            batch.validate(full=True)
            self._latest = (number, tuple(columns), batch)
        return self._starts[number], [batch]

    def scan(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
        while start < stop:
            first, (batch,) = self.block(start, columns)
            piece = batch.slice(start - first, stop - start)
            yield piece
            start += piece.num_rows
