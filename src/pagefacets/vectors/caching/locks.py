"""Locks between processes that work on one folder; when their holder dies, the system takes them back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from pagefacets.errors import InputError

__all__ = ["FileLock", "locked"]

_PAUSE = 0.05


@final
class FileLock:
    """A lock on a file that is made for it; two of them in one process exclude each other, too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def take(self, *, shared: bool = False) -> bool:
        """Try to hold the lock, alone or with others that share it; a lock already held is changed."""
        try:
            from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
        except ImportError as error:
            raise InputError(f"{self.path} cannot be locked: use a system that has flock, such as Linux") from error
        while True:
            if self._descriptor is None:
                self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                flock(self._descriptor, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)
            except BlockingIOError:
                self.release()
                return False
            except OSError as error:
                self.release()
                raise InputError(
                    f"{self.path} cannot be locked ({error.strerror}): put the cache on a drive that has flock"
                ) from error
            if self._is_current():
                return True
            self.release()

    def release(self, *, remove: bool = False) -> None:
        """Give the lock back; with `remove` its file goes, too, which only its sole holder may ask for."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            if remove:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)

    def _is_current(self) -> bool:
        """Whether the file held is still the one under that name: the holder before may have removed it."""
        assert self._descriptor is not None  # noqa: S101
        held = os.fstat(self._descriptor)
        try:
            named = self.path.stat()
        except FileNotFoundError:
            return False
        return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock alone for the length of the block, waiting for it."""
    lock = FileLock(path)
    while not lock.take():
        time.sleep(_PAUSE)
    try:
        yield
    finally:
        lock.release()
