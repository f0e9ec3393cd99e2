"""Npz archives: the packed layout of `packed.py`, mapped where a member is stored uncompressed.

Metadata is one string, the member `metadata`, holding a JSON map. Members are written uncompressed, their data on
multiples of 64 bytes; bfloat16 is written as `npy.py` says.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from pagefacets.errors import FileFormatError
from pagefacets.vectors.formats.npy import decode, encode_header
from pagefacets.vectors.formats.packed import open_arrays
from pagefacets.vectors.formats.packing import Packer
from pagefacets.vectors.formats.record import Head, Reader, Record, stamp
from pagefacets.vectors.formats.stored import Stored, map_file

__all__ = ["read", "write"]

_LOCAL_HEADER = struct.Struct("<4s22xHH")


def read(path: Path) -> Reader:
    raw = map_file(path)
    arrays: dict[str, Stored] = {}
    strings: dict[str, list[str]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                found = decode(_bytes(path, archive, member, raw), f"{path.name}: {name!r}")
                if isinstance(found, list):
                    strings[name] = found
                else:
                    arrays[name] = found
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise FileFormatError(f"{path.name} is truncated or not an npz archive: copy or write it again") from error
    return open_arrays(path, arrays, _metadata(path, strings.pop("metadata", ["{}"])), strings)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    with Packer(head, path.parent) as packer:
        for record in records:
            packer.add(record)
        with path.open("xb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
            for array in packer.arrays():
                with archive.open(zipfile.ZipInfo(f"{array.name}.npy"), "w", force_zip64=True) as member:
                    member.write(encode_header(array.dtype, array.shape, stream.tell()))
                    member.writelines(array.chunks())
            with archive.open(zipfile.ZipInfo("metadata.npy"), "w") as member:
                np.lib.format.write_array(member, np.array(json.dumps(stamp(metadata))), allow_pickle=False)


def _bytes(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, raw: UInt8[Tensor, " B"]
) -> UInt8[Tensor, " M"]:
    if member.flag_bits & 1:
        raise FileFormatError(f"{path.name} is encrypted: write it again without a password")
    if member.compress_type != zipfile.ZIP_STORED:
        content = bytearray(archive.read(member))
        return torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)
    fixed = raw[member.header_offset : member.header_offset + _LOCAL_HEADER.size]
    if fixed.shape[0] < _LOCAL_HEADER.size:
        raise zipfile.BadZipFile
    magic, name_length, extra_length = _LOCAL_HEADER.unpack(fixed.numpy().tobytes())
    start = member.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    if magic != b"PK\x03\x04" or start + member.file_size > raw.shape[0]:
        raise zipfile.BadZipFile
    return raw[start : start + member.file_size]


def _metadata(path: Path, value: list[str]) -> dict[str, str]:
    try:
        found = json.loads(value[0]) if len(value) == 1 else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(entry, str) for entry in found.values()):
        raise FileFormatError(f"{path.name}: 'metadata' is not a JSON map of strings: leave it out or write it again")
    return found
