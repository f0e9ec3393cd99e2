"""What a reproduction found: our numbers beside the paper's, what differs, and what could not be run and why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from pagefacets.errors import InputError
from pagefacets.evidence.paper import Artifact, Place, Printed
from pagefacets.evidence.report import Report
from pagefacets.evidence.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

__all__ = ["Entry", "Reproduction"]

# Measures of answers, which the paper prints in percent.
_NAMES = {"ndcg@5": "nDCG@5 × 100", "recall@5": "Recall@5 × 100"}
# Digits behind the point of a measure, as the paper prints it; of all others two.
_DIGITS = {"covering error": 4, "top share": 1}


@final
@dataclass(frozen=True)
class Entry:
    """One number: ours with its 95% interval, the paper's, or why there is none of ours.

    `partial` says what ours was measured on where that is not what the paper names: then there is no difference.
    """

    place: Place
    ours: float | None = None
    low: float | None = None
    high: float | None = None
    printed: Printed | None = None
    why: str | None = None
    partial: str | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        if self.ours is None or self.printed is None or self.partial is not None:
            return None
        return self.ours - self.printed.value

    def to_dict(self) -> dict[str, object]:
        """One flat row."""
        return {
            **self.place._asdict(),
            "ours": self.ours,
            "low": self.low,
            "high": self.high,
            "paper": None if self.printed is None else self.printed.value,
            "difference": self.difference,
            "where": None if self.printed is None else self.printed.where,
            "notes": "; ".join(self.printed.notes) if self.printed else "",
            "partial": self.partial,
            "why": self.why,
        }


@final
@dataclass(frozen=True, eq=False)
class Reproduction:
    """A table or figure of the paper as it was run here.

    `reports` are the benchmarks behind it by the name of their folder, `drawn` the figures that no report draws, each
    with its caption.
    """

    artifact: Artifact
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)
    drawn: Mapping[str, tuple[str, Figure]] = field(default_factory=dict)
    details: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def ran(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.ours is not None)

    @cached_property
    def unable(self) -> dict[str, list[Place]]:
        """Why numbers are missing, with the places of each reason."""
        found: dict[str, list[Place]] = {}
        for entry in self.entries:
            if entry.ours is None:
                found.setdefault(entry.why or "it was not measured", []).append(entry.place)
        return found

    @property
    def reasons(self) -> list[str]:
        """One sentence for each reason why numbers are missing."""
        every = [entry.place for entry in self.entries]
        return [f"{_places(places, every)}: {why}" for why, places in self.unable.items()]

    @property
    def remarks(self) -> list[str]:
        """What to know of the paper's numbers that stand here, once each."""
        said: dict[str, list[Place]] = {}
        every = [entry.place for entry in self.entries]
        for entry in self.entries:
            for note in entry.printed.notes if entry.printed else ():
                said.setdefault(note, []).append(entry.place)
        return [f"{_places(places, every)}: {note}" for note, places in said.items()]

    def tables(self) -> list[Table]:
        """One table for each measure and block; under a row of ours the paper's, and the difference."""
        made = []
        there = dict.fromkeys(entry.place.measure for entry in self.entries)
        measures = dict.fromkeys([*(one for one in self.artifact.measures if one in there), *there])
        order = {column: i for i, column in enumerate(self.artifact.columns)}
        entries = sorted(self.entries, key=lambda entry: order.get(entry.place.column, -1))
        for measure in measures:
            for block in dict.fromkeys(entry.place.block for entry in self.entries):
                held = [entry for entry in entries if entry.place[0] == block and entry.place[3] == measure]
                if any(entry.ours is not None or entry.printed is not None for entry in held):
                    made.append(_table(f"{block}: {_NAMES.get(measure, measure)}", held, measure))
        return made

    def to_dict(self) -> dict[str, object]:
        """Everything as JSON takes it."""
        return {
            "artifact": self.artifact.name,
            "title": self.artifact.title,
            "where": self.artifact.where,
            "ran": len(self.ran),
            "entries": [entry.to_dict() for entry in self.entries],
            "notes": list(self.notes),
            "remarks": self.remarks,
            "unable": [
                {"why": why, "places": [place._asdict() for place in places]} for why, places in self.unable.items()
            ],
            "details": dict(self.details),
            "reports": {name: report.to_dict() for name, report in self.reports.items()},
        }

    def save(self, folder: str | os.PathLike[str], *, command: str | None = None) -> list[Path]:
        """Write NAME.html, .md, .json and .parquet into a folder, and each benchmark's whole report beside them."""
        from pagefacets.evidence.side_by_side import write

        place = Path(folder)
        if place.exists() and not place.is_dir():
            raise InputError(f"{place} is a file: name a folder for the results")
        if not place.resolve().parent.is_dir():
            raise InputError(f"the folder {place.resolve().parent} does not exist: create it first")
        place.mkdir(exist_ok=True)
        return write(self, place, command=command)


def _table(title: str, entries: Sequence[Entry], measure: str) -> Table:
    columns = list(dict.fromkeys(entry.place.column for entry in entries))
    digits = _DIGITS.get(measure, 2)
    rows: list[tuple[str, ...]] = []
    breaks = set()
    for row in dict.fromkeys(entry.place.row for entry in entries):
        held = {entry.place.column: entry for entry in entries if entry.place.row == row}
        lines: dict[str, list[str]] = {
            "ours": [_number(held, column, "ours", digits) for column in columns],
            "paper": [_number(held, column, "paper", digits) for column in columns],
            "difference": [_number(held, column, "difference", digits) for column in columns],
        }
        first = True
        if rows:
            breaks.add(len(rows))
        for name, texts in lines.items():
            if any(texts) or name == "ours":
                rows.append((row if first else "", name, *texts))
                first = False
    return Table(title, ("", "", *columns), tuple(rows), words=frozenset({0, 1}), breaks=frozenset(breaks))


def _number(held: Mapping[str, Entry], column: str, part: str, digits: int) -> str:
    entry = held.get(column)
    if entry is None:
        return ""
    if part == "ours":
        mark = "*" if entry.partial else ""
        return "" if entry.ours is None else f"{entry.ours:.{digits}f}{mark}"
    if part == "paper":
        return "" if entry.printed is None else f"{entry.printed.value:.{digits}f}"
    return "" if entry.difference is None else f"{entry.difference:+z.{digits}f}"


def _places(places: Iterable[Place], every: Iterable[Place]) -> str:
    """Places in words: whole columns, then whole rows, then the columns of other rows, among all places there are."""
    left = set(places)
    listed = list(every)
    said = []
    for column in dict.fromkeys(place.column for place in listed):
        held = {place for place in listed if place.column == column}
        if held <= left and len({place[:2] for place in held}) > 1:
            said.append(column)
            left -= held
    if len(said) == len({place.column for place in listed}):
        return "all"
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for block, row in dict.fromkeys(place[:2] for place in listed):
        held = {place for place in listed if place[:2] == (block, row)}
        mine = [place for place in listed if place in left and place in held]
        if mine:
            columns = () if len(mine) == len(held) else tuple(dict.fromkeys(place.column for place in mine))
            rows.setdefault((block, columns), []).append(row)
    for (block, columns), names in rows.items():
        said.append(f"{block}, {', '.join(names)}" + (f" ({', '.join(columns)})" if columns else ""))
    return "; ".join(said)
