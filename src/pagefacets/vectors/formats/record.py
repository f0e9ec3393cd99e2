"""What a file format reads and writes: records, and the two sides of the protocol every format keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, TypeVar, final, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from pagefacets.data import Facets, PageVectors, as_matrix
from pagefacets.errors import FileFormatError, InputError

__all__ = ["DTYPES", "Format", "Head", "Kind", "Labels", "Reader", "Record", "dtype_name", "stamp", "unstamp"]

Kind: TypeAlias = Literal["pages", "facets"]

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}

_KEY = "pagefacets.vectors"
_VERSION = 1

V = TypeVar("V")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def stamp(metadata: Mapping[str, str]) -> dict[str, str]:
    """`metadata` with the version of the layout added."""
    return {_KEY: str(_VERSION), **metadata}


def unstamp(metadata: Mapping[str, V], path: Path) -> dict[str, V]:
    """`metadata` without the version of the layout, which is refused when it is newer than this code."""
    version = metadata.get(_KEY, str(_VERSION))
    if version != str(_VERSION):
        raise FileFormatError(
            f"{path.name} has version {version!r} of the layout and this pagefacets reads version {_VERSION}: "
            f"upgrade pagefacets"
        )
    return {key: value for key, value in metadata.items() if key != _KEY}


@final
@dataclass(frozen=True)
class Head:
    """What all pages of a file have in common."""

    dtype: torch.dtype
    dim: int
    kind: Kind


@final
@dataclass(frozen=True, eq=False)
class Labels:
    """What a file may hold besides pages: queries, which pages answer them, where each page came from."""

    queries: tuple[Tensor, ...] = ()
    qrels: Int[Tensor, "J 2"] | None = None
    sources: tuple[str, ...] | None = None


@final
@dataclass(frozen=True, eq=False)
class Record:
    """One page, or the facets of one page, as it lies in a file."""

    vectors: Tensor
    id: str | None = None
    grid: tuple[int, int] | None = None
    image_mask: Tensor | None = None
    importance: Tensor | None = None
    boxes: Tensor | None = None
    assignment: Tensor | None = None
    demand: Tensor | None = None
    offset: float | None = None
    method: str | None = None

    @classmethod
    def of(cls, item: PageVectors | Facets) -> Record:
        """The record of `item`, its tensors contiguous and in host memory; an empty id or method counts as none."""
        if isinstance(item, PageVectors):
            return cls(
                vectors=_host(item.vectors),
                id=item.id or None,
                grid=item.grid,
                image_mask=None if item.image_mask is None else _host(item.image_mask),
                importance=None if item.importance is None else _host(item.importance),
                boxes=None if item.boxes is None else _host(item.boxes),
            )
        record = cls(
            vectors=_host(as_matrix(item.vectors)),
            id=item.id or None,
            assignment=_host(item.assignment.int()),
            demand=None if item.demand is None else _host(item.demand.float()),
            offset=None if item.offset is None else float(item.offset),
            method=item.method or None,
        )
        record.facets()
        return record

    def page(self) -> PageVectors:
        return PageVectors(
            self.vectors,
            grid=self.grid,
            image_mask=self.image_mask,
            importance=self.importance,
            boxes=self.boxes,
            id=self.id,
        )

    def facets(self) -> Facets:
        if self.assignment is None:
            raise InputError("there is no assignment, so these are page vectors and not facets: read it as a page")
        k, n = self.vectors.shape[0], self.assignment.shape[0]
        if n == 0:
            raise InputError("assignment is empty: facets stand for at least one row")
        low, high = (int(value) for value in torch.aminmax(self.assignment))
        if low < -1 or high >= k:
            raise InputError(f"assignment must lie between -1 and {k - 1} for {k} facets, got {low} to {high}")
        if self.demand is not None and self.demand.shape[0] != n:
            raise InputError(f"demand has {self.demand.shape[0]} values and assignment {n}: compress the page again")
        return Facets(
            vectors=self.vectors,
            assignment=self.assignment.long(),
            demand=self.demand,
            offset=self.offset,
            id=self.id,
            method=self.method,
        )


@runtime_checkable
class Reader(Protocol):
    """An open file."""

    @property
    def head(self) -> Head: ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def labels(self) -> Labels: ...

    def __len__(self) -> int: ...

    def counts(self) -> Int[Tensor, " P"]:
        """How many vectors each page has."""
        ...

    def record(self, index: int) -> Record:
        """One page, without reading the others where the format allows it."""
        ...

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Neighbouring pages in order, with bounded memory where the format allows it."""
        ...


@runtime_checkable
class Format(Protocol):
    """One file format: each sibling module is one."""

    def read(self, path: Path) -> Reader: ...

    def write(self, path: Path, head: Head, records: Iterator[Record], metadata: Mapping[str, str]) -> None:
        """Write to a path where nothing is yet; what is left there after an exception is the caller's to remove."""
        ...


def _host(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
