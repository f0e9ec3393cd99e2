"""Torch files (`.pt`, `.pth`): a list of matrices, a map from id to matrix, or the packed layout of `packed.py`.

Only tensors and plain containers are loaded (`weights_only`), mapped where the file was written by torch 1.6 or later.
Written is the packed layout, with the metadata as a map of strings under `metadata`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pagefacets.errors import FileFormatError
from pagefacets.vectors.formats.packed import Listed, open_arrays
from pagefacets.vectors.formats.packing import Packer
from pagefacets.vectors.formats.record import Head, Reader, Record, stamp
from pagefacets.vectors.formats.stored import Stored

__all__ = ["read", "write"]


def read(path: Path) -> Reader:
    content = _load(path)
    if isinstance(content, list | tuple):
        return Listed(path, [(None, _stored(path, number, page)) for number, page in enumerate(content)], {})
    if not isinstance(content, dict):
        raise FileFormatError(
            f"{path.name} holds a {type(content).__name__}: save a list of matrices, a map from id to matrix, "
            f"or a map with 'vectors' and 'offsets'"
        )
    metadata = content.pop("metadata", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in metadata.items()
    ):
        raise FileFormatError(f"{path.name}: 'metadata' must map strings to strings: leave it out or write it again")
    strings = {
        name: value
        for name, value in content.items()
        if isinstance(value, list | tuple) and all(isinstance(entry, str) for entry in value)
    }
    arrays = {str(name): _stored(path, name, value) for name, value in content.items() if name not in strings}
    if len(arrays) + len(strings) < len(content):
        raise FileFormatError(f"{path.name} holds two pages whose ids read the same: give every page its own id")
    return open_arrays(path, arrays, metadata, strings)


def write(path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
    with Packer(head, path.parent) as packer:
        for record in records:
            packer.add(record)
        content: dict[str, object] = {array.name: array.mapped() for array in packer.arrays()}
        with path.open("xb") as stream:
            torch.save({**content, "metadata": stamp(metadata)}, stream)


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            zipped = stream.read(4) == b"PK\x03\x04"
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise FileFormatError(
            f"{path.name} is damaged or needs pickle, which may run code and is never loaded: "
            f"save a plain list of tensors, or a map from id to tensor, with torch.save"
        ) from error
    except Exception as error:  # torch raises nearly anything on damaged bytes
        raise FileFormatError(
            f"{path.name} is truncated or not a torch file: copy or save it again ({str(error).partition(chr(10))[0]})"
        ) from error


def _stored(path: Path, name: object, value: object) -> Stored:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized or value.is_meta:
        raise FileFormatError(
            f"{path.name}: entry {name!r} is a {type(value).__name__} and not a dense tensor: convert or leave it out"
        )
    return Stored.of(value)
