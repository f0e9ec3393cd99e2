"""Which compressor keeps what queries ask of these pages? Every method at every ratio, side by side."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pagefacets.data import ArrayLike, Facets, PageVectors, as_page, unit_rows
from pagefacets.errors import InputError
from pagefacets.evidence.comparison import REFERENCE, Cell, Comparison
from pagefacets.evidence.misalignment import (
    Degradation,
    Queries,
    Tokens,
    checked_units,
    entropy_count,
    matched,
    mean_change,
    mean_loss,
    selections,
    squared_distances,
)
from pagefacets.facets.compressor import Compressor, whole_number
from pagefacets.facets.registry import METHODS, compressor
from pagefacets.farthest import SAME
from pagefacets.parallel import available_cores, ordered
from pagefacets.products import one_thread
from pagefacets.progress import track
from pagefacets.vectors.files import VectorFile
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["RATIOS", "compare", "held", "method_names", "refuse_foreign", "seconds", "timed"]

RATIOS = (0.5, 0.25, 0.1, 0.05, 0.025, 0.01)
# Pages on which each method is timed at each ratio alone.
TIMED = 5
# Pages that are compared with the pool's embedding space before the work begins.
SAMPLE = 8
# Below this many pages a second process has barely started when the first is done.
WORTH_WORKERS = 8

Pages: TypeAlias = "Sequence[PageVectors | ArrayLike]"


def compare(
    pages: Pages,
    pool: CalibrationPool | None = None,
    queries: Queries | None = None,
    *,
    methods: Sequence[str] | str = "all",
    ratios: Sequence[float] = RATIOS,
    sample: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = False,
) -> Comparison:
    """Compress the same pages by every method at every ratio, and measure each result under the demand of `queries`.

    `methods` are names, "all" of them or "magic,kmeans" in one string; `sample` takes that many pages, drawn with
    `seed`. Without queries the pool's tokens stand in for them, which flatters a method that has seen the pool: the
    result's `notes` say so. A method that cannot use some page is named in `unable` and leaves the others running.

    Ratios share work where a method allows it. Times are therefore taken apart: each method runs at each ratio alone,
    after a run that is not counted, on five pages spread over the whole (all of fewer), one thread each.

    Pages go to `workers` processes (by default one per core) a few at a time, and a file is never held whole.
    """
    if not isinstance(pages, Sequence):
        raise InputError(f"pages must be a list or a file of pages, got a {type(pages).__name__}: make a list of them")
    if isinstance(pages, VectorFile) and pages.kind == "facets":
        raise InputError(f"{pages.name} already holds facets: compare on the page vectors they were made from")
    if not len(pages):
        raise InputError("there are no pages to compare on: pass at least one")
    if workers is not None:
        whole_number("workers", workers, 1)
    if pool is not None and not isinstance(pool, CalibrationPool):
        raise InputError(f"pool must be a CalibrationPool, got {type(pool).__name__}: open a file with its load()")
    budgets = tuple(sorted(set(ratios), reverse=True)) if isinstance(ratios, Iterable) else ()
    if not budgets:
        raise InputError(f"ratios must be a list of shares, got {ratios!r}: pass some, such as {RATIOS}")
    chosen = {name: _compressor(name, budgets) for name in method_names(methods)}
    tokens = _tokens(queries, pool)
    numbers = _numbers(len(pages), sample, seed)
    origin = f" of {pages.name}" if isinstance(pages, VectorFile) else ""
    readers = tuple(name for name, method in chosen.items() if method.needs_pool)
    if pool is not None and (readers or queries is None):
        _check_pool(pool, tokens, pages, numbers[:SAMPLE], origin)
    sums = _Sums(chosen)
    work = _Work(chosen, budgets, pool if readers else None, tokens.Q.cpu())
    tasks = _tasks(pages, numbers, origin, sums)
    if workers is None:
        workers = available_cores() if len(numbers) >= WORTH_WORKERS else 1
    with closing(_outcomes(work, tasks, workers, len(numbers), progress=progress)) as outcomes:
        for outcome in outcomes:
            sums.add(outcome)
    seen = tuple(name for name in readers if name not in sums.unable)
    return Comparison(
        cells=sums.cells(budgets),
        unable=sums.unable,
        pages=sums.pages,
        vectors=sums.rows / sums.pages,
        nbytes=sums.nbytes / sums.pages,
        judged_by="pool" if queries is None else "queries",
        queries=None if tokens.queries is None else len(tokens.queries),
        tokens=len(tokens.Q),
        held_in_pool=held(pool, tokens) if seen and queries is not None else None,
        pool_readers=seen,
        timed_pages=sums.timed,
    )


class _Work(NamedTuple):
    """What every page is put through; it travels to each worker once."""

    methods: Mapping[str, Compressor]
    ratios: tuple[float, ...]
    pool: CalibrationPool | None
    Q: Float[Tensor, "L p"]


class _Task(NamedTuple):
    """A page, or a view of a file that holds this page alone, and the methods that still run."""

    page: PageVectors | ArrayLike
    number: int
    origin: str
    names: tuple[str, ...]
    timed: bool

    def label(self, page: PageVectors) -> str:
        """How an error names the page."""
        named = "" if page.id is None else f" ({page.id!r})"
        return f"page {self.number}{named}{self.origin}"


class _Asked(NamedTuple):
    """What queries ask of a page as it was: computed once, however many facets are held against it."""

    D: Float[Tensor, "N p"]
    h: Float[Tensor, " L"]
    w: Float[Tensor, " N"]


class _Outcome(NamedTuple):
    """A page's numbers: one row per ratio for each method, seconds where it was timed, or why it cannot."""

    rows: int
    nbytes: int
    timed: bool
    found: dict[str, NDArray[np.float64]]
    seconds: dict[str, NDArray[np.float64]]
    unable: dict[str, str]


def _outcomes(
    work: _Work, tasks: Iterator[_Task], workers: int, total: int, *, progress: bool
) -> Generator[_Outcome, None, None]:
    results = ordered(_work, tasks, workers=workers, shared=work)
    yield from track(results, total, "comparing", unit="pages") if progress else results


def _work(work: _Work, task: _Task) -> _Outcome:
    given = task.page[0] if isinstance(task.page, VectorFile) else as_page(task.page)
    label = task.label(given)
    named = given if given.id is not None else dataclasses.replace(given, id=str(task.number))
    page = named.to("cpu")
    outcome = _Outcome(page.n, page.nbytes, task.timed, {}, {}, {})
    with torch.no_grad(), one_thread():
        asked = _ask(page, work.Q, label)
        for name in task.names:
            method = work.methods[name]
            try:
                outcome.found[name] = np.array(
                    [_numbers_of(facets, asked, work.Q, name, label) for facets in _compressed(method, page, work)]
                )
                if task.timed:
                    outcome.seconds[name] = np.array([seconds(alone, page, work.pool) for alone in _each(method, work)])
            except InputError as error:
                outcome.unable[name] = str(error)
    if isinstance(task.page, VectorFile):
        task.page.release()
    return outcome


def _ask(page: PageVectors, Q: Float[Tensor, "L p"], label: str) -> _Asked:
    if page.dim != Q.shape[1]:
        raise InputError(
            f"{label} has dimension {page.dim} but the query tokens have {Q.shape[1]}: use the vectors of one model"
        )
    D = checked_units(page.vectors, label)
    best = matched(Q, D)
    return _Asked(D, best.score, selections(best.row, len(D)) / len(Q))


def _compressed(method: Compressor, page: PageVectors, work: _Work) -> list[Facets]:
    if method.name == REFERENCE:
        return [method.compress(page)]
    return method.compress_ratios(page, work.ratios, work.pool)


def _each(method: Compressor, work: _Work) -> list[Compressor]:
    """The method at every ratio alone."""
    return [method] if method.name == REFERENCE else [dataclasses.replace(method, ratio=r) for r in work.ratios]


def seconds(method: Compressor, page: PageVectors, pool: CalibrationPool | None) -> float:
    """What one page costs this thread."""
    start = time.thread_time()
    method.compress(page, pool)
    return time.thread_time() - start


def _numbers_of(facets: Facets, asked: _Asked, Q: Float[Tensor, "L p"], name: str, label: str) -> tuple[float, ...]:
    D, h, w = asked
    F = checked_units(facets.vectors, f"{name}'s facets of {label}")
    nearest = matched(D, F).row
    change = mean_change(h, matched(Q, F).score + (facets.offset or 0.0))
    return (
        facets.k,
        facets.nbytes,
        mean_loss(squared_distances(D, F, nearest), w),
        entropy_count(nearest, facets.k, w),
        change.positive,
        change.signed,
        change.absolute,
    )


@final
class _Sums:
    """Totals over the pages seen so far, for the methods that could run on all of them."""

    def __init__(self, methods: Mapping[str, Compressor]) -> None:
        self.methods = methods
        self.unable: dict[str, str] = {}
        self.pages = self.rows = self.nbytes = self.timed = 0
        self._found: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(()))
        self._seconds: defaultdict[str, NDArray[np.float64]] = defaultdict(lambda: np.zeros(()))

    def running(self) -> tuple[str, ...]:
        return tuple(name for name in self.methods if name not in self.unable)

    def add(self, outcome: _Outcome) -> None:
        self.pages += 1
        self.rows += outcome.rows
        self.nbytes += outcome.nbytes
        self.timed += outcome.timed
        for name, why in outcome.unable.items():
            self.unable.setdefault(name, why)
        if not self.running():
            raise InputError(f"no method can run on these pages: {next(iter(self.unable.values()))}")
        for name, numbers in outcome.found.items():
            self._found[name] = self._found[name] + numbers
        for name, seconds in outcome.seconds.items():
            self._seconds[name] = self._seconds[name] + seconds

    def cells(self, ratios: Sequence[float]) -> tuple[Cell, ...]:
        made = []
        for name in self.running():
            asked = (1.0,) if name == REFERENCE else ratios
            for ratio, sums, seconds in zip(asked, self._found[name], self._seconds[name], strict=True):
                k, nbytes, error, active, *change = (sums / self.pages).tolist()
                ms = 1e3 * float(seconds) / self.timed
                made.append(Cell(name, ratio, k, nbytes, ms, error, active, Degradation(*change)))
        return tuple(sorted(made, key=lambda cell: -cell.ratio))


def _tasks(pages: Pages, numbers: Sequence[int], origin: str, sums: _Sums) -> Iterator[_Task]:
    # A view of its own, as a worker has by pickling: what it reads is given back after every page.
    view = copy.copy(pages) if isinstance(pages, VectorFile) else None
    alone = timed(numbers)
    for number in numbers:
        page: PageVectors | ArrayLike = pages[number] if view is None else view[number : number + 1]
        yield _Task(page, number, origin, sums.running(), number in alone)


def timed(numbers: Sequence[int]) -> set[int]:
    """The few of these pages, spread over all, on which methods are timed."""
    count = min(TIMED, len(numbers))
    return {numbers[(2 * i + 1) * len(numbers) // (2 * count)] for i in range(count)}


def method_names(methods: Sequence[str] | str) -> list[str]:
    """The methods' names, each once; the order of the registry for all of them, else the caller's."""
    if methods == "all":
        return list(METHODS)
    listed = methods.split(",") if isinstance(methods, str) else methods
    names = list(dict.fromkeys(name.strip() for name in listed))
    if not names:
        raise InputError(f"methods are empty: pass 'all' or some of {', '.join(METHODS)}")
    return names


def _compressor(name: str, ratios: Sequence[float]) -> Compressor:
    if name == REFERENCE:
        return compressor(name)
    checked = [compressor(name, ratio=ratio) for ratio in ratios]
    return checked[0]


def _tokens(queries: Queries | None, pool: CalibrationPool | None) -> Tokens:
    if queries is not None:
        return Tokens.of(queries)
    if pool is None:
        raise InputError("there is nothing to judge by: pass queries, or a calibration pool whose tokens stand in")
    return Tokens.of(pool.tokens)


def _numbers(count: int, sample: int | None, seed: int) -> list[int]:
    if sample is None:
        return list(range(count))
    whole_number("sample", sample, 1)
    whole_number("seed", seed, 0)
    return sorted(np.random.default_rng(seed).permutation(count)[:sample].tolist())


def _check_pool(pool: CalibrationPool, tokens: Tokens, pages: Pages, numbers: Sequence[int], origin: str) -> None:
    """Refuse a pool that belongs to neither these queries nor these pages."""
    if pool.dim != tokens.Q.shape[1]:
        raise InputError(
            f"the calibration pool has dimension {pool.dim} but the queries have {tokens.Q.shape[1]}: use the vectors "
            f"of one model"
        )
    refuse_foreign(pool, pages, numbers, origin)


def refuse_foreign(pool: CalibrationPool, pages: Pages, numbers: Sequence[int], origin: str) -> None:
    """Refuse a pool of another embedding space than these pages."""
    blocks = []
    for number in numbers:
        page = as_page(pages[number])
        if page.dim != pool.dim:
            raise InputError(
                f"page {number}{origin} has dimension {page.dim} but the calibration pool has {pool.dim}: build a pool "
                f"with the model that made the pages"
            )
        blocks.append(page.vectors.cpu().float())
    rows, good = unit_rows(torch.cat(blocks))
    pool.refuse_foreign(rows[good], origin.removeprefix(" of ") or "these pages")


def held(pool: CalibrationPool | None, tokens: Tokens) -> float | None:
    """The share of the pool's tokens that are also tokens of the queries, up to rounding."""
    if pool is None:
        return None
    return float((matched(pool.tokens.cpu(), tokens.Q.cpu()).score > SAME).float().mean())
