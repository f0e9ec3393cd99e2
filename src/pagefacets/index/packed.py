"""The facets of one version in one file, to be mapped into memory: derived from the table, and made again when gone."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from pagefacets.vectors.formats.aside import replacing

__all__ = ["mapped", "same_bytes"]

_AT_ONCE = 64


def mapped(table: Any, folder: Path, rows: int, stride: int, grace: timedelta) -> UInt8[Tensor, "R stride"]:
    """The facets' bytes over the file in `folder`, which is made where it is missing.

    Where `folder` cannot be written to, the file lies among the temporary ones and goes with this process.
    """
    if rows == 0:
        return torch.empty(0, stride, dtype=torch.uint8)
    place, kept = folder / _name(table), True
    if not place.is_file() or place.stat().st_size != rows * stride:
        place, kept = _derived(table, place)
        if kept:
            _sweep(folder, place, grace)
    with place.open("rb") as stream:
        held = np.memmap(stream, np.uint8, mode="c", shape=(rows, stride))
    if not kept:
        place.unlink()
    return torch.from_numpy(held)


def same_bytes(table: Any, folder: Path) -> bool:
    """Whether the file of this version, where there is one, holds what the table holds."""
    place = folder / _name(table)
    if not place.is_file():
        return True
    with place.open("rb") as stream:
        return all(stream.read(len(piece)) == bytes(piece) for piece in _pieces(table)) and not stream.read(1)


def _name(table: Any) -> str:
    """A name of the table's content: its files never change, and none has the name of another."""
    fragments = [
        (
            fragment.fragment_id,
            [file.path for file in fragment.metadata.files],
            fragment.deletion_file(),
        )
        for fragment in table.get_fragments()
    ]
    content = json.dumps(fragments).encode()
    return f"{table.version}-{hashlib.blake2b(content, digest_size=8).hexdigest()}.rows"


def _pieces(table: Any) -> Iterator[memoryview]:
    """The facets of each page, in the order of the table."""
    count = int(table.count_rows())
    for start in range(0, count, _AT_ONCE):
        # Taken by place: a scan reads far ahead, and what it allocates stays with the process.
        places = list(range(start, min(start + _AT_ONCE, count)))
        for value in table.take(places, columns=["facets"]).column(0):
            yield memoryview(value.as_buffer())


def _derived(table: Any, place: Path) -> tuple[Path, bool]:
    """The file, made now, and whether it lies where it was wanted."""
    try:
        place.parent.mkdir(exist_ok=True)
        writable = os.access(place.parent, os.W_OK)
    except OSError:
        writable = False
    if writable:
        with replacing(place) as partial, partial.open("wb") as stream:
            stream.writelines(_pieces(table))
        return place, True
    handle, name = tempfile.mkstemp(prefix="pagefacets-", suffix=".rows")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(_pieces(table))
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name), False


def _sweep(folder: Path, place: Path, grace: timedelta) -> None:
    """Remove what was derived for versions that nobody should read any more."""
    for other in folder.iterdir():
        try:
            if other != place and time.time() - other.stat().st_mtime > grace.total_seconds():
                other.unlink()
        except FileNotFoundError:
            continue
