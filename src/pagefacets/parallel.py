"""One function over many tasks in worker processes: in order, with a bounded number of tasks under way."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import mmap
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

import cloudpickle
import loky
import loky.backend.resource_tracker

__all__ = ["Parcel", "available_cores", "ordered", "standing_by"]

Task = TypeVar("Task")
Result = TypeVar("Result")
# A result, and what its computation warned of, to be said again where the caller can hear it.
Answer: TypeAlias = tuple[Result, list[tuple[str, type[Warning]]]]

# One thread for whatever computes in a worker. And loky restarts a worker that has grown by 300 MB as a suspected leak,
# which a page of 10,000 rows may need, so that bound is put out of reach.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15",
}
# Arrays of a task beyond this many bytes go through a file in memory: a worker that waits for them in a pipe computes
# nothing meanwhile.
_LARGE = 1 << 18
_ALIGNMENT = 64
_ROOM = 1 << 29
# Seconds between two looks of a worker at whether its parent is still there.
_PULSE = 1.0

# Processes that have been started early, until somebody takes them.
_waiting: _Crew | None = None


def available_cores() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered(
    function: Callable[[Any, Task], Result], tasks: Iterable[Task], *, workers: int, shared: object
) -> Iterator[Result]:
    """function(shared, task) for every task, in order; `shared` travels once to each worker, tasks as they come.

    This process is one of the workers, and the only one while the others still load their libraries. Each computes on
    one thread. Leaving the iterator early, or an error, ends them.
    """
    if workers == 1:
        yield from (_here(function, shared, task).result()[0] for task in tasks)
        return
    crew = _hired(workers)
    try:
        yield from crew.shared_out(function, shared, iter(tasks))
    finally:
        crew.end()


@contextlib.contextmanager
def standing_by(workers: int) -> Iterator[None]:
    """The other processes load from now on and wait for the first `ordered` in the block that wants as many.

    For a program that knows early that it will share its work out: they load while it loads its own libraries.
    """
    global _waiting
    if workers < 2:
        yield
        return
    crew = _waiting = _Crew(workers)
    try:
        yield
    finally:
        _waiting = None
        crew.end()


def _hired(workers: int) -> _Crew:
    global _waiting
    crew, _waiting = _waiting, None
    if crew is not None and crew.workers != workers:
        crew.end()
        crew = None
    return _Crew(workers) if crew is None else crew


@final
class _Crew:
    """The processes that work beside this one, from their start to their end."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._temporary = tempfile.TemporaryDirectory(prefix="pagefacets-", dir=_memory_folder())
        self._folder = Path(self._temporary.name)
        started = (os.getpid(), self._folder)
        self._pool = loky.ProcessPoolExecutor(workers - 1, initializer=_start, initargs=started, env=_ENVIRONMENT)
        # An iterator that the interpreter finds open when it leaves is closed when loky is half gone already.
        self._dismiss = weakref.finalize(self, self._pool.shutdown, wait=True, kill_workers=True)
        with _interrupts_held():
            self._ready = self._pool.submit(os.getpid)

    def shared_out(
        self, function: Callable[[Any, Task], Result], shared: object, supply: Iterator[Task]
    ) -> Iterator[Result]:
        """Results in order. The others have up to `ahead` tasks before them; while the next result is not there, this
        process does a task itself, until it is as many tasks ahead."""
        # By cloudpickle, because a compressor may be written in the caller's own script.
        constant = self._folder / "shared"
        constant.write_bytes(cloudpickle.dumps(shared))
        waiting: deque[tuple[Future[Answer[Result]], Parcel | None]] = deque()
        numbers, left, ahead = itertools.count(), True, 2 * self.workers
        while waiting or left:
            if self._ready.done():
                free = ahead - sum(not future.done() for future, _ in waiting)
                for task in itertools.islice(supply, max(0, min(free, 2 * ahead - len(waiting)))):
                    parcel = Parcel.of(task, self._folder / str(next(numbers)))
                    waiting.append((self._pool.submit(_call, function, constant, parcel), parcel))
            full = len(waiting) >= 2 * ahead
            if not (waiting and (waiting[0][0].done() or full or not left)):
                left = False
                for task in itertools.islice(supply, 1):
                    waiting.append((_here(function, shared, task), None))
                    left = True
                continue
            future, sent = waiting.popleft()
            result, warned = future.result()
            if sent is not None:
                sent.discard()
            for message, category in warned:
                warnings.warn(message, category, stacklevel=2)
            yield result

    def end(self) -> None:
        self._dismiss()
        self._temporary.cleanup()


def _here(function: Callable[[Any, Task], Result], shared: object, task: Task) -> Future[Answer[Result]]:
    """A task done in this process; what it raises waits for its turn."""
    from pagefacets.products import one_thread

    done: Future[Answer[Result]] = Future()
    try:
        with one_thread():
            done.set_result((function(shared, task), []))
    except Exception as error:  # noqa: BLE001 - raised again by result()
        done.set_exception(error)
    return done


class Parcel(NamedTuple):
    """A task on its way: pickled, with its large arrays in a file that the worker maps."""

    pickled: bytes
    sizes: tuple[int, ...] = ()
    path: Path | None = None

    @classmethod
    def of(cls, task: object, path: Path) -> Parcel:
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(task, protocol=5, buffer_callback=buffers.append)
        arrays = [buffer.raw() for buffer in buffers]
        if sum(array.nbytes for array in arrays) < _LARGE:
            return cls(pickle.dumps(task, protocol=5))
        with path.open("wb") as stream:
            for array in arrays:
                stream.write(array)
                stream.write(bytes(-array.nbytes % _ALIGNMENT))
        return cls(pickled, tuple(array.nbytes for array in arrays), path)

    def open(self) -> Any:
        if self.path is None:
            return pickle.loads(self.pickled)  # noqa: S301 - written by this program's own parent process
        with self.path.open("rb") as stream:
            mapped = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
        starts = itertools.accumulate((size + -size % _ALIGNMENT for size in self.sizes), initial=0)
        arrays = [mapped[start : start + size] for start, size in zip(starts, self.sizes, strict=False)]
        return pickle.loads(self.pickled, buffers=arrays)  # noqa: S301

    def discard(self) -> None:
        if self.path is not None:
            self.path.unlink()


def _memory_folder() -> str | None:
    """Where Linux keeps files in memory, if there is room; else the folder for temporary files."""
    folder = "/dev/shm"  # noqa: S108 - TemporaryDirectory makes a private folder in it
    return folder if Path(folder).is_dir() and shutil.disk_usage(folder).free > _ROOM else None


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C, not even while they load; this one sees it a moment later."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # Starting one of these lets interrupts through again, so they start first.
    resource_tracker.ensure_running()
    loky.backend.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(parent: int, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_outlive, args=(parent, folder), daemon=True).start()
    gc.disable()
    import torch

    gc.freeze()
    gc.enable()
    torch.set_num_threads(1)


def _outlive(parent: int, folder: Path) -> None:
    """A parent that was killed could not end its workers: they go by themselves, and its files in memory with them."""
    while os.getppid() == parent:
        time.sleep(_PULSE)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _call(function: Callable[[Any, Task], Result], constant: Path, parcel: Parcel) -> Answer[Result]:
    shared = _unpacked(constant)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(shared, parcel.open())
    return result, [(str(one.message), one.category) for one in caught]


@functools.cache
def _unpacked(constant: Path) -> Any:
    return pickle.loads(constant.read_bytes())  # noqa: S301 - written by this program's own parent process
