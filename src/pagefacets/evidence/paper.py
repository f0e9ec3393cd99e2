"""What the paper prints, from `paper.toml`: each number with the place where it stands and what is odd about it."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple, final

from pagefacets.errors import InputError

__all__ = ["ARTIFACTS", "Artifact", "Place", "Printed", "artifact"]

# Every table and figure with numbers, in the paper's order.
ARTIFACTS = (
    "table1",
    "table2",
    "table3",
    "learned",
    "single-vector",
    "figure1",
    "figure3",
    "figure5",
    "figure6",
    "figure9",
    "figure10",
)
_NOTHING = "-"


class Place(NamedTuple):
    """Where a number stands: a block of rows, a row, a column, and which measure of that cell."""

    block: str
    row: str
    column: str
    measure: str


@final
@dataclass(frozen=True)
class Printed:
    """A number as the paper prints it, where, and what to know of it."""

    value: float
    where: str
    notes: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Artifact:
    """One table or figure: its axes and its numbers."""

    name: str
    title: str
    where: str
    measures: tuple[str, ...]
    columns: tuple[str, ...]
    numbers: Mapping[Place, Printed]


@functools.cache
def artifact(name: str) -> Artifact:
    """A table or figure by its name, such as table1."""
    if name not in ARTIFACTS:
        raise InputError(f"there is no {name!r} to reproduce: choose from {', '.join(ARTIFACTS)}")
    read = _read()[name]
    columns, measures = tuple(read["columns"]), tuple(read["measures"])
    numbers = {}
    for block, rows in read["rows"].items():
        for row, line in rows.items():
            stands = {"values": line, "where": read["where"]} if isinstance(line, str) else line
            for column, cell in zip(columns, stands["values"].split("|"), strict=True):
                for measure, text in zip(measures, cell.split("/"), strict=True):
                    if text.strip() != _NOTHING:
                        place = Place(block, row, column, measure)
                        notes = tuple(note["says"] for note in read.get("notes", ()) if _about(note, place))
                        numbers[place] = Printed(float(text), stands["where"], notes)
    return Artifact(name, read["title"], read["where"], measures, columns, numbers)


@functools.cache
def _read() -> dict[str, Any]:
    return tomllib.loads(files("pagefacets.evidence").joinpath("paper.toml").read_text(encoding="utf-8"))


def _about(note: Mapping[str, str], place: Place) -> bool:
    """Whether a note speaks of the number at `place`: it may leave out any part of it."""
    return all(note.get(part, value) == value for part, value in place._asdict().items())
