"""The work of a benchmark: settings whose cells are missing, run over the pages of each data set in worker processes.

Settings that differ in their ratio alone share one pass over the pages. Workers compress; the scores and measures of a
pass are computed here when its last page has come back, and its cells are kept at once.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from pagefacets.data import PageVectors, as_page
from pagefacets.errors import InputError
from pagefacets.evidence.cells import Measured, Store, Unable, hashed
from pagefacets.evidence.compare import refuse_foreign, seconds, timed
from pagefacets.evidence.holdout import Fold, Holdout
from pagefacets.evidence.labelled import Labelled
from pagefacets.evidence.measures import Measure, values_of
from pagefacets.evidence.sweep import PoolSpec, Setting
from pagefacets.facets.compressor import Compressor
from pagefacets.interaction import PackedPages, maxsim
from pagefacets.parallel import available_cores, ordered
from pagefacets.products import one_thread
from pagefacets.progress import track
from pagefacets.vectors.files import VectorFile
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["Found", "key_of", "machine", "run"]

# Pages that go to a worker together.
PAGES = 8
# Below this many pages of work a second process has barely started when the first is done.
WORTH_WORKERS = 256
# Pages that are compared with the pool's embedding space before the work begins.
SAMPLE = 8

# Cells by data set and setting.
Found: TypeAlias = "dict[tuple[str, Setting], Measured | Unable]"


@final
@dataclasses.dataclass(frozen=True)
class _Pass:
    """One configuration at several ratios over the pages of one data set, with the pool of one fold."""

    data: int
    settings: tuple[Setting, ...]
    fold: Fold
    pool: int | None


class _Task(NamedTuple):
    number: int
    start: int
    pages: Sequence[PageVectors]
    timed: frozenset[int]


class _Done(NamedTuple):
    """Per setting of a pass: the vectors of some pages behind each other, their counts and offsets; or why not."""

    number: int
    pages: int
    rows: tuple[PageVectors, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    offsets: tuple[tuple[float, ...], ...] = ()
    nbytes: tuple[int, ...] = ()
    seconds: tuple[tuple[float, ...], ...] = ()
    unable: str | None = None


class _Work(NamedTuple):
    """What travels to each worker once."""

    passes: tuple[tuple[Compressor, tuple[float, ...] | None], ...]
    pools: tuple[CalibrationPool | None, ...]


def run(
    data: Sequence[Labelled],
    settings: Sequence[Setting],
    source: Holdout,
    measures: Sequence[Measure],
    store: Store,
    *,
    workers: int | None,
    progress: bool,
) -> Found:
    """Every setting on every data set: cells that the store has are read, the others are made and kept."""
    cells: dict[str, Measured | Unable] = {}
    missing: dict[str, tuple[int, Setting]] = {}
    keys = {
        (number, setting): key_of(one, setting, source, measures)
        for number, one in enumerate(data)
        for setting in settings
    }
    for (number, setting), key in keys.items():
        cell = store.find(key, len(data[number].asked))
        if cell is None:
            missing.setdefault(key, (number, setting))
        else:
            cells[key] = cell
    passes, pools, refused = _planned(data, list(missing.values()), source)
    cells |= {keys[place]: Unable(why) for place, why in refused.items()}
    if passes:
        _refuse_foreign(data, passes, source)
        sizes = [len(data[one.data].pages) for one in passes]
        if workers is None:
            workers = available_cores() if sum(sizes) >= WORTH_WORKERS else 1
        made = _Made(data, passes, measures)
        # Equal pools are one object, which travels to each worker once.
        work = _Work(
            tuple(_shared(one.settings) for one in passes),
            tuple(None if one.pool is None else pools[one.pool] for one in passes),
        )
        with closing(_counted(work, _tasks(data, passes, made), workers, sizes, progress=progress)) as results:
            for done in results:
                for number, setting, cell in made.add(done):
                    key = keys[number, setting]
                    cells[key] = cell
                    store.add(key, cell, {"data": data[number].name, **setting.to_dict()})
    return {(data[number].name, setting): cells[key] for (number, setting), key in keys.items()}


def key_of(data: Labelled, setting: Setting, source: Holdout, measures: Sequence[Measure]) -> str:
    """The name of a cell: a hash of everything its numbers depend on."""
    method = setting.compressor
    return hashed(
        {
            "data": data.digest,
            "method": method.config(),
            "pool": [dataclasses.asdict(setting.pool), source.identity()] if method.needs_pool else None,
            "measures": [str(measure) for measure in measures],
        }
    )


def machine() -> str:
    """What the times were taken on."""
    cpu = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    for line in described.read_text(errors="replace").splitlines() if described.exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return f"{cpu}, {os.cpu_count()} cores, torch {torch.__version__}"


def _planned(
    data: Sequence[Labelled], missing: Sequence[tuple[int, Setting]], source: Holdout
) -> tuple[list[_Pass], list[CalibrationPool], dict[tuple[int, Setting], str]]:
    """Passes over the pages for what is missing, with their pools; and what no pool can be had for."""
    groups: dict[tuple[int, object], list[Setting]] = {}
    for number, setting in missing:
        shared = None if setting.ratio is None else (setting.method, setting.options, setting.pool)
        groups.setdefault((number, shared or setting), []).append(setting)
    passes: list[_Pass] = []
    pools: list[CalibrationPool] = []
    places: dict[tuple[int, Fold, PoolSpec] | PoolSpec, int] = {}
    refused: dict[tuple[int, Setting], str] = {}
    for (number, _), settings in groups.items():
        one = data[number]
        if not settings[0].compressor.needs_pool:
            passes.append(_Pass(number, tuple(settings), Fold(tuple(range(len(one.asked)))), None))
            continue
        spec = settings[0].pool
        try:
            folds = source.folds(one)
            for fold in folds:
                # A pool that is not chosen from the data itself serves all data sets.
                place: tuple[int, Fold, PoolSpec] | PoolSpec = (number, fold, spec) if fold.calibration else spec
                if place not in places:
                    pools.append(source.pool(one, fold, spec))
                    places[place] = len(pools) - 1
                passes.append(_Pass(number, tuple(settings), fold, places[place]))
        except InputError as error:
            refused |= {(number, setting): str(error) for setting in settings}
    return passes, pools, refused


def _refuse_foreign(data: Sequence[Labelled], passes: Sequence[_Pass], source: Holdout) -> None:
    if source.fixed is None:
        return
    for number in {one.data for one in passes if one.pool is not None}:
        pages = data[number].pages
        refuse_foreign(source.fixed, pages, range(min(SAMPLE, len(pages))), f" of {data[number].name}")


def _shared(settings: Sequence[Setting]) -> tuple[Compressor, tuple[float, ...] | None]:
    first = settings[0]
    return first.compressor, None if first.ratio is None else tuple(setting.ratio or 0.0 for setting in settings)


def _tasks(data: Sequence[Labelled], passes: Sequence[_Pass], made: _Made) -> Iterator[_Task]:
    for number, one in enumerate(passes):
        pages = data[one.data].pages
        alone = timed(range(len(pages)))
        for start in range(0, len(pages), PAGES):
            if number in made.unable:
                break
            yield _Task(
                number, start, pages[start : start + PAGES], frozenset(alone & set(range(start, start + PAGES)))
            )


def _counted(
    work: _Work, tasks: Iterator[_Task], workers: int, sizes: Sequence[int], *, progress: bool
) -> Generator[_Done, None, None]:
    results = ordered(_work, tasks, workers=workers, shared=work)
    if not progress:
        yield from results
        return
    left = list(sizes)

    def pages() -> Iterator[_Done | None]:
        for done in results:
            # A method that cannot go on has its other pages behind it, too.
            gone = left[done.number] if done.unable is not None else done.pages
            left[done.number] -= gone
            if gone:
                yield from [done, *[None] * (gone - 1)]

    yield from (done for done in track(pages(), sum(sizes), "measuring", unit="pages") if done is not None)


def _work(work: _Work, task: _Task) -> _Done:
    method, ratios = work.passes[task.number]
    pool = work.pools[task.number]
    alone = [method] if ratios is None else [dataclasses.replace(method, ratio=ratio) for ratio in ratios]
    kept: list[list[Tensor]] = [[] for _ in alone]
    offsets: list[list[float]] = [[] for _ in alone]
    nbytes = [0 for _ in alone]
    spent: list[list[float]] = [[] for _ in alone]
    try:
        with torch.no_grad(), one_thread():
            for number, given in enumerate(task.pages, start=task.start):
                named = as_page(given)
                page = (named if named.id is not None else dataclasses.replace(named, id=str(number))).to("cpu")
                made = [method.compress(page, pool)] if ratios is None else method.compress_ratios(page, ratios, pool)
                for i, facets in enumerate(made):
                    kept[i].append(facets.vectors)
                    offsets[i].append(facets.offset or 0.0)
                    nbytes[i] += facets.nbytes
                    if number in task.timed:
                        spent[i].append(seconds(alone[i], page, pool))
    except InputError as error:
        return _Done(task.number, len(task.pages), unable=str(error))
    if isinstance(task.pages, VectorFile):
        task.pages.release()
    return _Done(
        task.number,
        len(task.pages),
        tuple(PageVectors(torch.cat(one)) for one in kept),
        tuple(tuple(map(len, one)) for one in kept),
        tuple(map(tuple, offsets)),
        tuple(nbytes),
        tuple(map(tuple, spent)),
    )


@final
class _Made:
    """What has come back of each pass, and the cells that it makes."""

    def __init__(self, data: Sequence[Labelled], passes: Sequence[_Pass], measures: Sequence[Measure]) -> None:
        self.data, self.passes, self.measures = data, passes, measures
        self.unable: dict[int, str] = {}
        self._parts: list[_Done] = []
        self._folds: dict[tuple[int, Setting], list[Measured]] = {}
        self._machine = machine()

    def add(self, done: _Done) -> Iterator[tuple[int, Setting, Measured | Unable]]:
        """The cells that are whole now."""
        one = self.passes[done.number]
        if done.number in self.unable:
            return
        if done.unable is not None:
            # The other folds of these settings would meet the same page.
            for number, other in enumerate(self.passes):
                if other.data == one.data and other.settings == one.settings:
                    self.unable[number] = done.unable
            self._parts = []
            for setting in one.settings:
                self._folds.pop((one.data, setting), None)
                yield one.data, setting, Unable(done.unable)
            return
        self._parts.append(done)
        if sum(part.pages for part in self._parts) < len(self.data[one.data].pages):
            return
        parts, self._parts = self._parts, []
        for i, setting in enumerate(one.settings):
            folds = self._folds.setdefault((one.data, setting), [])
            folds.append(self._measured(one, i, parts))
            if sum(len(cell.values[str(self.measures[0])]) for cell in folds) == len(self.data[one.data].asked):
                yield one.data, setting, self._whole(one.data, setting)

    def _measured(self, one: _Pass, i: int, parts: Sequence[_Done]) -> Measured:
        """Setting i of a pass on the queries of its fold."""
        data = self.data[one.data]
        counts = [count for part in parts for count in part.counts[i]]
        bias = torch.tensor([offset for part in parts for offset in part.offsets[i]])
        packed = PackedPages(
            torch.cat([part.rows[i].vectors for part in parts]),
            torch.tensor([0, *counts]).cumsum(0),
            bias if bool(bias.any()) else None,
        )
        asked = [data.asked[place] for place in one.fold.measured]
        scores = maxsim([data.queries[query] for query in asked], packed)
        values = values_of(scores, [data.query_ids[query] for query in asked], data.page_ids, data.qrels, self.measures)
        spent = [second for part in parts for second in part.seconds[i]]
        return Measured(
            values,
            tuple(counts),
            sum(counts) / len(counts),
            sum(part.nbytes[i] for part in parts) / len(counts),
            1e3 * sum(spent) / len(spent),
            len(spent),
            self._machine,
        )

    def _whole(self, number: int, setting: Setting) -> Measured:
        """The folds of a setting as one cell: every query once, sizes and times in the mean."""
        folds = self._folds.pop((number, setting))
        measured = [one.fold.measured for one in self.passes if one.data == number and setting in one.settings]
        order = np.argsort([place for places in measured for place in places])
        return Measured(
            {name: np.concatenate([cell.values[name] for cell in folds])[order] for name in folds[0].values},
            folds[0].counts,
            float(np.mean([cell.vectors for cell in folds])),
            float(np.mean([cell.nbytes for cell in folds])),
            float(np.mean([cell.ms for cell in folds])),
            sum(cell.timed for cell in folds),
            folds[0].machine,
        )
