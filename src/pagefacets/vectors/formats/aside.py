"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["replacing"]


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path beside `target` to write a file or a folder to; it takes the target's place when the block succeeds.

    Whatever goes wrong in the block, an existing target stays as it was and nothing is left beside it. A file is
    replaced in one step; a folder in two, so a crash of the machine between them leaves the old one renamed.
    """
    token = secrets.token_hex(4)
    partial = target.with_name(f".{target.name}.{token}.partial")
    try:
        yield partial
        _sync(partial)
        if partial.is_dir() and target.exists():
            _swap(partial, target, target.with_name(f".{target.name}.{token}.old"))
        else:
            partial.replace(target)
        _sync_entry(target.parent)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def _swap(partial: Path, target: Path, old: Path) -> None:
    target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    if path.is_dir():
        for child in path.iterdir():
            _sync(child)
        _sync_entry(path)
    else:
        with path.open("rb+") as stream:
            os.fsync(stream.fileno())


def _sync_entry(folder: Path) -> None:
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
