"""Files of page vectors, in every format people keep them in.

| name | format | described in |
|---|---|---|
| `.safetensors` | safetensors, the one to prefer: pages are views of the mapped file | `formats/packed.py` |
| `.npz` | numpy archive | `formats/packed.py` |
| `.pt`, `.pth` | torch file without pickled objects | `formats/torch_file.py` |
| `.arrow`, `.feather` | Arrow IPC | `formats/columns.py` |
| `.parquet` | Parquet | `formats/columns.py` |
| `.lance` | Lance table | `formats/columns.py` |
| a folder | one `.npy` per page, vectors only | `formats/npy.py` |
| a cache | read only; written by `pagefacets encode` | `formats/cache_folder.py` |
"""

from __future__ import annotations

import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, final, overload

import torch
from jaxtyping import Int
from torch import Tensor

from pagefacets.data import Facets, PageVectors
from pagefacets.errors import FileFormatError, InputError
from pagefacets.vectors.caching.manifest import MANIFEST, is_cache
from pagefacets.vectors.formats import arrow, cache_folder, lance, npy, npz, parquet, safetensors, torch_file
from pagefacets.vectors.formats.aside import replacing
from pagefacets.vectors.formats.record import DTYPES, Format, Head, Kind, Reader, Record
from pagefacets.vectors.formats.stored import give_back, noting_maps

__all__ = ["VectorFile", "open_vectors", "save_vectors"]

_FORMATS: dict[str, Format] = {
    ".safetensors": safetensors,
    ".npz": npz,
    ".pt": torch_file,
    ".pth": torch_file,
    ".arrow": arrow,
    ".feather": arrow,
    ".parquet": parquet,
    ".lance": lance,
}
_KNOWN = ", ".join(_FORMATS)


@final
class _Handle:
    """What every view of one opened file shares; closing any view closes them all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        read = _reading(path)
        self.identity = _identity(path)
        with noting_maps() as self.maps:
            self.reader: Reader | None = read(path)

    def open(self) -> Reader:
        if self.reader is None:
            raise InputError(f"{self.path.name} was closed: open it again with open_vectors")
        return self.reader


# A checker at run time reads an item of whatever calls itself Sequence[PageVectors], here a page from disk.
if TYPE_CHECKING:
    _Pages: TypeAlias = Sequence[PageVectors]
else:
    _Pages = Sequence


@final
class VectorFile(_Pages):
    """The pages of a file as a sequence; each is read when it is asked for.

    A slice is a view of the same file. Pickling ships the path and the range, not the pages; the process that
    unpickles opens the file once, however many slices of it arrive, and refuses it when it was replaced meanwhile.
    """

    def __init__(self, path: Path, handle: _Handle, span: range) -> None:
        self._path, self._handle, self._span = path, handle, span

    @property
    def path(self) -> Path:
        return self._path

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self._path.name

    @property
    def dim(self) -> int:
        return self._reader.head.dim

    @property
    def dtype(self) -> torch.dtype:
        return self._reader.head.dtype

    @property
    def kind(self) -> Kind:
        """Whether the file holds "pages" or "facets"."""
        return self._reader.head.kind

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self._reader.metadata)

    @property
    def counts(self) -> Int[Tensor, " P"]:
        """How many vectors each page has."""
        span = self._span
        return self._reader.counts()[torch.arange(len(span)) * span.step + span.start]

    @property
    def rows(self) -> int:
        """How many vectors all pages have together."""
        return int(self.counts.sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors."""
        return self.rows * self.dim * self.dtype.itemsize

    @property
    def qrels(self) -> Int[Tensor, "J 2"] | None:
        """Rows of (query, page) numbers that belong together, where the file has them; pages counted in this view."""
        found = self._reader.labels.qrels
        if found is None:
            return None
        kept = [(query, self._span.index(page)) for query, page in found.tolist() if page in self._span]
        return torch.tensor(kept, dtype=torch.int64).reshape(-1, 2)

    @property
    def sources(self) -> list[str] | None:
        """Where each page came from, where the file says so."""
        found = self._reader.labels.sources
        return None if found is None else [found[number] for number in self._span]

    def queries(self) -> list[Tensor]:
        """The query vectors the file holds beside its pages, one matrix per query; an empty list where it has none."""
        return list(self._reader.labels.queries)

    def facets(self, index: SupportsIndex) -> Facets:
        """Page `index` as facets, with what the file keeps about where they came from."""
        if self.kind != "facets":
            raise InputError(f"{self.name} holds page vectors, not facets: compress them first")
        number = self._number(index)
        return self._facets(number, self._reader.record(number))

    def iter_facets(self) -> Iterator[Facets]:
        """All facets in order."""
        if self.kind != "facets":
            raise InputError(f"{self.name} holds page vectors, not facets: compress them first")
        return (self._facets(number, record) for number, record in self._records())

    def close(self) -> None:
        """Let go of the file, in this view and all others; pages already read stay usable."""
        self._handle.reader = None
        self._handle.maps.clear()

    def release(self) -> None:
        """Give back the memory that reading has mapped so far; a page is read again when it is asked for again.

        For passes over files larger than memory should hold. Pages changed in place lose their changes.
        """
        give_back(self._handle.maps)

    def __enter__(self) -> VectorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._span)

    @overload
    def __getitem__(self, index: SupportsIndex) -> PageVectors: ...
    @overload
    def __getitem__(self, index: slice) -> VectorFile: ...
    def __getitem__(self, index: SupportsIndex | slice) -> PageVectors | VectorFile:
        if isinstance(index, slice):
            return VectorFile(self._path, self._handle, self._span[index])
        number = self._number(index)
        return self._page(number, self._reader.record(number))

    def __iter__(self) -> Iterator[PageVectors]:
        return (self._page(number, record) for number, record in self._records())

    def __repr__(self) -> str:
        return f"VectorFile({str(self._path)!r}, pages={len(self)}, kind={self.kind!r}, dim={self.dim}, {self.dtype})"

    def __reduce__(self) -> tuple[object, ...]:
        self._handle.open()
        return _reopen, (self._path, self._handle.identity, self._span.start, self._span.stop, self._span.step)

    @property
    def _reader(self) -> Reader:
        return self._handle.open()

    def _number(self, index: SupportsIndex) -> int:
        try:
            return self._span[operator.index(index)]
        except IndexError:
            raise IndexError(f"there is no page {index}: {self.name} has {len(self)}, counted from 0") from None

    def _records(self) -> Iterator[tuple[int, Record]]:
        reader, span = self._reader, self._span
        if span.step == 1:
            return zip(span, reader.records(span.start, span.stop), strict=True)
        return ((number, reader.record(number)) for number in span)

    def _page(self, number: int, record: Record) -> PageVectors:
        self._check(number, record)
        try:
            return record.page()
        except InputError as error:
            raise FileFormatError(f"{self.name}, page {number}: {error}") from error

    def _facets(self, number: int, record: Record) -> Facets:
        self._check(number, record)
        try:
            return record.facets()
        except InputError as error:
            raise FileFormatError(f"{self.name}, page {number}: {error}") from error

    def _check(self, number: int, record: Record) -> None:
        head, vectors = self._reader.head, record.vectors
        if vectors.ndim == 2 and (vectors.shape[1] != head.dim or vectors.dtype != head.dtype):
            raise FileFormatError(
                f"{self.name}, page {number}: dimension {vectors.shape[1]} and {vectors.dtype} where the file has "
                f"{head.dim} and {head.dtype}: a file holds vectors of one model and one type"
            )


def open_vectors(path: str | os.PathLike[str]) -> VectorFile:
    """The page vectors in a file or folder, whose format is told by its name."""
    place = Path(path).absolute()
    handle = _Handle(place)
    return VectorFile(place, handle, range(len(handle.open())))


def save_vectors(
    path: str | os.PathLike[str],
    pages: Iterable[PageVectors | Facets],
    *,
    metadata: Mapping[str, str] | None = None,
) -> int:
    """Write pages, or the facets of pages, to a file whose format is told by its name; returns how many.

    Pages are written as they arrive and appear under `path` all at once: after a failure an existing file is as it
    was. A name without suffix, or ending in a slash, makes a folder of `.npy` files, which keeps the vectors, the ids
    and the metadata and nothing else: of facets neither assignment, demand nor offset. Every other format keeps all of
    a page, and all of facets but the transport plan.
    """
    given: object = pages
    if isinstance(given, PageVectors | Facets) or not isinstance(given, Iterable):
        raise InputError(f"pages must be an iterable of pages, got one {type(given).__name__}: put it in a list")
    notes = _checked_metadata(metadata or {})
    target, form = _target(path)
    stream = _Stream(pages.iter_facets() if isinstance(pages, VectorFile) and pages.kind == "facets" else pages)
    with replacing(target) as partial:
        form.write(partial, stream.head, iter(stream), notes)
    return stream.count


@final
class _Stream:
    """Records made of pages one by one, after proof that each goes with the first."""

    def __init__(self, pages: Iterable[object]) -> None:
        self.count = 0
        self._items = iter(pages)
        first = next(self._items, None)
        if first is None:
            raise InputError("there are no pages to save: pass at least one")
        self._first = self._record(first)
        self.head = _head(self._first)

    def __iter__(self) -> Iterator[Record]:
        for record in itertools.chain([self._first], map(self._record, self._items)):
            if _head(record) != self.head:
                raise InputError(
                    f"page {self.count} ({record.id!r}) is {_describe(_head(record))} where page 0 is "
                    f"{_describe(self.head)}: save them to separate files or convert them first"
                )
            self.count += 1
            yield record

    def _record(self, item: object) -> Record:
        if not isinstance(item, PageVectors | Facets):
            raise InputError(
                f"page {self.count} is a {type(item).__name__}: pages must be PageVectors or Facets, wrap a matrix in "
                f"PageVectors(...)"
            )
        if item.id is not None and not isinstance(item.id, str):
            raise InputError(f"page {self.count} has the id {item.id!r}: ids are strings, use str(...)")
        try:
            record = Record.of(item)
        except InputError as error:
            raise InputError(f"page {self.count} ({item.id!r}): {error}") from error
        if record.vectors.dtype not in DTYPES.values():
            raise InputError(
                f"page {self.count} ({item.id!r}) holds {record.vectors.dtype}: convert it to float16 or float32 first"
            )
        return record


def _head(record: Record) -> Head:
    return Head(record.vectors.dtype, record.vectors.shape[1], "pages" if record.assignment is None else "facets")


def _describe(head: Head) -> str:
    return f"{head.kind} of dimension {head.dim} and {head.dtype}"


def _checked_metadata(metadata: Mapping[Any, Any]) -> dict[str, str]:
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InputError(
                f"metadata must map strings to strings, got {key!r}: {value!r}; convert it with str() first"
            )
        if key.startswith("pagefacets."):
            raise InputError(f"metadata keys that start with 'pagefacets.' are taken, got {key!r}: name it otherwise")
    return dict(metadata)


def _reading(path: Path) -> Callable[[Path], Reader]:
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path")
    if path.is_dir():
        return cache_folder.read if is_cache(path) else lance.read if lance.is_table(path) else npy.read
    suffix = path.suffix.lower()
    if suffix == ".lance" or suffix not in _FORMATS:
        raise InputError(f"{path.name} has a suffix nobody reads here: name a folder of .npy files or one of {_KNOWN}")
    return _FORMATS[suffix].read


def _target(path: str | os.PathLike[str]) -> tuple[Path, Format]:
    """Where to write, and how, once it is sure that nothing but page vectors can be overwritten."""
    place = Path(path)
    if place.name == "-":
        raise InputError("vectors are not written to standard output, got '-': name a file or a folder")
    suffix = place.suffix.lower()
    folder = not suffix or (os.fspath(path).endswith(("/", os.sep)) and suffix != ".lance")
    if not folder and suffix not in _FORMATS:
        raise InputError(
            f"{place.name} has a suffix nobody writes here: use one of {_KNOWN}, or end the path in '/' for a folder "
            f"of .npy files"
        )
    target = place.resolve()
    if not target.parent.is_dir():
        raise InputError(f"the folder {target.parent} does not exist: create it first")
    if not target.exists():
        return target, npy if folder else _FORMATS[suffix]
    if (folder or suffix == ".lance") != target.is_dir():
        has, would = ("a folder", "a file") if target.is_dir() else ("a file", "a folder")
        raise InputError(f"{place} is {has} and would be replaced by {would}: remove it first or choose another path")
    if folder and not all(entry.suffix == ".npy" or entry.name == npy.INDEX for entry in target.iterdir()):
        raise InputError(f"{place} holds more than .npy files, which saving would delete: choose another folder")
    if not folder and target.is_dir() and not lance.is_table(target) and any(target.iterdir()):
        raise InputError(f"{place} is a folder but not a Lance table, and saving would delete it: choose another path")
    return target, npy if folder else _FORMATS[suffix]


def _identity(path: Path) -> tuple[int, ...]:
    """What tells the content of a path from what replaces it; a folder goes by what every writer of it changes."""
    if path.is_dir():
        listings = (path / MANIFEST, path / lance.VERSIONS, path / npy.INDEX)
        path = next((listing for listing in listings if listing.exists()), path)
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


_reopened: dict[Path, _Handle] = {}
_MOST_REOPENED = 16


def _reopen(path: Path, identity: tuple[int, ...], start: int, stop: int, step: int) -> VectorFile:
    """A pickled view in this process, over a file opened once."""
    if not path.exists():
        raise InputError(f"{path} does not exist here: worker processes need the file under the same path")
    if _identity(path) != identity:
        raise FileFormatError(f"{path.name} has changed since it was opened: open it again")
    handle = _reopened.get(path)
    if handle is None or handle.identity != identity or handle.reader is None:
        handle = _Handle(path)
        while len(_reopened) >= _MOST_REOPENED:
            del _reopened[next(iter(_reopened))]
        _reopened[path] = handle
    return VectorFile(path, handle, range(start, stop, step))
