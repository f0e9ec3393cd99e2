"""Cells of a benchmark on disk: one file for each, named by a hash of everything that its numbers depend on.

A run with other data, options, pool, seed, measures or version of pagefacets has other names, so that nothing mixes. A
file appears whole or not at all: what a killed run has finished, the next one finds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from pagefacets.errors import InputError
from pagefacets.vectors.formats.aside import replacing

__all__ = ["Measured", "Store", "Unable", "hashed"]

_FORMAT, _VERSION = "pagefacets-cell", 1


@final
@dataclass(frozen=True, eq=False)
class Measured:
    """One setting on one data set.

    `values` holds each measure for every judged query, `counts` the vectors kept of each page. `vectors` and `nbytes`
    are means over the pages, `ms` the time of one core for a page at this budget alone, over `timed` pages.
    """

    values: Mapping[str, NDArray[np.float64]]
    counts: tuple[int, ...]
    vectors: float
    nbytes: float
    ms: float
    timed: int
    machine: str


@final
@dataclass(frozen=True)
class Unable:
    """Why a setting cannot run on a data set."""

    why: str


@final
class Store:
    """The folder of a benchmark's results; without one, cells live in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._held: dict[str, Any] = {}
        if folder is None:
            return
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder} is a file: name a folder for the results")
        if not folder.resolve().parent.is_dir():
            raise InputError(f"the folder {folder.resolve().parent} does not exist: create it first")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "cells").is_dir():
            raise InputError(f"{folder} holds other things than a benchmark's results: name a new or an empty folder")
        (folder / "cells").mkdir(parents=True, exist_ok=True)

    def find(self, key: str, queries: int) -> Measured | Unable | None:
        """A finished cell, of so many judged queries."""
        found = self._read(key)
        if found is None:
            return None
        if "unable" in found:
            return Unable(found["unable"])
        values = {name: np.array(row, dtype=np.float64) for name, row in found["values"].items()}
        if any(len(row) != queries for row in values.values()):
            return None
        return Measured(
            values,
            tuple(found["counts"]),
            found["vectors"],
            found["nbytes"],
            found["ms"],
            found["timed"],
            found["machine"],
        )

    def add(self, key: str, cell: Measured | Unable, about: Mapping[str, object]) -> None:
        """Keep a cell; `about` says in the file what it is."""
        if isinstance(cell, Unable):
            body: dict[str, object] = {"unable": cell.why}
        else:
            body = {
                "values": {name: row.tolist() for name, row in cell.values.items()},
                "counts": list(cell.counts),
                "vectors": cell.vectors,
                "nbytes": cell.nbytes,
                "ms": cell.ms,
                "timed": cell.timed,
                "machine": cell.machine,
            }
        self._write(key, {"about": about, **body})

    def number(self, key: str) -> float | None:
        """A measured number kept by itself."""
        found = self._read(key)
        return None if found is None else float(found["number"])

    def add_number(self, key: str, number: float, about: Mapping[str, object]) -> None:
        self._write(key, {"about": about, "number": number})

    def _read(self, key: str) -> Any:
        if self.folder is None:
            return self._held.get(key)
        try:
            found = json.loads((self.folder / "cells" / f"{key}.json").read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None
        known = isinstance(found, dict) and found.get("format") == _FORMAT and found.get("version") == _VERSION
        return found if known else None

    def _write(self, key: str, body: Mapping[str, object]) -> None:
        whole = {"format": _FORMAT, "version": _VERSION, **body}
        if self.folder is None:
            self._held[key] = whole
            return
        with replacing((self.folder / "cells" / f"{key}.json").resolve()) as partial:
            partial.write_text(json.dumps(whole, allow_nan=False) + "\n", encoding="ascii")


def hashed(parts: Mapping[str, object] | Sequence[object]) -> str:
    """The name of a cell that depends on `parts`, and on the version of pagefacets."""
    text = json.dumps([_VERSION, metadata.version("pagefacets"), parts], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
