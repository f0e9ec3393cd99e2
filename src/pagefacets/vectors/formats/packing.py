"""Packing pages into a few long arrays as they arrive, without holding them in memory."""

from __future__ import annotations

import array
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast, final

import torch
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.vectors.formats.record import Head, Record
from pagefacets.vectors.formats.stored import map_stream

__all__ = ["NAMES", "Array", "Packer", "write_bytes"]

# Every array a packed file may hold, in the order in which it is written: wide elements first, so that each array
# starts on a multiple of its element size wherever the vectors end on one of 8 bytes.
NAMES = (
    "vectors",
    "offsets",
    "id_offsets",
    "source_offsets",
    "method_offsets",
    "offset",
    "grid",
    "importance",
    "boxes",
    "assignment",
    "demand",
    "image_mask",
    "ids",
    "methods",
)

_SPOOL_BYTES = 1 << 20


def write_bytes(stream: BinaryIO, tensor: Tensor) -> None:
    """The elements of a contiguous host tensor, as they lie in memory."""
    stream.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


@final
@dataclass(frozen=True)
class Array:
    """A finished array: its bytes wait in a temporary file, or were written to their place already."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stream: BinaryIO | None

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    def chunks(self) -> Iterator[bytes]:
        """The bytes that wait in a temporary file."""
        if self.stream is not None:
            self.stream.seek(0)
            while chunk := self.stream.read(1 << 20):
                yield chunk

    def mapped(self) -> Tensor:
        """The array over its temporary file, without reading it."""
        if self.stream is None or self.nbytes == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        self.stream.flush()
        return map_stream(self.stream).view(self.dtype).view(self.shape)


@final
class _Column:
    """One array that grows; it exists only once a page has a value for it, `fill` stands for the pages without."""

    def __init__(self, dtype: torch.dtype, trailing: tuple[int, ...], fill: float, stream: BinaryIO) -> None:
        self.dtype, self.trailing, self.fill, self.stream = dtype, trailing, fill, stream
        self.rows = 0
        self.present = False

    def add(self, values: Tensor | None, rows: int) -> None:
        if values is None and not self.present:
            self.rows += rows
            return
        if not self.present:
            self.present = True
            missing = self.rows
            while missing > 0:
                write_bytes(self.stream, self._filled(min(missing, 1 << 16)))
                missing -= 1 << 16
        write_bytes(self.stream, self._filled(rows) if values is None else values.to(self.dtype))
        self.rows += rows

    def _filled(self, rows: int) -> Tensor:
        return torch.full((rows, *self.trailing), self.fill, dtype=self.dtype)


@final
class _Strings:
    """Strings as their UTF-8 bytes and the offsets between them; an empty one stands for none."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.ends = array.array("q", [0])

    def add(self, value: str | None) -> None:
        try:
            written = self.stream.write((value or "").encode())
        except UnicodeEncodeError as error:
            raise InputError(
                f"{value!r} cannot be written as UTF-8 ({error.reason}): give the page another id"
            ) from error
        self.ends.append(self.ends[-1] + written)


@final
class Packer:
    """Takes records one by one, then hands out the arrays; a context manager, because it owns temporary files.

    With `vectors` given, the vectors go straight into that stream and not into a temporary file.
    """

    def __init__(self, head: Head, folder: Path, vectors: BinaryIO | None = None) -> None:
        self._head = head
        self._folder = folder
        self._owned: list[BinaryIO] = []
        self._placed = vectors is not None
        self._vectors = vectors if vectors is not None else self._spool()
        self._ends = array.array("q", [0])
        self._source_ends = array.array("q", [0])
        self._ids = _Strings(self._spool())
        self._methods = _Strings(self._spool())
        nan = float("nan")
        self._per_page = {
            "grid": _Column(torch.int32, (2,), 0, self._spool()),
            "offset": _Column(torch.float64, (), nan, self._spool()),
        }
        self._per_row = {
            "image_mask": _Column(torch.uint8, (), 2, self._spool()),
            "importance": _Column(torch.float32, (), nan, self._spool()),
            "boxes": _Column(torch.float32, (4,), nan, self._spool()),
        }
        self._per_source = {
            "assignment": _Column(torch.int32, (), -1, self._spool()),
            "demand": _Column(torch.float32, (), nan, self._spool()),
        }

    def __enter__(self) -> Packer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._owned:
            stream.close()

    def add(self, record: Record) -> None:
        rows = record.vectors.shape[0]
        write_bytes(self._vectors, record.vectors)
        self._ends.append(self._ends[-1] + rows)
        self._ids.add(record.id)
        for name, column in self._per_row.items():
            column.add(getattr(record, name), rows)
        self._per_page["grid"].add(None if record.grid is None else torch.tensor([record.grid]), 1)
        if record.assignment is not None:
            sources = record.assignment.shape[0]
            self._source_ends.append(self._source_ends[-1] + sources)
            self._methods.add(record.method)
            for name, column in self._per_source.items():
                column.add(getattr(record, name), sources)
            self._per_page["offset"].add(
                None if record.offset is None else torch.tensor([record.offset], dtype=torch.float64), 1
            )

    def arrays(self) -> list[Array]:
        """Everything that was added, in the order of `NAMES`."""
        rows = self._ends[-1]
        vectors = Array("vectors", self._head.dtype, (rows, self._head.dim), None if self._placed else self._vectors)
        found = {"vectors": vectors, "offsets": self._ints("offsets", self._ends)}
        if len(self._source_ends) > 1:
            found["source_offsets"] = self._ints("source_offsets", self._source_ends)
        for name, ends_name, strings in (
            ("ids", "id_offsets", self._ids),
            ("methods", "method_offsets", self._methods),
        ):
            if strings.ends[-1] > 0:
                found[name] = Array(name, torch.uint8, (strings.ends[-1],), strings.stream)
                found[ends_name] = self._ints(ends_name, strings.ends)
        for name, column in {**self._per_page, **self._per_row, **self._per_source}.items():
            if column.present:
                found[name] = Array(name, column.dtype, (column.rows, *column.trailing), column.stream)
        return [found[name] for name in NAMES if name in found]

    def _ints(self, name: str, values: array.array[int]) -> Array:
        stream = self._spool()
        stream.write(memoryview(values))
        return Array(name, torch.int64, (len(values),), stream)

    def _spool(self) -> BinaryIO:
        stream = cast(
            "BinaryIO",
            tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES, dir=str(self._folder)),  # noqa: SIM115
        )
        self._owned.append(stream)
        return stream
