"""Reproduce a table or figure of the paper: encode, compress, measure, and set our numbers beside the paper's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from pagefacets.errors import InputError, Skipped
from pagefacets.evidence.benchmark import benchmark
from pagefacets.evidence.caches import TRAINING, Caches
from pagefacets.evidence.cells import Measured
from pagefacets.evidence.labelled import Labelled
from pagefacets.evidence.paper import Artifact, Place, artifact
from pagefacets.evidence.recipes import RECIPES, Cell, Panel
from pagefacets.evidence.report import Report
from pagefacets.evidence.reproduction import Entry, Reproduction
from pagefacets.evidence.retrievers import DataChoice, ModelChoice, Wanted
from pagefacets.evidence.significance import Interval, intervals
from pagefacets.evidence.sweep import Setting
from pagefacets.facets.compressor import whole_number

__all__ = ["reproduce"]

AVERAGE = "Avg."
# Pages that Table 3 and Figure 1 draw, as the paper does.
DRAWN = {"table3": 2000, "figure1": 1000}


@final
@dataclass(frozen=True)
class _Column:
    """A column of a panel: the groups of queries whose means are averaged in it, or why there are none.

    `partial` says what the average is over where that is not what the paper's is over.
    """

    name: str
    groups: tuple[tuple[str, str], ...] = ()
    partial: str | None = None
    why: str | None = None


class _Data(NamedTuple):
    """The data sets of a panel that could be had, and why the others could not."""

    wanted: tuple[Wanted, ...]
    found: tuple[Labelled, ...]
    lost: Mapping[str, str]


def reproduce(
    name: str,
    data: Sequence[str] = (),
    models: Sequence[str] = (),
    cache: str | os.PathLike[str] = "reproduction",
    *,
    training: str = TRAINING,
    options: Mapping[str, Mapping[str, object]] | None = None,
    pages: int | None = None,
    queries: int = 1000,
    replays: int = 5,
    device: str | None = None,
    workers: int | None = None,
    keep_going: bool = False,
    skipped: Skipped | None = None,
    seed: int = 0,
    progress: bool = False,
    say: Callable[[str], None] | None = None,
) -> Reproduction:
    """Run the recipe of a table or figure and set each number beside the paper's.

    `data` and `models` take the place of the paper's data sets and checkpoints, as `DataChoice.of` and `ModelChoice.of`
    read them. `cache` keeps encoded vectors and measured cells: the next call goes on where this one was stopped.
    Calibration pools are chosen from the queries of `training`. What cannot be run says why in the result; nothing at
    all is an error.

    Table 3 and Figure 1 draw `pages` pages (2,000 and 1,000, as the paper); Table 3 replays `queries` queries and
    compresses and encodes its pages `replays` times.
    """
    wanted = artifact(name)
    whole_number("seed", seed, 0)
    drawn = DRAWN.get(name) if pages is None else pages
    for what, count in (("pages", drawn), ("queries", queries), ("replays", replays), ("workers", workers)):
        if count is not None:
            whole_number(what, count, 1)
    folder = Path(cache)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder for the caches")
    if not folder.resolve().parent.is_dir():
        raise InputError(f"the folder {folder.resolve().parent} does not exist: create it first")
    choice, chosen = DataChoice.of(data), ModelChoice.of(models, options)
    folder.mkdir(exist_ok=True)
    caches = Caches(
        folder,
        chosen,
        training=training,
        device=device,
        keep_going=keep_going,
        skipped=skipped,
        seed=seed,
        progress=progress,
        say=say or (lambda _: None),
    )
    if name == "table3":
        from pagefacets.evidence.table3 import table3

        found = table3(wanted, choice, caches, pages=drawn or 1, queries=queries, replays=replays, seed=seed)
    elif name == "figure1":
        from pagefacets.evidence.figure1 import figure1

        found = figure1(wanted, choice, caches, pages=drawn or 1, workers=workers, seed=seed, progress=progress)
    else:
        found = _measured(wanted, choice, caches, workers=workers, seed=seed, progress=progress)
    if not found.ran:
        said = "; ".join(dict.fromkeys(found.unable))
        raise InputError(f"nothing of {name} could be run: {said}")
    return found


def _measured(
    wanted: Artifact,
    choice: DataChoice,
    caches: Caches,
    *,
    workers: int | None,
    seed: int,
    progress: bool,
) -> Reproduction:
    """An artifact that is measured by answers."""
    entries: list[Entry] = []
    reports: dict[str, Report] = {}
    notes: list[str] = []
    for panel in RECIPES[wanted.name]():
        data = _opened(panel, choice, caches)
        columns = _columns(panel, data)
        if not data.found:
            why = "; ".join(dict.fromkeys(data.lost.values()))
            entries += _blank(wanted, panel, columns, why)
            continue
        pool, no_pool = None, None
        if panel.needs_pool:
            try:
                pool = caches.calibration(panel.model)
            except InputError as error:
                no_pool = f"no calibration pool, because of this: {error}"
        try:
            report = benchmark(
                data.found,
                sweeps=panel.sweep,
                pool=pool,
                measures=panel.measures,
                results=caches.folder / "measured",
                seed=seed,
                workers=workers,
                progress=progress,
            )
        except InputError as error:
            entries += _blank(wanted, panel, columns, str(error))
            continue
        reports[panel.sweep.name] = report
        notes += _notes(panel, data, caches)
        entries += _entries(wanted, panel, columns, report, no_pool)
    notes += [f"calibration pool: {report.held_out}" for report in reports.values()]
    return Reproduction(wanted, tuple(entries), tuple(dict.fromkeys(notes)), reports)


def _opened(panel: Panel, choice: DataChoice, caches: Caches) -> _Data:
    wanted = tuple(one for suite in panel.suites for one in choice.of_suite(suite))
    # Data sets of one's own stand in for every suite of a panel: once is enough.
    wanted = tuple(dict.fromkeys(wanted))
    found: list[Labelled] = []
    lost: dict[str, str] = {}
    for one in wanted:
        if one.place is None:
            lost[one.column] = "it is not among the data sets that were asked for"
            continue
        try:
            found.append(caches.labelled(panel.model, one.place, one.column))
        except InputError as error:
            lost[one.column] = str(error)
    return _Data(wanted, tuple(found), lost)


def _columns(panel: Panel, data: _Data) -> list[_Column]:
    """The columns of a panel; the average's name is that of the setting where it has no column of its own."""
    held = {one.name: one for one in data.found}
    if panel.columns == "languages":
        return [column for one in data.wanted for column in _languages(one, held.get(one.column), data.lost)]
    columns = []
    for one in data.wanted:
        if one.column in held:
            groups = tuple((one.column, language) for language in held[one.column].groups)
            columns.append(_Column(one.column, groups, None if one.printed else "a data set that is not the paper's"))
        else:
            columns.append(_Column(one.column, why=data.lost[one.column]))
    groups = tuple(group for column in columns for group in column.groups)
    missing = [column.name for column in columns if not column.groups]
    partial = f"without {', '.join(missing)}" if missing else next((c.partial for c in columns if c.partial), None)
    why = None if groups else "; ".join(dict.fromkeys(data.lost.values()))
    average = _Column(AVERAGE, groups, partial, why)
    return [average] if panel.columns == "average" else [*columns, average]


def _languages(one: Wanted, held: Labelled | None, lost: Mapping[str, str]) -> list[_Column]:
    """English and the mean over all languages of a data set; of one in a single language, that."""
    names = ["ESG Human"] if one.column == "ESG human" else [f"{one.column} EN", f"{one.column} Multi."]
    if held is None:
        return [_Column(name, why=lost[one.column]) for name in names]
    partial = None if one.printed else "a data set that is not the paper's"
    every = tuple((one.column, language) for language in held.groups)
    if len(names) == 1:
        return [_Column(names[0], every, partial)]
    english = tuple(group for group in every if group[1].casefold() in ("english", "en", ""))
    spoken = ", ".join(language or "one language" for _, language in every)
    return [
        _Column(names[0], english, partial, None if english else f"{one.column} has queries in {spoken}, not English"),
        _Column(
            names[1], every if len(every) > 1 else (), partial, f"{one.column} has queries in {spoken}, not in several"
        ),
    ]


def _placed(cell: Cell, column: _Column, measure: str) -> Place:
    return Place(cell.block, cell.row, cell.column or column.name, measure)


def _blank(wanted: Artifact, panel: Panel, columns: Sequence[_Column], why: str) -> Iterator[Entry]:
    for cell in panel.cells.values():
        for column in columns:
            for measure in panel.measures:
                place = _placed(cell, column, measure)
                yield Entry(place, printed=wanted.numbers.get(place), why=column.why or why)


def _entries(
    wanted: Artifact, panel: Panel, columns: Sequence[_Column], report: Report, no_pool: str | None
) -> Iterator[Entry]:
    for column in columns:
        for measure in report.measures:
            found = _intervals(report, panel, column, str(measure))
            for setting, cell in panel.cells.items():
                place = _placed(cell, column, str(measure))
                printed = wanted.numbers.get(place)
                one = found.get(setting)
                if one is None:
                    why = (column.why if not column.groups else None) or _why(report, setting, no_pool)
                    yield Entry(place, printed=printed, why=why)
                else:
                    low, high = 100 * one.low, 100 * one.high
                    yield Entry(place, 100 * one.mean, low, high, printed, partial=column.partial)


def _intervals(report: Report, panel: Panel, column: _Column, measure: str) -> dict[Setting, Interval]:
    """The mean of every setting that ran on all data sets of a column."""
    names = {data for data, _ in column.groups}
    ran = [s for s in panel.cells if names and all(isinstance(report.cells[n, s], Measured) for n in names)]
    if not ran:
        return {}
    strata: list[NDArray[np.float64]] = []
    for group in report.groups:
        if (group.data, group.language) in column.groups:
            rows = []
            for setting in ran:
                cell = report.cells[group.data, setting]
                assert isinstance(cell, Measured)  # noqa: S101  # that is what `ran` says
                rows.append(cell.values[measure][list(group.places)])
            strata.append(np.stack(rows))
    return dict(zip(ran, intervals(strata, seed=report.seed), strict=True))


def _why(report: Report, setting: Setting, no_pool: str | None) -> str:
    if no_pool is not None and setting.compressor.needs_pool:
        return no_pool
    return report.unable.get(setting, "it did not run")


def _notes(panel: Panel, data: _Data, caches: Caches) -> Iterator[str]:
    """What was measured, in words."""
    one = caches.models.find(panel.model)
    instead = f" ({one.place} in its stead)" if one.stands_in else f" ({one.place})"
    yield f"retriever: {panel.model}{instead}"
    for labelled in data.found:
        yield (
            f"{labelled.name}: {labelled.source or labelled.name}, {len(labelled.pages):,} pages, "
            f"{len(labelled.asked):,} judged queries"
        )
    if any(not one.printed for one in data.wanted if one.column not in data.lost):
        yield "numbers marked * are of other data than the paper's, so they are beside its numbers without a difference"
    elif data.lost:
        yield "averages marked * are over fewer data sets than the paper's, so they are without a difference"
    for labelled in data.found:
        yield from labelled.notes
