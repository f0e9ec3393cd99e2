"""pf.benchmark: compress the pages of labelled data by every method at every ratio, and measure what is found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pagefacets.errors import InputError
from pagefacets.evidence.cells import Measured, Store
from pagefacets.evidence.compare import RATIOS, held
from pagefacets.evidence.holdout import Holdout, PoolSource, holdout
from pagefacets.evidence.labelled import Labelled, Source, open_all
from pagefacets.evidence.latency import latencies
from pagefacets.evidence.measures import MEASURES, measures_of
from pagefacets.evidence.misalignment import Tokens
from pagefacets.evidence.report import Report
from pagefacets.evidence.runner import run
from pagefacets.evidence.sweep import Setting, Sweep, budgets
from pagefacets.extras import require
from pagefacets.facets.compressor import whole_number

__all__ = ["benchmark"]

# A pool that holds this share of the queries' tokens was made of them.
MOST = 0.5


def benchmark(
    data: Source | Sequence[Source],
    methods: Sequence[str] | str = "all",
    ratios: Sequence[float] = RATIOS,
    *,
    sweeps: Sweep | Sequence[Sweep] | None = None,
    pool: PoolSource = "split",
    measures: Sequence[str] | str = MEASURES,
    results: str | os.PathLike[str] | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
) -> Report:
    """Measure compressors by the answers that are left: pages are compressed, all judged queries ranked by MaxSim.

    `data` is one or several caches, files of vectors with queries and qrels inside, or `Labelled` objects; the average
    over several counts each once, and so each language of their queries. Every method runs at every ratio, or, with
    `sweeps`, what those list. `pool` says where calibration pools come from: "split" chooses one from every second
    query and measures on the others, both ways; a pool or its file is used as it is; a cache or file with queries is
    chosen from.

    `results` is a folder in which every finished cell is kept: the next call with the same data and options goes on
    where this one was stopped. A method that cannot run on these pages is named in the report, with the reason.
    """
    asked = measures_of(measures)
    whole_number("seed", seed, 0)
    if workers is not None:
        whole_number("workers", workers, 1)
    require("pytrec_eval", extra="bench")
    listed = _sweeps(sweeps, methods, ratios)
    settings = tuple(dict.fromkeys(setting for sweep in listed for setting in sweep.settings))
    opened = open_all(data)
    source = holdout(pool, seed)
    if any(setting.compressor.needs_pool for setting in settings):
        for one in opened:
            source.folds(one)
    store = Store(None if results is None else Path(results))
    cells = run(opened, settings, source, asked, store, workers=workers, progress=progress)
    timed: dict[tuple[str, Setting], float] = {}
    for one in opened:
        mine = {s: cell for s in settings if isinstance(cell := cells[one.name, s], Measured)}
        took = latencies(one, [cell.counts for cell in mine.values()], store, progress=progress)
        timed |= {(one.name, setting): took[cell.counts] for setting, cell in mine.items()}
    return Report(
        data=tuple(opened),
        sweeps=listed,
        measures=asked,
        cells=cells,
        latencies=timed,
        held_out=source.said,
        notes=tuple(_notes(source, settings, opened)),
        seed=seed,
    )


def _sweeps(
    sweeps: Sweep | Sequence[Sweep] | None, methods: Sequence[str] | str, ratios: Sequence[float]
) -> tuple[Sweep, ...]:
    if sweeps is None:
        return (budgets(methods, ratios),)
    listed = (sweeps,) if isinstance(sweeps, Sweep) else tuple(sweeps)
    if not listed or not all(isinstance(one, Sweep) for one in listed):
        raise InputError("sweeps must be one or several Sweep objects, such as table2()")
    return listed


def _notes(source: Holdout, settings: Sequence[Setting], data: Sequence[Labelled]) -> Iterator[str]:
    for one in data:
        yield from one.notes
    if any(setting.compressor.needs_pool for setting in settings):
        yield from _seen(source, data)
        yield from _small(source, settings, data)


def _seen(source: Holdout, data: Sequence[Labelled]) -> Iterator[str]:
    """What to know of a pool that was made of the queries it is judged by."""
    if source.fixed is None:
        return
    for one in data:
        share = held(source.fixed, Tokens.of([one.queries[i] for i in one.asked]))
        if share is not None and share >= MOST:
            yield (
                f"{share:.0%} of the pool's tokens are among the queries of {one.name}: methods that read the pool "
                f"have seen them, so measure with pool='split', or with queries that the pool was not made of"
            )


def _small(source: Holdout, settings: Sequence[Setting], data: Sequence[Labelled]) -> Iterator[str]:
    """What to know of pools that are asked for more tokens than there are."""
    sizes = {setting.pool.size for setting in settings if setting.compressor.needs_pool}
    for one in data:
        counts = [count for fold in source.folds(one) if (count := source.tokens(one, fold)) is not None]
        if counts and (short := sorted(size for size in sizes if size > min(counts))):
            yield (
                f"{one.name}: there are {min(counts):,} calibration tokens to choose from, so a pool of "
                f"{' or '.join(f'{size:,}' for size in short)} holds them all, however it is chosen"
            )
