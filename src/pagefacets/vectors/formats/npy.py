"""Folders of `.npy` files, one page each, and the npy encoding itself.

A folder holds `000000.npy`, `000001.npy`, ... and `pages.json` with the ids in that order and the metadata. Only the
vectors are kept: no grid, mask, importance or boxes, and of facets neither assignment, demand nor offset. A folder
without `pages.json` is read in the order of its file names, a name without `.npy` being the page's id. bfloat16, which
numpy lacks, is written as the two-byte type `V2` that ml_dtypes and JAX use for it.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from pagefacets.errors import FileFormatError
from pagefacets.vectors.formats.packed import Listed
from pagefacets.vectors.formats.packing import write_bytes
from pagefacets.vectors.formats.record import Head, Labels, Reader, Record, stamp, unstamp
from pagefacets.vectors.formats.stored import Stored, map_file

__all__ = ["INDEX", "decode", "encode_header", "read", "write"]

INDEX = "pages.json"

# Far more than the header of any plain array takes.
_HEADER_BYTES = 10_000

_DESCRIPTORS = {
    torch.float16: "<f2",
    torch.bfloat16: "|V2",
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.int64: "<i8",
    torch.int32: "<i4",
    torch.int16: "<i2",
    torch.int8: "|i1",
    torch.uint64: "<u8",
    torch.uint32: "<u4",
    torch.uint16: "<u2",
    torch.uint8: "|u1",
    torch.bool: "|b1",
}
_DTYPES = {np.dtype(code): dtype for dtype, code in _DESCRIPTORS.items()}


def encode_header(dtype: torch.dtype, shape: tuple[int, ...], position: int) -> bytes:
    """The npy header of an array, as long as it takes for data after a header at `position` to start on 64 bytes."""
    text = repr({"descr": _DESCRIPTORS[dtype], "fortran_order": False, "shape": shape}).encode()
    length = len(text) + 1
    length += -(position + 10 + length) % 64
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", length) + text.ljust(length - 1) + b"\n"


def decode(raw: UInt8[Tensor, " B"], what: str) -> Stored | list[str]:
    """The array whose npy encoding fills `raw`: numbers where they lie, strings as a list."""
    start, dtype, shape, fortran = _parse(raw[:_HEADER_BYTES].numpy().tobytes(), what)
    size = math.prod(shape) * dtype.itemsize
    data = raw[start : start + size]
    if data.shape[0] < size:
        raise FileFormatError(
            f"{what} is truncated: shape {shape} of {dtype} takes {size} bytes and {data.shape[0]} are there; "
            f"copy or write it again"
        )
    if dtype.kind in "US" and dtype.itemsize > 0:
        try:
            return _texts(data.numpy().tobytes(), dtype)
        except ValueError as error:
            raise FileFormatError(f"{what} holds damaged strings: write it again") from error
    native = dtype.newbyteorder("<")
    if native not in _DTYPES:
        raise FileFormatError(f"{what} holds values of type {dtype}: convert them to float16 or float32 first")
    if size > 0 and (native != dtype or fortran):
        array = np.frombuffer(data.numpy().tobytes(), dtype)
        array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
        data = torch.frombuffer(bytearray(array.astype(native).tobytes("C")), dtype=torch.uint8)
    return Stored(data, _DTYPES[native], shape)


def read(path: Path) -> Reader:
    index = path / INDEX
    if index.exists():
        names, ids, metadata = _read_index(index, path)
    else:
        names = sorted(entry.name for entry in path.iterdir() if entry.suffix == ".npy")
        ids, metadata = [name.removesuffix(".npy") for name in names], {}
    if not names:
        raise FileFormatError(f"{path} holds no .npy files and no Lance table: name a folder that does")
    return _Folder(path, names, ids, metadata)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    path.mkdir()
    ids = []
    for number, record in enumerate(records):
        with (path / _name(number)).open("xb") as stream:
            stream.write(encode_header(head.dtype, tuple(record.vectors.shape), 0))
            write_bytes(stream, record.vectors)
        ids.append(record.id)
    (path / INDEX).write_text(json.dumps({"ids": ids, "metadata": stamp(metadata)}), encoding="ascii")


def _name(number: int) -> str:
    return f"{number:06d}.npy"


@final
class _Folder:
    def __init__(
        self, path: Path, names: list[str], ids: list[str | None] | list[str], metadata: dict[str, str]
    ) -> None:
        self._path, self._names, self._ids = path, names, ids
        self.metadata = metadata
        self.labels = Labels()
        self.head = self._page(0).head

    def __len__(self) -> int:
        return len(self._names)

    def counts(self) -> Int[Tensor, " P"]:
        return self._counts

    def record(self, index: int) -> Record:
        return self._page(index).record(0)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        return map(self.record, range(start, stop))

    @functools.cached_property
    def _counts(self) -> Int[Tensor, " P"]:
        return torch.cat([self._page(index).counts() for index in range(len(self))])

    def _page(self, index: int) -> Listed:
        file = self._path / self._names[index]
        what = f"{self._path.name}/{self._names[index]}"
        try:
            stored = decode(map_file(file, what), what)
        except OSError as error:
            raise FileFormatError(f"{what} cannot be read ({error.strerror}): write the folder again") from error
        if isinstance(stored, list):
            raise FileFormatError(f"{what} holds strings: take it out of the folder")
        return Listed(self._path, [(self._ids[index], stored)], {})


def _read_index(index: Path, path: Path) -> tuple[list[str], list[str | None], dict[str, str]]:
    try:
        content = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path.name}/{INDEX} is not JSON: delete it to read the folder by file name") from error
    match content:
        case {"ids": list(ids), "metadata": dict(metadata)} if all(
            entry is None or isinstance(entry, str) for entry in ids
        ) and all(isinstance(entry, str) for entry in metadata.values()):
            return [_name(number) for number in range(len(ids))], ids, unstamp(metadata, path)
        case _:
            raise FileFormatError(
                f"{path.name}/{INDEX} lacks its ids or its metadata: delete it to read the folder by file name"
            )


def _texts(data: bytes, dtype: np.dtype[np.generic]) -> list[str]:
    order = "be" if dtype.byteorder == ">" else "le"
    codec, size = (f"utf-32-{order}" if dtype.kind == "U" else "utf-8"), dtype.itemsize
    return [data[at : at + size].decode(codec).rstrip("\0") for at in range(0, len(data), size)]


def _parse(start: bytes, what: str) -> tuple[int, np.dtype[np.generic], tuple[int, ...], bool]:
    """Where the data starts, its type and shape, and whether columns come first."""
    wide = start[6:7] in (b"\2", b"\3")
    begin = 12 if wide else 10
    end = begin + int.from_bytes(start[8:begin], "little")
    try:
        header = ast.literal_eval(start[begin:end].decode().strip()) if start[:6] == b"\x93NUMPY" else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        header = None
    match header:
        case {"descr": descr, "fortran_order": bool(fortran), "shape": tuple(shape)} if all(
            isinstance(size, int) and size >= 0 for size in shape
        ):
            pass
        case _:
            raise FileFormatError(f"{what} is truncated or not an npy array: copy or save it again")
    if descr == "|O":
        raise FileFormatError(
            f"{what} holds pickled Python objects, which are never loaded: save it as a plain array of numbers"
        )
    if not isinstance(descr, str) or not re.fullmatch(r"[<>|=][biufcUSV][0-9]{1,9}", descr):
        raise FileFormatError(f"{what} holds values of type {descr!r}: convert them to float16 or float32 first")
    try:
        return end, np.dtype(descr), shape, fortran
    except (TypeError, ValueError) as error:
        raise FileFormatError(f"{what} holds values of the unknown type {descr!r}: save it again") from error
