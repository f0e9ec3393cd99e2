"""What a comparison of compressors found: its cells, its table, and what to know before believing it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple, final

from pagefacets.evidence.misalignment import Degradation

__all__ = ["HEADINGS", "REFERENCE", "Cell", "Comparison", "Row"]

# The method without a budget, which has one cell: every vector kept.
REFERENCE = "identity"
# Queries that hold this share of the pool's tokens are those the pool was made of.
MOST = 0.5


@final
@dataclass(frozen=True)
class Cell:
    """One method at one ratio, in means over the pages.

    `vectors` and `nbytes` are what a page really keeps, `ms` the time of one core for a page at this ratio alone,
    `degradation` what a query token loses.
    """

    method: str
    ratio: float
    vectors: float
    nbytes: float
    ms: float
    covering_error: float
    effective_facets: float
    degradation: Degradation

    def to_dict(self) -> dict[str, object]:
        return {
            "method": self.method,
            "ratio": self.ratio,
            "vectors_per_page": self.vectors,
            "bytes_per_page": self.nbytes,
            "ms_per_page": self.ms,
            "covering_error": self.covering_error,
            "effective_facets": self.effective_facets,
            "degradation": asdict(self.degradation),
        }


class Row(NamedTuple):
    """A cell as text under HEADINGS, and the places in it that no other method betters at this ratio."""

    ratio: float
    texts: tuple[str, ...]
    best: frozenset[int]


class _Column(NamedTuple):
    """How a number of a cell is written, and what it is ranked by: less is better."""

    text: Callable[[Cell], str]
    rank: Callable[[Cell], float]


_COLUMNS = {
    "vectors": _Column(lambda cell: f"{cell.vectors:,.1f}", lambda cell: cell.vectors),
    "bytes": _Column(lambda cell: f"{cell.nbytes:,.0f}", lambda cell: cell.nbytes),
    "ms": _Column(lambda cell: f"{cell.ms:,.1f}", lambda cell: cell.ms),
    "C_err": _Column(lambda cell: f"{cell.covering_error:.4f}", lambda cell: cell.covering_error),
    "K_eff": _Column(lambda cell: f"{cell.effective_facets:.1f}", lambda cell: -cell.effective_facets),
    "loss": _Column(lambda cell: f"{cell.degradation.positive:.4f}", lambda cell: cell.degradation.positive),
    "change": _Column(lambda cell: f"{-cell.degradation.signed:+z.4f}", lambda cell: abs(cell.degradation.signed)),
}
HEADINGS = ("method", *_COLUMNS)


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """What each method makes of the same pages at each ratio.

    `cells` run from the largest ratio to the smallest. `unable` says of every method that could not run why; what it
    made of other pages is left out. `judged_by` tells whose tokens the demand and the scores are; `held_in_pool` is the
    share of the pool's tokens that are among those of the queries.
    """

    cells: tuple[Cell, ...]
    unable: Mapping[str, str]
    pages: int
    vectors: float
    nbytes: float
    judged_by: Literal["queries", "pool"]
    queries: int | None
    tokens: int
    held_in_pool: float | None
    pool_readers: tuple[str, ...]
    timed_pages: int

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know before believing the numbers."""
        readers = " and ".join(self.pool_readers)
        if self.judged_by == "pool":
            seen = f", which {readers} has seen" if readers else ""
            return (
                f"no queries were given: demand and scores are those of the pool's {self.tokens:,} tokens{seen}; "
                f"pass queries that the pool was not made of to judge every method fairly",
            )
        if readers and self.held_in_pool is not None and self.held_in_pool >= MOST:
            return (
                f"{self.held_in_pool:.0%} of the pool's tokens are among these queries, and {readers} has seen them: "
                f"pass queries that the pool was not made of to judge every method fairly",
            )
        return ()

    def to_dict(self) -> dict[str, object]:
        """Every number as JSON takes it."""
        return {
            "pages": self.pages,
            "vectors_per_page": self.vectors,
            "bytes_per_page": self.nbytes,
            "judged_by": self.judged_by,
            "queries": self.queries,
            "tokens": self.tokens,
            "held_in_pool": self.held_in_pool,
            "timed_pages": self.timed_pages,
            "notes": list(self.notes),
            "cells": [cell.to_dict() for cell in self.cells],
            "unable": dict(self.unable),
        }

    def table(self) -> list[Row]:
        """One row per cell. A column in which all methods of a ratio agree has no best."""
        rows = []
        for ratio, group in itertools.groupby(self.cells, key=lambda cell: cell.ratio):
            cells = list(group)
            best: list[set[int]] = [set() for _ in cells]
            for place, column in enumerate(_COLUMNS.values(), start=1):
                texts = [column.text(cell) for cell in cells]
                leader = texts[min(range(len(cells)), key=lambda i: column.rank(cells[i]))]
                if len(set(texts)) > 1:
                    for i, text in enumerate(texts):
                        if text == leader:
                            best[i].add(place)
            for cell, places in zip(cells, best, strict=True):
                texts = [cell.method, *(column.text(cell) for column in _COLUMNS.values())]
                rows.append(Row(ratio, tuple(texts), frozenset(places)))
        return rows
