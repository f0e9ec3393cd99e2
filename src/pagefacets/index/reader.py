"""Reading an index: one version of it, whose facets are mapped into memory when they are first asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pagefacets.data import Facets, PageVectors
from pagefacets.errors import FileFormatError, InputError
from pagefacets.index.checks import CHECKS, Checks, files_of, manifest_file
from pagefacets.index.format import COLD, COLD_CHECK, Manifest, facets_of, vectors_of
from pagefacets.index.listing import Listing
from pagefacets.index.packed import mapped, same_bytes
from pagefacets.index.quantize import QuantizedRows, codec
from pagefacets.interaction import PackedPages

__all__ = [
    "GRACE",
    "PACKED",
    "TABLE",
    "Listing",
    "Reader",
    "Reading",
    "dataset",
    "disk_bytes",
    "first_line",
    "is_index",
    "manifest_of",
    "refuse_cut",
]

# The Lance table inside an index, and the folder of what was derived from it.
TABLE = "pages.lance"
PACKED = "packed"
# Versions that others may still read are kept so long.
GRACE = timedelta(hours=1)
_AT_ONCE = 256
_EVIDENCE = ("id", "n", "columns", "rows", "image_mask", "boxes")


def is_index(path: Path) -> bool:
    """Whether there is a table in the folder `path` of which at least one version is whole."""
    return next((path / TABLE / "_versions").glob("*.manifest"), None) is not None


def dataset(path: Path, version: int | None = None) -> Any:
    """The Lance table of the index at `path`."""
    import lance

    if not is_index(path):
        what = "holds no whole index" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}: build one with 'pagefacets index SOURCE -o {path.name}'")
    with Reading(path):
        # Lance trusts a manifest in how much memory it asks for.
        named = manifest_file(path / TABLE, version)
        wrong = () if named is None else Checks.read(path / CHECKS).damaged(path / TABLE, [named])
        for name, why in wrong:
            # A writer may have let go of it since, and then there is a newer one.
            if (path / TABLE / name).exists():
                raise FileFormatError(_damaged(path, name, why))
        return lance.dataset(str(path / TABLE), version=version)


def refuse_cut(path: Path, table: Any) -> None:
    """Refuse a version of which a file has not the size that it was written with."""
    names = (name for names in files_of(table).values() for name in names)
    for name, why in Checks.read(path / CHECKS).damaged(path / TABLE, names, sizes_only=True):
        raise FileFormatError(_damaged(path, name, why))


def manifest_of(table: Any, path: Path) -> Manifest:
    """What the table says about itself."""
    return Manifest.from_metadata(table.schema.metadata or {}, str(path))


def disk_bytes(path: Path) -> int:
    """Bytes of all files of an index: those of versions that are still kept, and what was derived."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@final
class Reader:
    """One version of an index. It stays as it is while others write; `latest()` gives the newest."""

    def __init__(self, path: Path, version: int | None = None) -> None:
        self.path = path
        self.table = dataset(path, version)
        self.manifest = manifest_of(self.table, path)
        self._lock = threading.RLock()

    @property
    def version(self) -> int:
        return int(self.table.version)

    def __len__(self) -> int:
        with self._reading():
            return int(self.table.count_rows())

    def latest(self) -> Reader:
        """This reader where nothing was written since, else one of the newest version."""
        with self._reading():
            current = self.table.latest_version == self.version
        return self if current else Reader(self.path)

    @property
    def listing(self) -> Listing:
        """What is known of each page besides vectors."""
        with self._lock:
            return self._listing

    @property
    def packed(self) -> PackedPages:
        """All facets as one matrix over a mapped file."""
        with self._lock:
            return self._packed

    @cached_property
    def _listing(self) -> Listing:
        return Listing(self.table, self._reading)

    @cached_property
    def _packed(self) -> PackedPages:
        listing = self._listing
        kind = codec(self.manifest.dtype, self.manifest.dim)
        lengths = torch.from_numpy(np.concatenate([[0], listing.k.values.to_numpy()]).astype(np.int64))
        with self._reading():
            refuse_cut(self.path, self.table)
            stored = mapped(self.table, self.path / PACKED, int(lengths.sum()), kind.stride, GRACE)
        offsets = listing.offsets.values
        known = offsets.null_count < len(offsets)
        bias = torch.from_numpy(offsets.fill_null(0.0).to_numpy().copy()) if known else None
        return PackedPages(QuantizedRows(stored, kind), lengths.cumsum(0), bias)

    def matching(self, condition: str) -> Int[Tensor, " M"]:
        """Places of the pages for which a condition in SQL over id, source and number holds."""
        try:
            found = self.table.to_table(columns=["id"], filter=condition)["id"]
        except (OSError, ValueError) as error:
            raise InputError(
                f"filter {condition!r} is no condition over id, source and number ({first_line(error)}): "
                f"write it as in SQL, source = 'report.pdf' AND number < 10"
            ) from error
        return torch.from_numpy(self.listing.places(found))

    def facets(self, id: str) -> Facets:
        """The facets of one page, with where they came from."""
        columns = [name for name in self.table.schema.names if name not in (COLD, COLD_CHECK)]
        return facets_of(self._row(id, columns), self.manifest, str(self.path))

    def page(self, id: str) -> PageVectors | None:
        """The full vectors of one page, where the index keeps them."""
        if not self.manifest.full:
            return None
        return vectors_of(self._row(id, [*_EVIDENCE, COLD, COLD_CHECK]), self.manifest, str(self.path))

    def layout(self, id: str) -> dict[str, Any]:
        """Grid, image mask and boxes of one page, each None where unknown."""
        row = self._row(id, list(_EVIDENCE))
        boxes, mask = row["boxes"], row["image_mask"]
        return {
            "grid": None if row["columns"] is None else (row["columns"], row["rows"]),
            "image_mask": None if mask is None else np.frombuffer(mask, np.uint8).astype(bool),
            "boxes": None if boxes is None else np.frombuffer(boxes, np.float16).reshape(-1, 4).astype(np.float32),
        }

    def vectors(self, places: Sequence[int]) -> list[PageVectors]:
        """The full vectors of several pages, by place."""
        if not self.manifest.full:
            raise InputError(f"{self.path.name} keeps no full vectors to rescore with: build it with full vectors")
        with self._reading():
            rows = self.table.take(list(places), columns=[*_EVIDENCE, COLD, COLD_CHECK]).to_pylist()
        return [vectors_of(row, self.manifest, str(self.path)) for row in rows]

    def verify(self) -> Iterator[str]:
        """Everything that is wrong, a sentence each; nothing where the index is whole."""
        found = False
        try:
            spoilt = set()
            for name, sentence in self._spoilt():
                found = True
                spoilt.add(name)
                yield sentence
            if manifest_file(self.path / TABLE, self.version) in spoilt:
                return
            for sentence in self._wrong(spoilt):
                found = True
                yield sentence
        except FileFormatError as error:
            yield str(error)
            return
        if not found and not same_bytes(self.table, self.path / PACKED):
            yield f"{self.path / PACKED} does not hold the facets of the table: delete that folder, it is made again"

    def _spoilt(self) -> Iterator[tuple[str, str]]:
        """The files that are not as they were written, each with a sentence; Lance reads none of them."""
        with self._reading():
            checks = Checks.read(self.path / CHECKS)
            manifest = manifest_file(self.path / TABLE, self.version)
            names = [name for names in files_of(self.table).values() for name in names]
            found = list(checks.damaged(self.path / TABLE, names if manifest is None else [manifest, *names]))
        if not checks.whole:
            yield CHECKS, f"{self.path / CHECKS} is damaged: delete it, the next change of the index makes it again"
        for name, why in found:
            yield name, _damaged(self.path, name, why)

    def _wrong(self, spoilt: AbstractSet[str]) -> Iterator[str]:
        """What is wrong with the pages that lie in no spoilt file."""
        spared = [number for number, names in files_of(self.table).items() if spoilt.isdisjoint(names)]
        fragments = [self.table.get_fragment(number) for number in spared]
        seen: set[str] = set()
        columns = [name for name in self.table.schema.names if name not in (COLD, COLD_CHECK)]
        for row in self._rows(fragments, columns, _AT_ONCE):
            if row["id"] in seen:
                yield f"page {row['id']!r} is there twice: delete it and add its document again"
            seen.add(row["id"])
            try:
                facets = facets_of(row, self.manifest, self.path.name)
            except FileFormatError as error:
                yield str(error)
                continue
            norms = torch.linalg.vector_norm(facets.vectors, dim=1)
            if not bool(((norms - 1).abs() < 0.02).all()):
                yield f"page {row['id']!r} has a facet whose length is not 1: add its document again"
        if self.manifest.full:
            for row in self._rows(fragments, [*_EVIDENCE, COLD, COLD_CHECK], 16):
                try:
                    vectors_of(row, self.manifest, self.path.name)
                except FileFormatError as error:
                    yield str(error)

    def _rows(self, fragments: list[Any], columns: list[str], size: int) -> Iterator[dict[str, Any]]:
        if not fragments:
            return
        with self._reading():
            scanner = self.table.scanner(columns=columns, batch_size=size, fragments=fragments)
            batches = scanner.to_batches()
        while True:
            with self._reading():
                batch = next(batches, None)
                rows = None if batch is None else batch.to_pylist()
            if rows is None:
                return
            yield from rows

    def _row(self, id: str, columns: list[str]) -> dict[str, Any]:
        place = self.listing.place(id)
        if place is None:
            raise InputError(f"{self.path.name} has no page {id!r}: 'pagefacets info {self.path.name}' lists documents")
        with self._reading():
            row: dict[str, Any] = self.table.take([place], columns=columns).to_pylist()[0]
        return row

    def _reading(self) -> Reading:
        return Reading(self.path)


@final
class Reading:
    """Says in one sentence what Lance says in many."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, InputError):
            return
        # Lance panics on some damage, which is no Exception.
        panicked = type(error).__name__ == "PanicException"
        if panicked or isinstance(error, OSError | ValueError | RuntimeError):
            raise FileFormatError(
                f"{self.path} is damaged, or was compacted more than {GRACE.seconds // 3600} hour after this version "
                f"was opened ({first_line(error)}): open it again, 'pagefacets verify' tells more"
            ) from error


def _damaged(path: Path, name: str, why: str) -> str:
    return (
        f"{path} is damaged: {TABLE}/{name} {why}: put that file back from a copy, or build the index again at "
        f"another path"
    )


def first_line(error: BaseException) -> str:
    """The beginning of what an error says."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
