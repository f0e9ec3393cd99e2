"""What an index knows of its pages besides their vectors, kept as Arrow columns: a few bytes for each page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Generic, TypeVar, final, overload

import numpy as np
from jaxtyping import Int

__all__ = ["Column", "Listing"]

Value = TypeVar("Value")


@final
class Column(Sequence[Value], Generic[Value]):
    """The values of one column; each is made when it is asked for."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, place: int) -> Value: ...

    @overload
    def __getitem__(self, place: slice) -> list[Value]: ...

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return self.values[place].to_pylist()
        return self.values[place].as_py()

    def __iter__(self) -> Iterator[Value]:
        return iter(self.values.to_pylist())


@final
class _Sizes(Sequence["tuple[float, float] | None"]):
    """Width and height of each page as displayed, where they are known."""

    def __init__(self, widths: Column[float | None], heights: Column[float | None]) -> None:
        self._widths, self._heights = widths, heights

    def __len__(self) -> int:
        return len(self._widths)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        width, height = self._widths[place], self._heights[place]
        return None if width is None or height is None else (width, height)


@final
class Listing:
    """The pages of one version, in the order of the packed facets; each column is read when it is asked for."""

    def __init__(self, table: Any, reading: Callable[[], AbstractContextManager[None]]) -> None:
        self._table, self._reading = table, reading

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def ids(self) -> Column[str]:
        return self._column("id")

    @cached_property
    def roots(self) -> Column[str | None]:
        return self._column("root", repeated=True)

    @cached_property
    def sources(self) -> Column[str]:
        return self._column("source", repeated=True)

    @cached_property
    def numbers(self) -> Column[int]:
        return self._column("number")

    @cached_property
    def sizes(self) -> Sequence[tuple[float, float] | None]:
        """Width and height as displayed, where they are known."""
        return _Sizes(self._column("width"), self._column("height"))

    @cached_property
    def digests(self) -> Column[str]:
        return self._column("digest")

    @cached_property
    def offsets(self) -> Column[float | None]:
        return self._column("offset")

    @cached_property
    def n(self) -> Column[int]:
        """How many vectors each page had."""
        return self._column("n")

    @cached_property
    def k(self) -> Column[int]:
        """How many facets each page has."""
        return self._column("k")

    def place(self, id: str) -> int | None:
        """Where the page called `id` stands, or None."""
        found = int(self.ids.values.index(id).as_py())
        return None if found < 0 else found

    def places(self, ids: Any) -> Int[np.ndarray, " M"]:
        """Where the pages of an Arrow column of ids stand, ascending; those that are not there are left out."""
        import pyarrow.compute as pc

        found = pc.is_in(self.ids.values, value_set=ids)
        return np.flatnonzero(found.to_numpy(zero_copy_only=False))

    def documents(self) -> dict[str, int]:
        """How many pages each document has, in the order of the index."""
        return dict(Counter(self.sources))

    def _column(self, name: str, *, repeated: bool = False) -> Column[Any]:
        """One column; values that many pages share are kept once."""
        with self._reading():
            whole = self._table.to_table(columns=[name], scan_in_order=True)[name].combine_chunks()
        return Column(whole.dictionary_encode() if repeated else whole)
