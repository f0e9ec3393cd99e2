"""Folders of documents: which files are read, in which order, and what they are called."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError, Skipped
from pagefacets.pages import images
from pagefacets.pages.files import SourceFile, readable, report
from pagefacets.pages.images import image_pages
from pagefacets.pages.pdf import pdf_pages

__all__ = ["document_pages", "folder_pages", "natural"]

_KINDS = {".pdf": pdf_pages} | dict.fromkeys(images.SUFFIXES, image_pages)
_KNOWN = ", ".join(_KINDS)
_DIGITS = re.compile(r"(\d+)")

NaturalKey: TypeAlias = tuple[tuple[tuple[int, int, str], ...], str]


def natural(name: str) -> NaturalKey:
    """A key that sorts page 2 before page 10 and capitals beside small letters, the same on every machine."""
    parts = _DIGITS.split(name)
    key = tuple((0, int(part), "") if at % 2 else (1, 0, part.casefold()) for at, part in enumerate(parts) if part)
    return key, name


def document_pages(path: Path, name: str, *, skipped: Skipped | None = None) -> list[Page]:
    """The pages of one document, under `name`."""
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"{name} is of no kind that pages are read from: give one of {_KNOWN}")
    try:
        file = SourceFile.of(path, name)
    except PageError as error:
        report(error, skipped)
        return []
    return kind(file, skipped=skipped)


def folder_pages(folder: Path, *, skipped: Skipped | None = None) -> list[Page]:
    """The pages of all documents in a folder and the folders in it, in natural order of their paths."""
    found = sorted(_documents(folder, skipped), key=lambda parts: [natural(part) for part in parts])
    if not found:
        raise InputError(f"{folder} holds no document that pages are read from: put some of {_KNOWN} into it")
    pages = []
    taken: dict[str, tuple[str, ...]] = {}
    for parts in found:
        name = "/".join(map(readable, parts))
        if taken.setdefault(name, parts) != parts:
            report(PageError(name, "is the name of two files once it is written as text: rename one"), skipped)
            continue
        pages += document_pages(folder.joinpath(*parts), name, skipped=skipped)
    return pages


def _documents(folder: Path, skipped: Skipped | None) -> Iterator[tuple[str, ...]]:
    """The parts of each document's path below `folder`.

    Hidden files and folders are left out. Links to folders are followed once everything else has been seen, and none
    into a folder already seen: loops end, and a document keeps the name it has without the link.
    """
    seen: set[tuple[int, int]] = set()
    waiting: list[tuple[str, ...]] = [()]
    links: list[tuple[str, ...]] = []
    while waiting or links:
        parts = waiting.pop() if waiting else links.pop(0)
        here = folder.joinpath(*parts)
        try:
            about = here.stat()
            if (about.st_dev, about.st_ino) in seen:
                continue
            seen.add((about.st_dev, about.st_ino))
            with os.scandir(here) as listing:
                entries = sorted((entry for entry in listing if not entry.name.startswith(".")), key=_by_name)
        except OSError as error:
            name = "/".join(map(readable, parts)) or readable(str(folder))
            report(PageError(name, f"cannot be listed ({error.strerror}): check its permissions"), skipped)
            continue
        for entry in entries:
            inside = (*parts, entry.name)
            if _is_folder(entry):
                (links if entry.is_symlink() else waiting).append(inside)
            elif Path(entry.name).suffix.lower() in _KINDS:
                yield inside


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link to itself, among others: no folder, and no file, as will be said where it looks like a document.
        return False


def _by_name(entry: os.DirEntry[str]) -> NaturalKey:
    return natural(entry.name)
