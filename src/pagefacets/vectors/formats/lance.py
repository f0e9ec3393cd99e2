"""Lance tables: the column layout of `columns.py`; a page read alone is taken alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from pagefacets.vectors.formats.columns import Table, batches_of, reading, schema_of
from pagefacets.vectors.formats.record import Head, Reader, Record

__all__ = ["VERSIONS", "is_table", "read", "write"]

VERSIONS = "_versions"

_BATCH_BYTES = 4 << 20
_PAGES_AT_ONCE = 32
_NAME = "a Lance table"


def is_table(path: Path) -> bool:
    """Whether a folder holds a Lance table."""
    return (path / VERSIONS).is_dir()


def read(path: Path) -> Reader:
    import lance

    with reading(path, _NAME):
        source = _Rows(lance.dataset(str(path)))
    return Table(path, _NAME, source)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    import lance
    import pyarrow as pa

    schema = schema_of(head, metadata)
    raised: list[BaseException] = []

    def batches() -> Iterator[Any]:
        # Lance turns whatever a batch source raises into its own OSError; the caller wants the original.
        try:
            yield from batches_of(records, schema, _BATCH_BYTES)
        except BaseException as error:
            raised.append(error)
            raise

    try:
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), str(path), mode="create")
    except OSError as error:
        if raised:
            raise raised[0] from error
        raise


@final
class _Rows:
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.schema = dataset.schema
        self._rows = dataset.count_rows()

    def __len__(self) -> int:
        return int(self._rows)

    def block(self, index: int, columns: Sequence[str]) -> tuple[int, Sequence[Any]]:
        return index, self._dataset.take([index], columns=list(columns)).to_batches()

    def scan(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
        for first in range(start, stop, _PAGES_AT_ONCE):
            size = min(_PAGES_AT_ONCE, stop - first)
            yield from self._dataset.to_table(columns=list(columns), offset=first, limit=size).to_batches()
