"""The packed layout, shared by the safetensors, npz and torch formats: all pages end to end in a few arrays.

A file of P pages and R vectors of dimension p holds these arrays (R', with `source_offsets`, counts source rows):

| array | shape, type | meaning |
|---|---|---|
| `vectors` | (R, p) float16, bfloat16, float32 or float64 | the vectors of all pages, one page after the other |
| `offsets` | (P+1) integers | page i is rows `offsets[i]` to `offsets[i+1]`; from 0 to R, strictly increasing |
| `ids`, `id_offsets` | (B) uint8, (P+1) integers | UTF-8 bytes of the ids, cut the same way; an empty id means none |
| `grid` | (P, 2) int32 | columns and rows of the patch grid; 0, 0 means none |
| `image_mask` | (R) uint8 | 1 for a patch, 0 for another row, 2 on every row of a page without a mask |
| `importance` | (R) float32 | one weight per row; NaN where unknown, and on every row of a page without weights |
| `boxes` | (R, 4) float32 | left, top, right, bottom in [0, 1]; NaN on every row of a page without boxes |
| `assignment` | (R') int32 | facets only, and what marks a file of facets: the facet of each source row, or -1 |
| `source_offsets` | (P+1) integers | facets only: the source rows of page i |
| `demand` | (R') float32 | facets only: the weight of each source row; NaN on every row of a page without |
| `offset` | (P) float64 | facets only: the score offset; NaN means none |
| `methods`, `method_offsets` | as `ids` | facets only: the method that made them |

Only `vectors` and `offsets` are required. Also read: `page_vectors` and `page_offsets` under those names, `ids` as an
array of P strings, `source` (P strings), `query_vectors` (Q, M, p) or (T, p) with `query_offsets`, and `qrels` (J, 2),
rows of query and page number. A file without `vectors` whose arrays are all matrices is read as one page per array,
the name being the id. The metadata key `pagefacets.vectors` holds the version of this layout, 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from pagefacets.errors import FileFormatError
from pagefacets.vectors.formats.record import DTYPES, Head, Labels, Reader, Record, unstamp
from pagefacets.vectors.formats.stored import Stored, checked_offsets

__all__ = ["Listed", "Packed", "open_arrays"]


def open_arrays(
    path: Path,
    arrays: Mapping[str, Stored],
    metadata: Mapping[str, str],
    strings: Mapping[str, Sequence[str]] | None = None,
) -> Reader:
    """The pages in a file's named arrays, packed or one array per page."""
    plain = unstamp(metadata, path)
    strings = strings or {}
    if "vectors" in arrays or "page_vectors" in arrays:
        return Packed(path, arrays, plain, strings)
    odd = [name for name, array in arrays.items() if array.ndim != 2]
    if not arrays or odd or strings:
        names = ", ".join(sorted([*arrays, *strings])) or "nothing"
        raise FileFormatError(
            f"{path.name} holds {names}: it needs 'vectors' (all rows, p) and 'offsets' (pages + 1), "
            f"or nothing but one matrix per page"
        )
    return Listed(path, list(arrays.items()), plain)


@final
class Listed:
    """One matrix per page."""

    def __init__(self, path: Path, pages: Sequence[tuple[str | None, Stored]], metadata: dict[str, str]) -> None:
        if not pages:
            raise FileFormatError(f"{path.name} holds no pages: write it again with at least one")
        self.metadata = metadata
        self.labels = Labels()
        first = pages[0][1]
        for number, (name, stored) in enumerate(pages):
            where = f"{path.name}, page {number}" + ("" if name is None else f" ({name!r})")
            _check_matrix(stored, where)
            if stored.shape[0] == 0:
                raise FileFormatError(f"{where} is empty (shape {stored.shape}): leave such a page out")
            if stored.shape[1] != first.shape[1] or stored.dtype != first.dtype:
                raise FileFormatError(
                    f"{where} has dimension {stored.shape[1]} and {stored.dtype} where page 0 has {first.shape[1]} and "
                    f"{first.dtype}: a file holds vectors of one model and one type"
                )
        self.head = Head(first.dtype, first.shape[1], "pages")
        self._pages = pages

    def __len__(self) -> int:
        return len(self._pages)

    def counts(self) -> Int[Tensor, " P"]:
        return torch.tensor([stored.shape[0] for _, stored in self._pages])

    def record(self, index: int) -> Record:
        name, stored = self._pages[index]
        return Record(stored.whole(), id=name)

    def records(self, start: int, stop: int) -> Iterator[Record]:
        return map(self.record, range(start, stop))


@final
class Packed:
    """All pages in one matrix, cut by offsets."""

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, Stored],
        metadata: dict[str, str],
        strings: Mapping[str, Sequence[str]],
    ) -> None:
        self._file = path.name
        self._arrays = arrays
        self.metadata = metadata
        prefix = "" if "vectors" in arrays else "page_"
        self._vectors = self._array(f"{prefix}vectors")
        _check_matrix(self._vectors, f"{path.name}: {prefix + 'vectors'!r}")
        rows, dim = self._vectors.shape
        if f"{prefix}offsets" not in arrays:
            raise FileFormatError(
                f"{path.name} holds {prefix + 'vectors'!r} but not {prefix + 'offsets'!r}: add the row at which each "
                f"page starts, and the total at the end"
            )
        self._offsets = checked_offsets(
            arrays[f"{prefix}offsets"], f"{prefix}offsets", rows, repr(f"{prefix}vectors"), path.name
        ).numpy()
        pages = len(self)
        self._mask = self._optional("image_mask", (rows,))
        self._importance = self._optional("importance", (rows,))
        self._boxes = self._optional("boxes", (rows, 4))
        grid = self._optional("grid", (pages, 2))
        self._grid = None if grid is None else grid.whole().numpy()
        self._ids = self._strings("ids", "id_offsets", strings)
        self.head = Head(self._vectors.dtype, dim, "pages" if "assignment" not in arrays else "facets")
        if self.head.kind == "facets":
            assignment = self._array("assignment")
            if assignment.ndim != 1 or assignment.dtype.is_floating_point:
                raise FileFormatError(
                    f"{path.name}: 'assignment' must be whole numbers on one axis, got {assignment.dtype} of shape "
                    f"{assignment.shape}: write the facets again"
                )
            self._assignment = assignment
            sources = assignment.shape[0]
            self._source_offsets = checked_offsets(
                self._array("source_offsets"), "source_offsets", sources, "'assignment'", path.name
            ).numpy()
            if len(self._source_offsets) != pages + 1:
                raise FileFormatError(
                    f"{path.name}: 'source_offsets' has {len(self._source_offsets)} entries and 'offsets' {pages + 1}: "
                    f"write the facets again"
                )
            self._demand = self._optional("demand", (sources,))
            offset = self._optional("offset", (pages,))
            self._offset = None if offset is None else offset.whole().double().tolist()
            self._methods = self._strings("methods", "method_offsets", strings)
        self.labels = self._read_labels(strings)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def counts(self) -> Int[Tensor, " P"]:
        return torch.from_numpy(self._offsets).diff()

    def record(self, index: int) -> Record:
        start, stop = int(self._offsets[index]), int(self._offsets[index + 1])
        vectors = self._vectors.rows(start, stop)
        name = None if self._ids is None else self._ids[index] or None
        if self.head.kind == "pages":
            grid = (0, 0) if self._grid is None else (int(self._grid[index, 0]), int(self._grid[index, 1]))
            return Record(
                vectors,
                id=name,
                grid=None if grid == (0, 0) else grid,
                image_mask=self._masked(index, start, stop),
                importance=_known(self._importance, start, stop),
                boxes=_known(self._boxes, start, stop),
            )
        source, end = int(self._source_offsets[index]), int(self._source_offsets[index + 1])
        offset = None if self._offset is None or self._offset[index] != self._offset[index] else self._offset[index]
        return Record(
            vectors,
            id=name,
            assignment=self._assignment.rows(source, end),
            demand=_known(self._demand, source, end),
            offset=offset,
            method=None if self._methods is None else self._methods[index] or None,
        )

    def records(self, start: int, stop: int) -> Iterator[Record]:
        return map(self.record, range(start, stop))

    def _masked(self, index: int, start: int, stop: int) -> Tensor | None:
        if self._mask is None:
            return None
        mask = self._mask.rows(start, stop)
        if bool((mask == 2).all()):
            return None
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise FileFormatError(f"{self._file}, page {index}: 'image_mask' must be 0 or 1 on every row, or 2 on all")
        return mask.bool()

    def _array(self, name: str) -> Stored:
        if name not in self._arrays:
            raise FileFormatError(f"{self._file} lacks {name!r}: write it again with pagefacets.save_vectors")
        return self._arrays[name]

    def _optional(self, name: str, shape: tuple[int, ...]) -> Stored | None:
        if name not in self._arrays:
            return None
        stored = self._arrays[name]
        if stored.shape != shape:
            raise FileFormatError(
                f"{self._file}: {name!r} must have shape {shape} to match the vectors, got {stored.shape}: "
                f"leave it out or write it again"
            )
        return stored

    def _strings(self, name: str, ends_name: str, strings: Mapping[str, Sequence[str]]) -> _Text | Sequence[str] | None:
        if name in strings:
            found: _Text | Sequence[str] = strings[name]
        elif name in self._arrays:
            found = _Text(self._array(name), self._array(ends_name), name, self._file)
        else:
            return None
        if len(found) != len(self):
            raise FileFormatError(
                f"{self._file} has {len(found)} entries in {name!r} for {len(self)} pages: leave them out"
            )
        return found

    def _read_labels(self, strings: Mapping[str, Sequence[str]]) -> Labels:
        queries: tuple[Tensor, ...] = ()
        if "query_vectors" in self._arrays:
            stored = self._arrays["query_vectors"]
            if stored.ndim == 3 and stored.dtype.is_floating_point:
                queries = tuple(stored.whole())
            elif stored.ndim == 2 and stored.dtype.is_floating_point and "query_offsets" in self._arrays:
                ends = checked_offsets(
                    self._arrays["query_offsets"], "query_offsets", stored.shape[0], "'query_vectors'", self._file
                )
                queries = tuple(torch.split(stored.whole(), ends.diff().tolist()))
            else:
                raise FileFormatError(
                    f"{self._file}: 'query_vectors' must be floating point of shape (queries, tokens, p), or "
                    f"(all tokens, p) with 'query_offsets', got {stored.dtype} of shape {stored.shape}"
                )
        qrels = None
        if "qrels" in self._arrays:
            stored = self._arrays["qrels"]
            if stored.ndim != 2 or stored.shape[1] != 2 or stored.dtype.is_floating_point:
                raise FileFormatError(
                    f"{self._file}: 'qrels' must be rows of (query, page) numbers, got {stored.dtype} of shape "
                    f"{stored.shape}: leave it out or write it again"
                )
            qrels = stored.whole().long()
        return Labels(queries, qrels, tuple(strings["source"]) if "source" in strings else None)


@final
class _Text:
    """Strings cut out of UTF-8 bytes on demand."""

    def __init__(self, text: Stored, ends: Stored, name: str, file: str) -> None:
        offsets = ends.whole().to(torch.int64)
        if text.dtype != torch.uint8 or text.ndim != 1 or ends.ndim != 1 or ends.shape[0] < 1:
            raise FileFormatError(f"{file}: {name!r} must be UTF-8 bytes with offsets: write it again")
        if int(offsets[0]) != 0 or int(offsets[-1]) != text.shape[0] or bool((offsets.diff() < 0).any()):
            raise FileFormatError(
                f"{file}: the offsets of {name!r} must rise from 0 to {text.shape[0]}: write the file again"
            )
        self._text, self._ends, self._name, self._file = text, offsets.numpy(), name, file

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        raw = self._text.rows(int(self._ends[index]), int(self._ends[index + 1])).numpy().tobytes()
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise FileFormatError(
                f"{self._file}, page {index}: {self._name!r} is not UTF-8 ({error.reason}): write it again"
            ) from error


def _known(stored: Stored | None, start: int, stop: int) -> Tensor | None:
    """The rows, or nothing where all of them are NaN."""
    if stored is None:
        return None
    rows = stored.rows(start, stop).float()
    return None if bool(rows.isnan().all()) else rows


def _check_matrix(stored: Stored, what: str) -> None:
    if stored.ndim != 2:
        remedy = "strip the padding and cut the pages by 'offsets'" if stored.ndim == 3 else "store one row per vector"
        raise FileFormatError(f"{what} must have two axes (rows, dimension), got shape {stored.shape}: {remedy}")
    if stored.dtype not in DTYPES.values():
        raise FileFormatError(f"{what} must be floating point, got {stored.dtype}: convert to float16 or float32 first")
    if stored.shape[1] == 0:
        raise FileFormatError(f"{what} has dimension 0 (shape {stored.shape}): write it again")
