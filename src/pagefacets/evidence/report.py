"""What a benchmark found: its rows, how sure they are, and one method against another."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from pagefacets.errors import InputError
from pagefacets.evidence.cells import Measured, Unable
from pagefacets.evidence.comparison import REFERENCE
from pagefacets.evidence.labelled import Labelled
from pagefacets.evidence.measures import Measure
from pagefacets.evidence.significance import LEVEL, RESAMPLES, Interval, Paired, intervals, paired
from pagefacets.evidence.sweep import Setting, Sweep

__all__ = ["LEADER", "Group", "Report", "Row"]

# The method that others are held against, where it was run.
LEADER = "magic"


@final
@dataclass(frozen=True)
class Group:
    """Queries whose mean counts once in the average: those of a data set, or of one of its languages."""

    data: str
    language: str
    places: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.data} {self.language}".strip()


class Row(NamedTuple):
    """A setting in the mean over all groups: `measures` by name, sizes and times of a page, and a query's time.

    `groups` holds the first measure of every group by its name.
    """

    setting: Setting
    measures: dict[str, Interval]
    groups: dict[str, float]
    vectors: float
    nbytes: float
    ms: float
    query_ms: float


@final
@dataclass(frozen=True, eq=False)
class Report:
    """The cells of one or more sweeps over one or more data sets.

    `rows` has every setting that ran on all data sets, `unable` says of each other why it did not. Averages are
    macro-averages over `groups`; intervals are 95% bootstrap intervals over queries.
    """

    data: tuple[Labelled, ...]
    sweeps: tuple[Sweep, ...]
    measures: tuple[Measure, ...]
    cells: Mapping[tuple[str, Setting], Measured | Unable]
    latencies: Mapping[tuple[str, Setting], float]
    held_out: str
    notes: tuple[str, ...]
    seed: int

    @functools.cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Every setting once, in the order of the sweeps."""
        return tuple(dict.fromkeys(setting for sweep in self.sweeps for setting in sweep.settings))

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """What the average is over."""
        return tuple(Group(one.name, language, places) for one in self.data for language, places in one.groups.items())

    @functools.cached_property
    def unable(self) -> dict[Setting, str]:
        """Settings that could not run on some data set, with the reason."""
        found: dict[Setting, str] = {}
        for (name, setting), cell in self.cells.items():
            if isinstance(cell, Unable):
                where = f" ({name})" if len(self.data) > 1 else ""
                found.setdefault(setting, f"{cell.why}{where}")
        return found

    @property
    def running(self) -> tuple[Setting, ...]:
        """Settings that ran everywhere."""
        return tuple(setting for setting in self.settings if setting not in self.unable)

    @functools.cached_property
    def rows(self) -> tuple[Row, ...]:
        """One row per setting that ran everywhere."""
        running = self.running
        if not running:
            return ()
        found: list[dict[str, Interval]] = [{} for _ in running]
        for measure in self.measures:
            strata = [np.stack(series) for series in zip(*(self.strata(one, measure) for one in running), strict=True)]
            for row, interval in zip(found, intervals(strata, seed=self.seed), strict=True):
                row[str(measure)] = interval
        return tuple(self._row(setting, of) for setting, of in zip(running, found, strict=True))

    def row(self, method: str, ratio: float | None = None) -> Row:
        """The row that is called `method` (its label), at a ratio."""
        named = [row for row in self.rows if row.setting.label == method]
        for row in named:
            if ratio is None or row.setting.nominal == ratio:
                return row
        for setting, why in self.unable.items():
            if setting.label == method:
                raise InputError(f"{method} could not run: {why}")
        there = sorted({f"{row.setting.nominal:g}" for row in named if row.setting.nominal})
        said = f"it ran at {', '.join(there)}" if there else f"there are {', '.join(self.labels)}"
        raise InputError(f"there is no {method} at {ratio} in this report: {said}")

    @property
    def labels(self) -> tuple[str, ...]:
        """What the rows are called, each once."""
        return tuple(dict.fromkeys(row.setting.label for row in self.rows))

    def strata(self, setting: Setting, measure: Measure | None = None) -> list[NDArray[np.float64]]:
        """The values of a setting's queries, one array per group."""
        name = str(self.measures[0] if measure is None else measure)
        found = []
        for group in self.groups:
            cell = self.cells[group.data, setting]
            if isinstance(cell, Unable):
                raise InputError(f"{setting.label} could not run: {cell.why}")
            found.append(cell.values[name][list(group.places)])
        return found

    def paired(self, ours: Setting, theirs: Setting, measure: Measure | str | None = None) -> Paired:
        """How far `ours` is ahead of `theirs`, query by query, with the p-value of a paired randomisation test."""
        asked = Measure.of(measure) if isinstance(measure, str) else measure
        return paired(self.strata(ours, asked), self.strata(theirs, asked), seed=self.seed)

    @functools.cached_property
    def leads(self) -> dict[tuple[Setting, Setting], Paired]:
        """MAGIC with its defaults against every other row of its ratio, by the first measure."""
        leaders: dict[float, Setting] = {}
        for one in self.running:
            if one.plain == LEADER and one.ratio is not None:
                leaders.setdefault(one.ratio, one)
        return {
            (leaders[theirs.ratio], theirs): self.paired(leaders[theirs.ratio], theirs)
            for theirs in self.running
            if theirs.ratio in leaders and leaders[theirs.ratio] != theirs
        }

    @property
    def whole(self) -> Row | None:
        """The row of the method that keeps every vector."""
        return next((row for row in self.rows if row.setting.method == REFERENCE), None)

    @property
    def machines(self) -> tuple[str, ...]:
        """What the times were taken on: more than one where a run was continued elsewhere."""
        return tuple(dict.fromkeys(cell.machine for cell in self.cells.values() if isinstance(cell, Measured)))

    @property
    def method_notes(self) -> tuple[str, ...]:
        """How the numbers came about."""
        pages = sum(len(one.pages) for one in self.data)
        queries = sum(len(one.asked) for one in self.data)
        average = f"; the average is over {len(self.groups)} groups" if len(self.groups) > 1 else ""
        timed = min((cell.timed for cell in self.cells.values() if isinstance(cell, Measured)), default=0)
        return (
            f"{queries:,} judged queries on {pages:,} pages{average}; intervals are {LEVEL:.0%} bootstrap intervals "
            f"over queries, {RESAMPLES:,} draws, seed {self.seed}",
            f"calibration pool: {self.held_out}",
            f"ms/page: one core, one page, this budget alone, at least {timed} pages; query ms: one query against all "
            f"pages, exhaustive MaxSim, all cores, the median",
            *self.notes,
        )

    def to_dict(self) -> dict[str, object]:
        """Every row and reason as JSON takes it."""
        return {
            "data": [{"name": one.name, "pages": len(one.pages), "queries": len(one.asked)} for one in self.data],
            "measures": [str(measure) for measure in self.measures],
            "rows": [_plain(row) for row in self.rows],
            "leads": [
                {"ours": ours.to_dict(), "theirs": theirs.to_dict(), **vars(found)}
                for (ours, theirs), found in self.leads.items()
            ],
            "unable": [{**setting.to_dict(), "why": why} for setting, why in self.unable.items()],
            "notes": list(self.method_notes),
            "machines": list(self.machines),
        }

    def save(self, folder: str | os.PathLike[str], *, command: str | None = None) -> list[Path]:
        """Write the report into a folder: report.html, report.md, report.json, two Parquet tables, and the plots."""
        from pagefacets.evidence.publish import publish

        return publish(self, Path(folder), command=command)

    def _row(self, setting: Setting, found: dict[str, Interval]) -> Row:
        cells = [cell for one in self.data if isinstance(cell := self.cells[one.name, setting], Measured)]
        first = self.strata(setting)
        return Row(
            setting,
            found,
            {group.name: float(values.mean()) for group, values in zip(self.groups, first, strict=True)},
            float(np.mean([cell.vectors for cell in cells])),
            float(np.mean([cell.nbytes for cell in cells])),
            float(np.mean([cell.ms for cell in cells])),
            float(np.mean([self.latencies[one.name, setting] for one in self.data])),
        )


def _plain(row: Row) -> dict[str, object]:
    return {
        **row.setting.to_dict(),
        "measures": {name: vars(found) for name, found in row.measures.items()},
        "groups": row.groups,
        "vectors_per_page": row.vectors,
        "bytes_per_page": row.nbytes,
        "ms_per_page": row.ms,
        "query_ms": row.query_ms,
    }
