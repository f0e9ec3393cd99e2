"""Parquet tables with a page per row: the page's image and text are read when they are asked for.

Rows are read in small batches on the way through a file, and the latest batch is kept, so reading pages in order
decodes the file once. What is in memory is at most a row group, where its writer made one data page of it.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, final

from pagefacets.data import Page, Words
from pagefacets.errors import FileFormatError, InputError, PageError
from pagefacets.pages.files import SourceFile, digest_of
from pagefacets.pages.images import decode, image_size
from pagefacets.pages.texts import words_of

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["RowContent", "Table", "table_pages"]

_ROWS_AT_ONCE = 8
_READ_BYTES = 1 << 20
_KEPT_OPEN = 4
_IMAGE = "image"
_TEXTS = ("text", "markdown")


@final
@dataclass(frozen=True)
class Table:
    """The Parquet files that make up one table."""

    name: str
    files: tuple[SourceFile, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the first file; the others have to have those that are asked for."""
        with _faults(self.files[0]), _opened(self.files[0]) as parquet:
            return tuple(parquet.schema_arrow.names)

    def column(self, *names: str) -> str:
        """The first of `names` that is a column: `a-b`, `a_b` and `_a-b` are one name."""
        found = {_plain(column): column for column in reversed(self.columns)}
        for name in names:
            if name in found:
                return found[name]
        wanted = " or ".join(map(repr, names))
        raise InputError(f"{self.name} has no column {wanted}, but {', '.join(self.columns)}: rename its columns")

    def optional(self, *names: str) -> str | None:
        return next((column for column in self.columns if _plain(column) in names), None)

    def has(self, *names: str) -> bool:
        return all(self.optional(name) is not None for name in names)

    def rows(
        self, columns: Sequence[str], *, texts: Sequence[str | None] = ()
    ) -> Iterator[tuple[SourceFile, int, dict[str, Any]]]:
        """Each row with its file and its number there; InputError where one of `texts` holds another thing."""
        for file in self.files:
            with _faults(file), _opened(file) as parquet:
                numbers = itertools.count()
                for batch in _batches(parquet, 0, columns):
                    for row in batch.to_pylist():
                        number = next(numbers)
                        for column in filter(None, texts):
                            if not isinstance(row[column], str | None):
                                raise InputError(
                                    f"row {number} of {file.name} has the {column} {row[column]!r}, which is no text: "
                                    "write that column as strings"
                                )
                        yield file, number, row


@final
@dataclass(frozen=True)
class RowContent:
    """One row of a Parquet file that is a page."""

    file: SourceFile
    row: int
    place: str
    text_column: str | None
    has_image: bool

    def image(self, longest: int | None) -> Image:
        data = _image_bytes(self._value(_IMAGE)) if self.has_image else None
        if data is None:
            raise PageError(self.place, f"has no image in row {self.row} of {self.file.name}: use an encoder of text")
        return decode(BytesIO(data), self.place, longest)

    def words(self) -> Words | None:
        if self.text_column is None:
            return None
        return words_of(self._value(self.text_column) or "")

    def _value(self, column: str) -> Any:
        try:
            self.file.check()
            return _row(self.file, self.row, column)
        except FileFormatError as error:
            raise PageError(self.place, str(error)) from error


def table_pages(table: Table, ids: str) -> list[Page]:
    """A page for each row, called as the column `ids` says; its digest is that of the row's image and text."""
    has_image = _IMAGE in table.columns
    text = table.optional(*_TEXTS)
    if not has_image and text is None:
        raise InputError(f"{table.name} has neither a column 'image' nor a text, but {', '.join(table.columns)}")
    columns = [ids, *([_IMAGE] if has_image else []), *([text] if text else [])]
    pages = []
    for file, number, row in table.rows(columns, texts=[text]):
        name, given = row[ids], row[text] if text else None
        if name is None:
            raise InputError(f"row {number} of {file.name} has no {ids}: give every page one")
        data = _image_bytes(row[_IMAGE]) if has_image else None
        digest = digest_of(data or b"", (given or "").encode())
        content = RowContent(file, number, str(name), text, has_image)
        pages.append(Page(str(name), file.name, number, image_size(data) if data else None, digest, content))
    return pages


def _plain(column: str) -> str:
    return column.lower().replace("_", "-").strip("-")


def _image_bytes(value: Any) -> bytes | None:
    """The bytes of an image as the `datasets` library stores it, or of a bare binary column."""
    found = value.get("bytes") if isinstance(value, dict) else value
    return found if isinstance(found, bytes) and found else None


@contextlib.contextmanager
def _faults(file: SourceFile) -> Iterator[None]:
    """What pyarrow says of a damaged file is a FileFormatError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{file.name} is a damaged Parquet file ({error}): fetch it again") from error


def _opened(file: SourceFile) -> Any:
    from pyarrow import parquet

    # Unless told so, pyarrow fetches a whole row group before its first row.
    return parquet.ParquetFile(file.path, pre_buffer=False, buffer_size=_READ_BYTES)


def _batches(parquet: Any, first_group: int, columns: Sequence[str]) -> Iterator[Any]:
    groups = list(range(first_group, parquet.num_row_groups))
    yield from parquet.iter_batches(_ROWS_AT_ONCE, row_groups=groups, columns=list(columns), use_threads=False)


@final
class _Passage:
    """A way through one column of a file from the row group of `row` on, of which the latest batch is held."""

    def __init__(self, file: SourceFile, row: int, column: str) -> None:
        self._parquet = _opened(file)
        sizes = (self._parquet.metadata.row_group(group).num_rows for group in range(self._parquet.num_row_groups))
        self._starts = list(itertools.accumulate(sizes, initial=0))
        group = self._group(row)
        self._first = self._end = self._starts[group]
        self._batches = _batches(self._parquet, group, [column])
        self._values: list[Any] = []

    def leads_to(self, row: int) -> bool:
        """Whether `row` is still ahead, and not beyond row groups that a new passage would leap over."""
        return bool(self._first <= row and self._starts[self._group(row)] <= self._end)

    def value(self, row: int) -> Any:
        while row >= self._end:
            batch = next(self._batches, None)
            if batch is None:
                raise EOFError(f"it ends after row {self._end}")
            self._first, self._end = self._end, self._end + batch.num_rows
            self._values = batch.column(0).to_pylist()
        return self._values[row - self._first]

    def close(self) -> None:
        self._parquet.close()

    def _group(self, row: int) -> int:
        return max(bisect.bisect_right(self._starts, row) - 1, 0)


_lock = threading.Lock()
_passages: dict[tuple[SourceFile, str], _Passage] = {}


def _row(file: SourceFile, row: int, column: str) -> Any:
    """One value of a file; asked for in ascending order, each is decoded once."""
    with _lock, _faults(file):
        passage = _passages.pop((file, column), None)
        if passage is not None and not passage.leads_to(row):
            passage.close()
            passage = None
        while len(_passages) >= _KEPT_OPEN:
            _passages.pop(next(iter(_passages))).close()
        if passage is None:
            passage = _Passage(file, row, column)
        value = passage.value(row)
        _passages[file, column] = passage
        return value
