"""Arrays inside a file, read where they lie."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, final

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from pagefacets.errors import FileFormatError

__all__ = ["Stored", "checked_offsets", "give_back", "map_file", "map_stream", "noting_maps"]

# Python names this flag from 3.13 on. Without it Linux refuses to map a file larger than memory plus swap, because
# each page of a private mapping might be written to.
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

_noted: ContextVar[list[mmap.mmap] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_maps() -> Iterator[list[mmap.mmap]]:
    """Collect the mappings made inside the block."""
    maps: list[mmap.mmap] = []
    token = _noted.set(maps)
    try:
        yield maps
    finally:
        _noted.reset(token)


def give_back(maps: Sequence[mmap.mmap]) -> None:
    """Let the system take back what was read of these mappings; bytes asked for again are read again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in maps:
            mapped.madvise(mmap.MADV_DONTNEED)


def map_stream(stream: BinaryIO) -> UInt8[Tensor, " B"]:
    """The bytes of an open, non-empty file, read when touched; writing to the tensor does not change the file."""
    if hasattr(mmap, "MAP_PRIVATE"):
        noreserve = _MAP_NORESERVE if os.uname().sysname == "Linux" else 0
        mapped = mmap.mmap(
            stream.fileno(), 0, flags=mmap.MAP_PRIVATE | noreserve, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
    else:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    if (noted := _noted.get()) is not None:
        noted.append(mapped)
    return torch.frombuffer(mapped, dtype=torch.uint8)


def map_file(path: Path, what: str | None = None) -> UInt8[Tensor, " B"]:
    """The bytes of a file, read when touched; writing to the tensor does not change the file."""
    with path.open("rb") as stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise FileFormatError(f"{what or path.name} is empty (0 bytes): write or copy it again")
        return map_stream(stream)


@final
class Stored:
    """An array whose bytes lie somewhere in a buffer: rows are views of it where its place in memory allows."""

    __slots__ = ("_raw", "_width", "dtype", "shape")

    def __init__(self, raw: UInt8[Tensor, " B"], dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._raw = raw
        self.dtype = dtype
        self.shape = shape
        self._width = math.prod(shape[1:]) * dtype.itemsize

    @classmethod
    def of(cls, tensor: Tensor) -> Stored:
        flat = tensor.detach().contiguous().reshape(-1)
        return cls(flat.view(torch.uint8), tensor.dtype, tuple(tensor.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` along the first axis."""
        return self._typed(self._raw[start * self._width : stop * self._width]).view(stop - start, *self.shape[1:])

    def whole(self) -> Tensor:
        return self._typed(self._raw).view(self.shape)

    def _typed(self, raw: UInt8[Tensor, " B"]) -> Tensor:
        if raw.storage_offset() % self.dtype.itemsize:
            raw = raw.clone()
        return raw.view(self.dtype)


def checked_offsets(stored: Stored, name: str, rows: int, what: str, file: str) -> Int[Tensor, " P1"]:
    """Offsets as int64, after proof that they cut `rows` rows into pages that are not empty."""
    if stored.ndim != 1 or stored.dtype.is_floating_point or stored.dtype.is_complex or stored.dtype == torch.bool:
        raise FileFormatError(
            f"{file}: {name!r} must be whole numbers on one axis, got {stored.dtype} of shape {stored.shape}: "
            f"write the row at which each page starts, and the total at the end"
        )
    if stored.shape[0] < 2:
        raise FileFormatError(f"{file} holds no pages ({name!r} has {stored.shape[0]} entries): write it again")
    offsets = stored.whole().to(torch.int64)
    if int(offsets[0]) != 0 or int(offsets[-1]) != rows:
        raise FileFormatError(
            f"{file}: {name!r} must run from 0 to the {rows} rows of {what}, got {int(offsets[0])} to "
            f"{int(offsets[-1])}: the file is damaged or truncated, write it again"
        )
    steps = offsets.diff()
    if int(steps.min()) <= 0:
        page = int((steps <= 0).nonzero()[0])
        fault = "is empty" if int(steps[page]) == 0 else "ends before it starts"
        raise FileFormatError(
            f"{file}, page {page}: {name!r} goes from {int(offsets[page])} to {int(offsets[page + 1])}, so the page "
            f"{fault}: leave such a page out when the file is written"
        )
    return offsets
