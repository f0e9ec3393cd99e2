"""What an index is made of: its manifest, and the row of each page. docs/index-format.md is the norm."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from pagefacets.data import Facets, PageVectors
from pagefacets.errors import FileFormatError, InputError
from pagefacets.index.quantize import codec
from pagefacets.vectors.caching.manifest import EncoderNote

__all__ = [
    "CHECK",
    "COLD",
    "COLD_CHECK",
    "FORMAT",
    "KEY",
    "KEY_CHECK",
    "Entry",
    "Manifest",
    "checksum",
    "facets_of",
    "row_of",
    "schema",
    "vectors_of",
]

FORMAT = 1
KEY, KEY_CHECK = "pagefacets.index", "pagefacets.index.crc32"
# The columns that are read only when full vectors are asked for.
COLD, COLD_CHECK = "vectors", "vectors_check"
CHECK = "check"

# What the check of a row covers, in this order; the root is left out, for it changes when documents are moved.
_CHECKED = {
    "id": "text",
    "source": "text",
    "number": "<q",
    "width": "<f",
    "height": "<f",
    "digest": "text",
    "n": "<q",
    "k": "<q",
    "offset": "<f",
    "facets": "bytes",
    "assignment": "bytes",
    "demand": "bytes",
    "columns": "<q",
    "rows": "<q",
    "image_mask": "bytes",
    "boxes": "bytes",
}
_SMALL = {"lance-encoding:compression": "zstd"}


@final
@dataclass(frozen=True)
class Manifest:
    """What is true of a whole index; it never changes after the index was made.

    `encoder` and `compressor` make both again. `dtype` is how facets are stored, `full` whether full vectors are kept.
    """

    encoder: EncoderNote
    compressor: Mapping[str, Any]
    dtype: str = "float16"
    full: bool = False
    pool_sha256: str | None = None
    made_by: str = field(default_factory=lambda: metadata.version("pagefacets"))
    format: int = FORMAT

    def __post_init__(self) -> None:
        codec(self.dtype, self.dim)

    @property
    def dim(self) -> int:
        return self.encoder.dim

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=True, sort_keys=True)

    def to_metadata(self) -> dict[str, str]:
        """The manifest as the table keeps it, with its own checksum."""
        text = self.to_json()
        return {KEY: text, KEY_CHECK: str(zlib.crc32(text.encode()))}

    @classmethod
    def from_metadata(cls, kept: Mapping[bytes, bytes], place: str) -> Manifest:
        """The manifest of the index at `place`, refused where it is damaged or newer than this code."""
        if KEY.encode() not in kept:
            raise FileFormatError(f"{place} is a Lance table but no index of pagefacets: check the path")
        text = kept[KEY.encode()]
        damaged = f"{place}: the manifest is damaged: build the index again at another path"
        try:
            read = json.loads(text)
            version = read["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise FileFormatError(damaged) from error
        if not isinstance(version, int) or version > FORMAT:
            raise FileFormatError(
                f"{place} has version {version} of the index format and this pagefacets reads up to {FORMAT}: "
                f"upgrade pagefacets"
            )
        if kept.get(KEY_CHECK.encode(), b"").decode("ascii", "replace") != str(zlib.crc32(text)):
            raise FileFormatError(damaged)
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            values = {name: value for name, value in read.items() if name in known}
            return cls(**{**values, "encoder": EncoderNote(**read["encoder"])})
        except (KeyError, TypeError, InputError) as error:
            raise FileFormatError(damaged) from error


@final
@dataclass(frozen=True, eq=False)
class Entry:
    """One page on its way into an index; `root` is the folder that `source` is relative to, where there is one."""

    id: str
    root: str | None
    source: str
    number: int
    size: tuple[float, float] | None
    digest: str
    vectors: PageVectors
    facets: Facets


def schema(manifest: Manifest) -> Any:
    """The columns of an index, with the manifest as their metadata."""
    import pyarrow as pa

    fields = [
        pa.field("id", pa.string()),
        pa.field("root", pa.string()),
        pa.field("source", pa.string()),
        pa.field("number", pa.int32()),
        pa.field("width", pa.float32()),
        pa.field("height", pa.float32()),
        pa.field("digest", pa.string()),
        pa.field("n", pa.int32()),
        pa.field("k", pa.int32()),
        pa.field("offset", pa.float32()),
        pa.field("facets", pa.large_binary()),
        pa.field("assignment", pa.large_binary(), metadata=_SMALL),
        pa.field("demand", pa.large_binary(), metadata=_SMALL),
        pa.field("columns", pa.int32()),
        pa.field("rows", pa.int32()),
        pa.field("image_mask", pa.large_binary(), metadata=_SMALL),
        pa.field("boxes", pa.large_binary(), metadata=_SMALL),
        pa.field(CHECK, pa.int64()),
    ]
    if manifest.full:
        fields += [pa.field(COLD, pa.large_binary()), pa.field(COLD_CHECK, pa.int64())]
    return pa.schema(fields, metadata=manifest.to_metadata())


def row_of(entry: Entry, manifest: Manifest) -> dict[str, object]:
    """The row of one page."""
    facets, page = entry.facets, entry.vectors
    if facets.dim != manifest.dim:
        raise InputError(
            f"page {entry.id!r} has vectors of dimension {facets.dim} and the index {manifest.dim}: "
            f"one index holds the vectors of one encoder"
        )
    if not bool(torch.isfinite(facets.vectors).all()):
        raise InputError(f"page {entry.id!r} has a facet that is NaN or infinite: leave the page out")
    grid = page.grid or (None, None)
    row: dict[str, object] = {
        "id": entry.id,
        "root": entry.root,
        "source": entry.source,
        "number": entry.number,
        "width": None if entry.size is None else entry.size[0],
        "height": None if entry.size is None else entry.size[1],
        "digest": entry.digest,
        "n": facets.n,
        "k": facets.k,
        "offset": facets.offset,
        "facets": _bytes(codec(manifest.dtype, manifest.dim).encode(facets.vectors.cpu())),
        "assignment": _bytes(facets.assignment.to(torch.int32)),
        "demand": None if facets.demand is None else _bytes((facets.demand * facets.n).half()),
        "columns": grid[0],
        "rows": grid[1],
        "image_mask": None if page.image_mask is None else _bytes(page.image_mask.to(torch.uint8)),
        "boxes": None if page.boxes is None else _bytes(page.boxes.half()),
    }
    row[CHECK] = checksum(row)
    if manifest.full:
        vectors = _bytes(page.vectors.half())
        row |= {COLD: vectors, COLD_CHECK: zlib.crc32(vectors)}
    return row


def checksum(row: Mapping[str, Any]) -> int:
    """CRC-32 over the values of a row: a zero byte for null, else a one and the value's bytes."""
    check = 0
    for name, kind in _CHECKED.items():
        value = row[name]
        if value is None:
            check = zlib.crc32(b"\0", check)
            continue
        raw = value.encode() if kind == "text" else value if kind == "bytes" else struct.pack(kind, value)
        check = zlib.crc32(raw, zlib.crc32(b"\1", check))
    return check


def facets_of(row: Mapping[str, Any], manifest: Manifest, place: str) -> Facets:
    """The facets in a row, after proof that it is whole."""
    name, k, n = f"{place}, page {row['id']!r}", row["k"], row["n"]
    kind = codec(manifest.dtype, manifest.dim)
    if checksum(row) != row[CHECK]:
        raise FileFormatError(f"{name} is damaged (its checksum differs): delete the page and add its document again")
    if len(row["facets"]) != k * kind.stride or len(row["assignment"]) != 4 * n:
        raise FileFormatError(
            f"{name} is damaged (its arrays do not fit k={k} and n={n}): delete the page and add its document again"
        )
    assignment = _array(row["assignment"], np.int32).long()
    if int(assignment.min()) < -1 or int(assignment.max()) >= k:
        raise FileFormatError(
            f"{name} is damaged (a facet is named that it has not): delete the page and add its document again"
        )
    demand = None if row["demand"] is None else _array(row["demand"], np.float16).float()
    return Facets(
        vectors=kind.decode(_array(row["facets"], np.uint8).view(k, kind.stride)),
        assignment=assignment,
        demand=None if demand is None else demand / demand.sum().clamp_min(torch.finfo(torch.float32).tiny),
        offset=row["offset"],
        id=row["id"],
        method=str(manifest.compressor.get("name")),
    )


def vectors_of(row: Mapping[str, Any], manifest: Manifest, place: str) -> PageVectors:
    """The full vectors in a row, with all that is known about them, after proof that they are whole."""
    n = row["n"]
    if zlib.crc32(row[COLD] or b"") != row[COLD_CHECK] or len(row[COLD]) != 2 * n * manifest.dim:
        raise FileFormatError(
            f"{place}, page {row['id']!r}: the full vectors are damaged: delete the page and add its document again"
        )
    return PageVectors(
        _array(row[COLD], np.float16).view(n, manifest.dim),
        grid=None if row["columns"] is None else (row["columns"], row["rows"]),
        image_mask=None if row["image_mask"] is None else _array(row["image_mask"], np.uint8).bool(),
        boxes=None if row["boxes"] is None else _array(row["boxes"], np.float16).view(n, 4),
        id=row["id"],
    )


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()


def _array(raw: bytes, kind: type[np.generic]) -> Tensor:
    return torch.from_numpy(np.frombuffer(raw, dtype=kind).copy())
