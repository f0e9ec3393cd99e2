"""Safetensors files: the packed layout of `packed.py`, mapped when read and streamed when written."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from pagefacets.errors import FileFormatError
from pagefacets.vectors.formats.packed import open_arrays
from pagefacets.vectors.formats.packing import NAMES, Array, Packer
from pagefacets.vectors.formats.record import Head, Reader, Record, stamp
from pagefacets.vectors.formats.stored import Stored, map_file

__all__ = ["read", "write"]

_DTYPES = {
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}

# The bound safetensors itself sets, and the alignment of the first array.
_LARGEST_HEADER = 100_000_000
_ALIGNMENT = 64


def read(path: Path) -> Reader:
    raw = map_file(path)
    header, start = _read_header(path, raw)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(path, "its metadata is not a map of strings")
    data = raw[start:]
    arrays = {name: _tensor(path, name, entry, data) for name, entry in header.items()}
    return open_arrays(path, arrays, metadata)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    stamped = stamp(metadata)
    largest = 2**63 - 1
    room = _encode([(name, torch.bfloat16, (largest, largest), largest, largest) for name in NAMES], stamped)
    reserved = -(-(8 + len(room)) // _ALIGNMENT) * _ALIGNMENT
    with path.open("xb") as stream:
        stream.write(b" " * reserved)
        with Packer(head, path.parent, stream) as packer:
            for record in records:
                packer.add(record)
            arrays = packer.arrays()
            for array in arrays:
                stream.writelines(array.chunks())
        stream.seek(0)
        stream.write(struct.pack("<Q", reserved - 8) + _encode(_placed(arrays), stamped))


def _placed(arrays: list[Array]) -> list[tuple[str, torch.dtype, tuple[int, ...], int, int]]:
    entries, end = [], 0
    for array in arrays:
        entries.append((array.name, array.dtype, array.shape, end, end + array.nbytes))
        end += array.nbytes
    return entries


def _encode(entries: list[tuple[str, torch.dtype, tuple[int, ...], int, int]], metadata: dict[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": metadata}
    for name, dtype, shape, start, end in entries:
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    return json.dumps(header, separators=(",", ":")).encode()


def _read_header(path: Path, raw: UInt8[Tensor, " B"]) -> tuple[dict[str, Any], int]:
    size = raw.shape[0]
    if size < 8:
        raise _damaged(path, f"it has {size} bytes and a header alone needs 8")
    (length,) = struct.unpack("<Q", raw[:8].numpy().tobytes())
    if length > min(size - 8, _LARGEST_HEADER):
        raise _damaged(path, f"its header claims {length} bytes and the file has {size}")
    try:
        header = json.loads(raw[8 : 8 + length].numpy().tobytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path.name} is not a safetensors file (its header is not JSON): write it again with save_vectors"
        ) from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not a map of tensors")
    return header, 8 + length


def _tensor(path: Path, name: str, entry: object, data: UInt8[Tensor, " B"]) -> Stored:
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(start), int(end)]} if all(
            isinstance(size, int) and size >= 0 for size in shape
        ):
            if code not in _DTYPES:
                raise FileFormatError(f"{path.name}: tensor {name!r} has type {code}: convert it to F16 or F32 first")
            expected = math.prod(shape) * _DTYPES[code].itemsize
            if not 0 <= start <= end or end - start != expected:
                raise _damaged(path, f"tensor {name!r} of shape {shape} does not fill bytes {start} to {end}")
            if end > data.shape[0]:
                raise _damaged(path, f"tensor {name!r} ends at byte {end} and the file holds {data.shape[0]} of them")
            return Stored(data[start:end], _DTYPES[code], tuple(shape))
        case _:
            raise _damaged(path, f"the header entry of tensor {name!r} lacks its type, shape or place")


def _damaged(path: Path, why: str) -> FileFormatError:
    return FileFormatError(f"{path.name} is truncated or not a safetensors file: {why}; copy or write it again")
