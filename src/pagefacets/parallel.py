"""One function over many tasks in worker processes: in order, with a bounded number of tasks under way."""

from __future__ import annotations

import itertools
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import loky
import torch

__all__ = ["available_cores", "ordered"]

Task = TypeVar("Task")
Result = TypeVar("Result")

# One thread for whatever computes in a worker. And loky restarts a worker that has grown by 300 MB as a suspected leak,
# which a page of 10,000 rows may need, so that bound is put out of reach.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15",
}

_shared: Any = None


def available_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered(
    function: Callable[[Any, Task], Result], tasks: Iterable[Task], *, workers: int, shared: object
) -> Iterator[Result]:
    """function(shared, task) for every task, in order; `shared` travels once to each worker, tasks as they come.

    Each worker computes on one thread. Leaving the iterator early, or an error, ends the workers.
    """
    pool = loky.ProcessPoolExecutor(max_workers=workers, initializer=_start, initargs=(shared,), env=_ENVIRONMENT)
    waiting: deque[Future[Result]] = deque()
    finished = False
    try:
        supply = iter(tasks)
        for task in itertools.islice(supply, 2 * workers):
            waiting.append(pool.submit(_call, function, task))
        while waiting:
            result = waiting.popleft().result()
            for task in itertools.islice(supply, 1):
                waiting.append(pool.submit(_call, function, task))
            yield result
        finished = True
    finally:
        pool.shutdown(wait=True, kill_workers=not finished)


def _start(shared: object) -> None:
    global _shared
    _shared = shared
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _call(function: Callable[[Any, Task], Result], task: Task) -> Result:
    return function(_shared, task)
