"""Sizes and checksums of the files behind a version, so that damage is found before Lance reads what is damaged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from pagefacets.vectors.formats.aside import replacing

__all__ = ["CHECKS", "Check", "Checks", "files_of", "manifest_file", "record"]

CHECKS = "checks.json"
_AT_ONCE = 1 << 20
_VERSIONS, _LAST = "_versions", 2**64 - 1


class Check(NamedTuple):
    """What a file must have."""

    size: int
    crc32: int


@final
@dataclass(frozen=True)
class Checks:
    """What is known of the files of a table, by their names in it; a file that is not there is not known."""

    files: Mapping[str, Check]
    whole: bool = True

    @classmethod
    def read(cls, path: Path) -> Checks:
        """What the file at `path` says; nothing where there is none, and nothing of a damaged one but that it is."""
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return cls({})
        try:
            said = json.loads(raw)
            files = {str(name): Check(int(size), int(crc32)) for name, (size, crc32) in said["files"].items()}
            return cls(files) if said["check"] == _check(files) else cls({}, whole=False)
        except (ValueError, TypeError, KeyError, AttributeError):
            return cls({}, whole=False)

    def damaged(self, table: Path, names: Iterable[str], *, sizes_only: bool = False) -> Iterator[tuple[str, str]]:
        """The files of the table at `table` that are not as they were written, each with what is wrong with it."""
        for name in names:
            known, file = self.files.get(name), table / name
            if known is None:
                continue
            try:
                size = file.stat().st_size
                if size != known.size:
                    yield name, f"has {size:,} bytes and not {known.size:,}"
                elif not sizes_only and _crc32(file) != known.crc32:
                    yield name, "has another checksum than when it was written"
            except FileNotFoundError:
                yield name, "is missing (unless a compaction let go of it since)"


def files_of(table: Any) -> dict[int, list[str]]:
    """The names of the files of each fragment of a version."""
    found = {}
    for fragment in table.get_fragments():
        names = [f"data/{file.path}" for file in fragment.metadata.files]
        deletions = fragment.deletion_file()
        found[fragment.fragment_id] = names if deletions is None else [*names, deletions]
    return found


def manifest_file(table: Path, version: int | None = None) -> str | None:
    """The name of the file that says what a version is made of; of the newest one unless `version` is given."""
    found = {}
    for file in (table / _VERSIONS).glob("*.manifest"):
        if file.stem.isdecimal():
            # Twenty digits count down from the last number there is.
            number = _LAST - int(file.stem) if len(file.stem) == 20 else int(file.stem)
            found[number] = f"{_VERSIONS}/{file.name}"
    return found.get(max(found, default=0) if version is None else version)


def record(path: Path, folder: Path, table: Any) -> None:
    """Note the files of this version in the file at `path`; only those that are not known are read.

    Called by whoever holds the lock. A file of a table never changes under its name, so that what is noted stays true
    whenever this is cut short.
    """
    known = Checks.read(path)
    names = [name for names in files_of(table).values() for name in names]
    manifest = manifest_file(folder, int(table.version))
    files = {}
    for name in names if manifest is None else [*names, manifest]:
        try:
            files[name] = known.files.get(name) or _checked(folder / name)
        except FileNotFoundError:
            continue
    for left in path.parent.glob(f".{path.name}.*.partial"):
        left.unlink()
    if files == known.files and known.whole:
        return
    with replacing(path) as partial:
        partial.write_text(json.dumps({"check": _check(files), "files": files}, indent=0), encoding="utf-8")


def _checked(file: Path) -> Check:
    return Check(file.stat().st_size, _crc32(file))


def _crc32(file: Path) -> int:
    check = 0
    with file.open("rb") as stream:
        while piece := stream.read(_AT_ONCE):
            check = zlib.crc32(piece, check)
    return check


def _check(files: Mapping[str, Check]) -> int:
    """The checksum of what is said of all files."""
    lines = (f"{name} {files[name].size} {files[name].crc32}\n" for name in sorted(files))
    return zlib.crc32("".join(lines).encode())
