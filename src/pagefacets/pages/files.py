"""The file a page is read from: where it lies, what it was when it was listed, and whether it still is that."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import final

from pagefacets.errors import PageError, Skipped

__all__ = ["SourceFile", "digest_of", "readable", "report"]

_DIGEST_BYTES = 16


def report(error: PageError, skipped: Skipped | None) -> None:
    """Raise the error, or tell `skipped` of it where there is one."""
    if skipped is None:
        raise error
    skipped(error)


def readable(name: str) -> str:
    """A file's name as text: bytes that are not UTF-8 are written as \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def digest_of(*parts: bytes) -> str:
    """One hash over the parts and where they meet."""
    total = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


@final
@dataclass(frozen=True)
class SourceFile:
    """A file as it was listed. `name` is how pages and errors call it; without a `digest`, its time stands for it."""

    path: Path
    name: str
    size: int
    modified: int
    digest: str

    @classmethod
    def of(cls, path: Path, name: str, *, hashed: bool = True) -> SourceFile:
        """The file as it is now; PageError where there is nothing to read."""
        try:
            about = path.stat()
            if not stat.S_ISREG(about.st_mode):
                raise PageError(name, "is not a regular file: copy its content into one")
            if about.st_size == 0:
                raise PageError(name, "is empty (0 bytes): fetch it again")
            digest = _digest(path) if hashed else ""
        except FileNotFoundError as error:
            raise PageError(name, "is a link to a file that is not there: restore it or remove the link") from error
        except OSError as error:
            raise PageError(name, f"cannot be read ({error.strerror}): check its permissions") from error
        return cls(path.absolute(), name, about.st_size, about.st_mtime_ns, digest)

    def check(self) -> None:
        """PageError where the file is no longer what was listed."""
        try:
            about = self.path.stat()
            if (about.st_size, about.st_mtime_ns) == (self.size, self.modified):
                return
            same = about.st_size == self.size and self.digest == _digest_at(self.path, about.st_mtime_ns)
        except FileNotFoundError as error:
            raise PageError(self.name, "was removed after it was listed: list the pages again") from error
        except OSError as error:
            raise PageError(self.name, f"cannot be read ({error.strerror}): check its permissions") from error
        if not same:
            raise PageError(self.name, "has changed since it was listed: list the pages again")

    def open(self) -> BufferedReader:
        """The file, checked."""
        self.check()
        return self.path.open("rb")


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).hexdigest()


@functools.lru_cache(maxsize=256)
def _digest_at(path: Path, _modified: int) -> str:
    """The digest, read once for each time the file was written: a copy of a file has a time of its own."""
    return _digest(path)
