"""Many pages through one compressor: worker processes on a CPU, batches of equal length on an accelerator."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import NamedTuple

import torch

from pagefacets.data import ArrayLike, Facets, PageVectors, as_page, unit_rows
from pagefacets.errors import InputError
from pagefacets.facets.compressor import Compressor
from pagefacets.parallel import available_cores, ordered
from pagefacets.progress import track
from pagefacets.vectors.files import VectorFile
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["Task", "compress"]

# Pages in one task of a worker, or in one batch of an accelerator.
TASK = 32
# Below this many pages a second process has barely started when the first is done.
WORTH_WORKERS = 512
# Pages that are compared with the pool's embedding space before the work begins.
SAMPLE = 8


class Task(NamedTuple):
    """A run of consecutive pages, the first of which is page number `start` of `origin`."""

    start: int
    origin: str
    pages: Sequence[PageVectors | ArrayLike]
    weights: Sequence[ArrayLike] | None

    def label(self, i: int, page: PageVectors) -> str:
        """How an error names the i-th page of the run."""
        named = "" if page.id is None else f" ({page.id!r})"
        return f"page {self.start + i}{named}{self.origin}"


def compress(
    compressor: Compressor,
    pages: Iterable[PageVectors | ArrayLike],
    pool: CalibrationPool | None,
    weights: Iterable[ArrayLike] | None,
    workers: int | None,
    device: torch.device,
    *,
    progress: bool,
) -> Iterator[Facets]:
    """The work behind `Compressor.compress_many`; arguments are checked before the first page is asked for."""
    if isinstance(pages, PageVectors | torch.Tensor):
        raise InputError("compress_many takes several pages, got one: call compress, or put the page in a list")
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, got {workers}")
    alone = multiprocessing.current_process().daemon
    if alone and workers is not None and workers > 1:
        raise InputError(f"workers={workers} cannot start from a daemonic process, such as multiprocessing's: pass 1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {str(device)!r} is not there: PyTorch sees no CUDA device")
    total = len(pages) if isinstance(pages, Sized) else None
    tasks = _tasks(pages, weights)
    first = next(tasks, None)
    if first is not None:
        _check(compressor, first, pool, weighted=weights is not None)
        tasks = itertools.chain([first], tasks)
    if device.type == "cpu":
        if workers is None:
            worth = not alone and (total is None or total >= WORTH_WORKERS)
            workers = available_cores() if worth else 1
        results = _on_cores(compressor, tasks, pool, workers)
    else:
        results = _on_device(compressor, tasks, pool, device)
    return track(results, total, "compressing", unit="pages") if progress else results


def _tasks(pages: Iterable[PageVectors | ArrayLike], weights: Iterable[ArrayLike] | None) -> Iterator[Task]:
    own = None if weights is None else iter(weights)
    if isinstance(pages, VectorFile):
        origin = f" of {pages.name}"
        if pages.kind == "facets":
            raise InputError(f"{pages.name} already holds facets: compress the page vectors they were made from")
        # A view of its own, as a worker has by pickling: what it reads is given back after every run.
        view = copy.copy(pages)
        runs: Iterator[Sequence[PageVectors | ArrayLike]] = (
            view[start : start + TASK] for start in range(0, len(view), TASK)
        )
    else:
        origin = ""
        supply = iter(pages)
        runs = iter(lambda: list(itertools.islice(supply, TASK)), [])
    start = 0
    for run in runs:
        batch = None if own is None else list(itertools.islice(own, len(run)))
        if batch is not None and len(batch) < len(run):
            raise InputError(f"weights end after page {start + len(batch) - 1}: every page needs its own")
        yield Task(start, origin, run, batch)
        start += len(run)
    if own is not None and next(own, None) is not None:
        raise InputError(f"weights go on after the last of {start} pages: every page needs its own, and no more")


def _check(compressor: Compressor, first: Task, pool: CalibrationPool | None, *, weighted: bool) -> None:
    pages = [as_page(page) for page in itertools.islice(first.pages, SAMPLE)]
    for i, page in enumerate(pages):
        compressor.check_pool(pool, page.dim, first.label(i, page), weighted=weighted)
    if pool is not None and compressor.needs_pool and not weighted:
        rows, good = unit_rows(torch.cat([page.vectors.cpu().float() for page in pages]))
        pool.refuse_foreign(rows[good], first.origin.removeprefix(" of ") or "these pages")


def _work(shared: tuple[Compressor, CalibrationPool | None], task: Task) -> list[Facets]:
    compressor, pool = shared
    facets = []
    for i, item in enumerate(task.pages):
        page = as_page(item)
        weights = None if task.weights is None else task.weights[i]
        facets.append(compressor._one(page, pool, weights, task.label(i, page)))
    if isinstance(task.pages, VectorFile):
        task.pages.release()
    return facets


def _on_cores(
    compressor: Compressor, tasks: Iterator[Task], pool: CalibrationPool | None, workers: int
) -> Iterator[Facets]:
    for facets in ordered(_work, tasks, workers=workers, shared=(compressor, pool)):
        yield from facets


def _on_device(
    compressor: Compressor, tasks: Iterator[Task], pool: CalibrationPool | None, device: torch.device
) -> Iterator[Facets]:
    there = None if pool is None else pool.to(device)
    for task in tasks:
        yield from _batch(compressor, task, there, device)


def _batch(compressor: Compressor, task: Task, pool: CalibrationPool | None, device: torch.device) -> list[Facets]:
    """One task on an accelerator: one upload, one check and one download for all its pages, none for each."""
    originals = [as_page(page) for page in task.pages]
    if not compressor.batches or task.weights is not None:
        moved = Task(task.start, task.origin, [page.to(device) for page in originals], task.weights)
        return [
            facets.to(page.vectors.device)
            for page, facets in zip(originals, _work((compressor, pool), moved), strict=True)
        ]
    for i, page in enumerate(originals):
        compressor.check_pool(pool, page.dim, task.label(i, page), weighted=False)
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, page in enumerate(originals):
        groups.setdefault(tuple(page.vectors.shape), []).append(i)
    done: dict[int, Facets] = {}
    sound = []
    with torch.no_grad():
        for members in groups.values():
            pages = [originals[i] for i in members]
            stacked = torch.stack([page.vectors for page in pages]).to(device, non_blocking=True)
            D, good = unit_rows(stacked)
            sound.append(good.all(-1))
            host = pages[0].vectors.device
            done.update(zip(members, compressor._group(D, pool, pages, host), strict=True))
    flags = torch.cat(sound).tolist()
    for i, fine in zip(itertools.chain.from_iterable(groups.values()), flags, strict=True):
        if not fine:
            page = originals[i]
            done[i] = compressor._one(page.to(device), pool, None, task.label(i, page)).to(page.vectors.device)
    return [done[i] for i in range(len(originals))]
