"""The column layout, shared by the Arrow, Parquet and Lance formats: one row per page.

Written is one binary column of raw little-endian rows: Parquet writes it five times and reads it over ten times faster
than nested lists, Lance writes it two to seven times faster.

| column | type | meaning |
|---|---|---|
| `vectors` | binary | the page's vectors, row by row, in the type and dimension the schema's metadata names |
| `count` | int32 | how many vectors the page has |
| `id` | string | null means none, here and below |
| `grid_columns`, `grid_rows` | int32 | the patch grid |
| `image_mask` | binary | one byte per vector |
| `importance`, `boxes` | binary | float32, one and four per vector |
| `assignment`, `demand` | binary | facets only: int32 and float32, one per source row |
| `offset` | float64 | facets only |
| `method` | string | facets only |

The schema's metadata key `pagefacets.vectors` holds a JSON map: `version` (1), `dtype`, `dim`, `kind` ("pages" or
"facets") and `metadata`. A table without that key is read when it has a column of nested lists, fixed in size or not,
of floating-point numbers: the one named `vectors`, `embedding`, `embeddings`, `page_vectors` or `vector`, else the only
one there is; ids come from `id`, `page_id` or `doc_id`.
"""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, final, runtime_checkable

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from pagefacets.errors import FileFormatError
from pagefacets.vectors.formats.record import DTYPES, Head, Kind, Labels, Record, dtype_name, stamp, unstamp

__all__ = ["Columns", "Source", "Table", "batches_of", "reading", "schema_of"]

Batch: TypeAlias = Any
"""A pyarrow.RecordBatch; pyarrow is an optional package, so annotations cannot name its types."""

_KEY = "pagefacets.vectors"
_VECTOR_NAMES = ("vectors", "embedding", "embeddings", "page_vectors", "vector")
_ID_NAMES = ("id", "page_id", "doc_id")
_BINARY = {
    "pages": {"image_mask": torch.uint8, "importance": torch.float32, "boxes": torch.float32},
    "facets": {"assignment": torch.int32, "demand": torch.float32},
}


def schema_of(head: Head, metadata: Mapping[str, str]) -> Any:
    """The schema of a table that holds such pages."""
    import pyarrow as pa

    note = {
        "version": "1",
        "dtype": dtype_name(head.dtype),
        "dim": head.dim,
        "kind": head.kind,
        "metadata": dict(metadata),
    }
    fields = [("vectors", pa.binary()), ("count", pa.int32()), ("id", pa.string())]
    fields += [(name, pa.binary()) for name in _BINARY[head.kind]]
    if head.kind == "pages":
        fields += [("grid_columns", pa.int32()), ("grid_rows", pa.int32())]
    else:
        fields += [("offset", pa.float64()), ("method", pa.string())]
    return pa.schema(fields, metadata={_KEY: json.dumps(note)})


def batches_of(records: Iterator[Record], schema: Any, target_bytes: int) -> Iterator[Batch]:
    """Record batches of about `target_bytes` each, at least one page."""
    import pyarrow as pa

    rows: list[dict[str, object]] = []
    size = 0
    for record in records:
        rows.append(_row(record))
        size += record.vectors.numel() * record.vectors.element_size()
        if size >= target_bytes:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)


@contextmanager
def reading(path: Path, format: str) -> Iterator[None]:
    """What pyarrow and lance raise on damaged files, as one sentence."""
    import pyarrow as pa

    try:
        yield
    except FileFormatError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, RuntimeError) as error:
        raise FileFormatError(
            f"{path.name} is truncated or not {format}: copy or write it again ({str(error).partition(chr(10))[0]})"
        ) from error


@runtime_checkable
class Source(Protocol):
    """Where a table's rows come from."""

    @property
    def schema(self) -> Any: ...

    def __len__(self) -> int: ...

    def block(self, index: int, columns: Sequence[str]) -> tuple[int, Sequence[Batch]]:
        """The rows the format reads at once to get at row `index`, and the number of the first of them."""
        ...

    def scan(self, start: int, stop: int, columns: Sequence[str]) -> Iterator[Batch]:
        """Exactly the rows from `start` to `stop`, in order."""
        ...


@final
class Table:
    """Pages in the rows of a table."""

    def __init__(self, path: Path, format: str, source: Source, memory: UInt8[Tensor, " B"] | None = None) -> None:
        self._path, self._format, self._source = path, format, source
        with reading(path, format):
            self._columns = Columns(path, source.schema, memory)
        self._block: tuple[int, Sequence[Batch]] = (0, ())
        self.labels = Labels()
        self.metadata = self._columns.metadata
        if len(source) == 0:
            raise FileFormatError(f"{path.name} holds no pages: write it again with at least one")
        if self._columns.head is None:
            first = next(self.records(0, 1)).vectors
            self.head = Head(first.dtype, first.shape[1], "pages")
        else:
            self.head = self._columns.head

    def __len__(self) -> int:
        return len(self._source)

    def counts(self) -> Int[Tensor, " P"]:
        return self._counts

    def record(self, index: int) -> Record:
        first, batches = self._block
        row = index - first
        if not 0 <= row < sum(batch.num_rows for batch in batches):
            with reading(self._path, self._format):
                first, batches = self._block = self._source.block(index, self._columns.names)
            row = index - first
        for batch in batches:
            if row < batch.num_rows:
                return self._columns.record(batch, row, index)
            row -= batch.num_rows
        raise FileFormatError(f"{self._path.name}, page {index}: the row is missing; copy or write the file again")

    def records(self, start: int, stop: int) -> Iterator[Record]:
        number = start
        with reading(self._path, self._format):
            for batch in self._source.scan(start, stop, self._columns.names):
                for row in range(batch.num_rows):
                    yield self._columns.record(batch, row, number)
                    number += 1
        if number < stop:
            raise FileFormatError(f"{self._path.name}, page {number}: the row is missing; copy or write the file again")

    @functools.cached_property
    def _counts(self) -> Int[Tensor, " P"]:
        with reading(self._path, self._format):
            scan = self._source.scan(0, len(self), [self._columns.counted])
            found = list(itertools.chain.from_iterable(map(self._columns.counts, scan)))
        if len(found) != len(self):
            raise FileFormatError(
                f"{self._path.name} promises {len(self)} pages and holds {len(found)}: copy or write the file again"
            )
        return torch.tensor(found)


@final
class Columns:
    """Which columns of a schema make up a page, and how to cut a page out of a batch of rows."""

    def __init__(self, path: Path, schema: Any, memory: UInt8[Tensor, " B"] | None) -> None:
        self._path, self._memory = path, memory
        self.head: Head | None = None
        note = (schema.metadata or {}).get(_KEY.encode())
        if note is None:
            self._vectors = _nested_column(path, schema)
            self._id = next((name for name in _ID_NAMES if name in schema.names), None)
            self.names = [self._vectors] if self._id is None else [self._vectors, self._id]
            self.counted = self._vectors
            self.metadata = _texts(schema.metadata or {})
            return
        self.head, self.metadata = _read_note(path, note)
        self.names = schema_of(self.head, {}).names
        self.counted = "count"
        for field in schema_of(self.head, {}):
            if schema.names.count(field.name) != 1 or schema.field(field.name).type != field.type:
                raise FileFormatError(
                    f"{path.name} needs one column {field.name!r} of type {field.type}: write it with save_vectors"
                )

    def counts(self, batch: Batch) -> list[int]:
        """How many vectors each page in a batch of the column `counted` has."""
        import pyarrow.compute as pc

        column = batch.column(self.counted)
        if self.head is None:
            column = pc.list_value_length(_storage(column))
        return [size or 0 for size in column.to_pylist()]

    def record(self, batch: Batch, row: int, number: int) -> Record:
        """Row `row` of a batch, which is page `number` of the file."""
        where = f"{self._path.name}, page {number}"
        if self.head is None:
            value = None if self._id is None else batch.column(self._id)[row].as_py()
            nested = self._nested(_storage(batch.column(self._vectors)), row, where)
            return Record(nested, id=None if value is None else str(value))
        columns = {name: batch.column(name) for name in self.names}
        fields: dict[str, Any] = {
            name: self._raw(columns[name], row, dtype, where) for name, dtype in _BINARY[self.head.kind].items()
        }
        count, dim = columns["count"][row].as_py(), self.head.dim
        vectors = self._raw(columns["vectors"], row, self.head.dtype, where)
        if vectors is None or count is None or vectors.shape[0] != count * dim:
            size = 0 if vectors is None else vectors.shape[0]
            raise FileFormatError(f"{where}: {size} numbers are not {count} vectors of dimension {dim}: write it again")
        if self.head.kind == "pages":
            grid = (columns["grid_columns"][row].as_py(), columns["grid_rows"][row].as_py())
            mask, boxes = fields["image_mask"], fields["boxes"]
            fields["grid"] = None if None in grid else grid
            fields["image_mask"] = None if mask is None else mask.bool()
            fields["boxes"] = boxes if boxes is None or boxes.shape[0] % 4 else boxes.view(-1, 4)
        else:
            fields["offset"], fields["method"] = columns["offset"][row].as_py(), columns["method"][row].as_py()
        return Record(vectors.view(-1, dim), id=columns["id"][row].as_py(), **fields)

    def _raw(self, column: Any, row: int, dtype: torch.dtype, where: str) -> Tensor | None:
        if column.null_count and column.slice(row, 1).null_count:
            return None
        _, ends, data = column.buffers()
        first = column.offset + row
        start, stop = struct.unpack_from("=2i", ends, 4 * first)
        if (stop - start) % dtype.itemsize:
            raise FileFormatError(f"{where}: {stop - start} bytes are no whole number of {dtype}: write it again")
        return torch.empty(0, dtype=dtype) if start == stop else self._tensor(data.slice(start, stop - start), dtype)

    def _tensor(self, buffer: Any, dtype: torch.dtype) -> Tensor:
        """A buffer as a tensor: a view where it lies in the mapped file, else a copy."""
        if buffer.size == 0:
            return torch.empty(0, dtype=dtype)
        start = -1 if self._memory is None else buffer.address - self._memory.data_ptr()
        if self._memory is not None and start >= 0 and start + buffer.size <= self._memory.shape[0]:
            raw = self._memory[start : start + buffer.size]
            return (raw if start % dtype.itemsize == 0 else raw.clone()).view(dtype)
        return torch.frombuffer(bytearray(memoryview(buffer)), dtype=dtype)

    def _nested(self, column: Any, row: int, where: str) -> Tensor:
        import pyarrow.compute as pc

        inner = column[row].values
        if inner is None or inner.null_count:
            raise FileFormatError(f"{where}: the vectors are null: leave such a page out")
        if len(inner) == 0:
            raise FileFormatError(f"{where} is empty (no vectors): leave such a page out")
        inner = _storage(inner)
        widths = pc.min_max(pc.list_value_length(inner)).as_py()
        if widths["min"] != widths["max"]:
            raise FileFormatError(
                f"{where}: its vectors have {widths['min']} to {widths['max']} numbers: all need the same dimension"
            )
        flat = inner.flatten()
        if flat.null_count:
            raise FileFormatError(f"{where}: {flat.null_count} of the numbers are null: leave such a page out")
        dtype = DTYPES[_float_name(flat.type) or "float32"]
        values = flat.buffers()[1].slice(flat.offset * dtype.itemsize, len(flat) * dtype.itemsize)
        return self._tensor(values, dtype).view(len(inner), -1)


def _row(record: Record) -> dict[str, object]:
    columns, rows = record.grid or (None, None)
    return {
        "vectors": _bytes(record.vectors),
        "count": record.vectors.shape[0],
        "id": record.id,
        "grid_columns": columns,
        "grid_rows": rows,
        "image_mask": _bytes(record.image_mask),
        "importance": _bytes(record.importance),
        "boxes": _bytes(record.boxes),
        "assignment": _bytes(record.assignment),
        "demand": _bytes(record.demand),
        "offset": record.offset,
        "method": record.method,
    }


def _bytes(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _read_note(path: Path, note: bytes) -> tuple[Head, dict[str, str]]:
    try:
        content = json.loads(note)
    except (ValueError, RecursionError):
        content = None
    match content:
        case {
            "version": str(version),
            "dtype": str(dtype),
            "dim": int(dim),
            "kind": "pages" | "facets" as kind,
            "metadata": dict(metadata),
        } if dtype in DTYPES and dim > 0:
            unstamp({**stamp({}), _KEY: version}, path)
            named: Kind = kind
            return Head(DTYPES[dtype], dim, named), metadata
        case _:
            raise FileFormatError(f"{path.name}: the schema's {_KEY!r} entry is damaged: write the file again")


def _texts(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    found = {}
    for key, value in metadata.items():
        try:
            found[key.decode()] = value.decode()
        except UnicodeDecodeError:
            continue
    return found


def _nested_column(path: Path, schema: Any) -> str:
    nested = [field.name for field in schema if _nested_float(field.type)]
    named = [name for name in _VECTOR_NAMES if name in schema.names]
    for name in named:
        if name in nested:
            return name
    if len(nested) == 1 and not named:
        return str(nested[0])
    remedy = f"name one of them {_VECTOR_NAMES[0]!r}" if len(nested) > 1 else "one row must hold all vectors of a page"
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    raise FileFormatError(
        f"{path.name} needs one column of nested lists of floating-point numbers and has {columns}: {remedy}"
    )


def _nested_float(kind: Any) -> bool:
    inner = _inner(kind)
    innermost = None if inner is None else _inner(inner)
    return innermost is not None and _float_name(innermost) is not None


def _inner(kind: Any) -> Any | None:
    from pyarrow import types

    kind = getattr(kind, "storage_type", kind)
    listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return kind.value_type if listed else None


def _float_name(kind: Any) -> str | None:
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind))


def _storage(column: Any) -> Any:
    return getattr(column, "storage", column)
