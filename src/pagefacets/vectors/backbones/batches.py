"""Batches that fit: neighbours go through a model together, fewer of them when memory runs out."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar, final

import torch

from pagefacets.errors import InputError

__all__ = ["Batches", "ahead"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Tokens, padding included, that go through together at first.
_TOKENS = {"cpu": 4096, "cuda": 16384}
# Items that are made ready while a device that is not this processor computes.
_AHEAD = 32


@final
class Batches(Generic[Item]):
    """Runs a function over neighbouring items at once, in order, and halves the batch for good when memory runs out.

    "auto" takes as many items as a bound on tokens allows, padding included; a number takes that many.
    """

    def __init__(
        self, size: int | Literal["auto"], *, tokens: Callable[[Item], int], device: torch.device, remedy: str
    ) -> None:
        if size != "auto" and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise InputError(f"batch_size must be 'auto' or a count of at least 1, got {size!r}")
        self._tokens = tokens
        self._bound = _TOKENS.get(device.type, _TOKENS["cpu"]) if size == "auto" else None
        self._remedy = remedy
        self._ahead = device.type != "cpu"
        self.size = None if size == "auto" else size

    def run(self, items: Iterable[Item], compute: Callable[[Sequence[Item]], Sequence[Result]]) -> Iterator[Result]:
        """compute(batch) for batch after batch, its results one by one."""
        if not self._ahead:
            yield from self._run(items, compute)
            return
        with contextlib.closing(ahead(items, _AHEAD)) as ready:
            yield from self._run(ready, compute)

    def _run(self, items: Iterable[Item], compute: Callable[[Sequence[Item]], Sequence[Result]]) -> Iterator[Result]:
        batch: list[Item] = []
        for item in items:
            if batch and self._full(batch, item):
                yield from self._computed(batch, compute)
                batch = []
            batch.append(item)
        if batch:
            yield from self._computed(batch, compute)

    def _full(self, batch: list[Item], item: Item) -> bool:
        if self.size is not None and len(batch) >= self.size:
            return True
        longest = max(map(self._tokens, [*batch, item]))
        return self._bound is not None and longest * (len(batch) + 1) > self._bound

    def _computed(self, batch: list[Item], compute: Callable[[Sequence[Item]], Sequence[Result]]) -> Iterator[Result]:
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            if self.size is not None and len(part) > self.size:
                waiting += [part[self.size :], part[: self.size]]
                continue
            try:
                results = compute(part)
            except (RuntimeError, MemoryError) as error:
                if not _is_of_memory(error):
                    raise
                if len(part) == 1:
                    raise InputError(
                        f"{self._tokens(part[0])} tokens at once do not fit into memory ({_first_sentence(error)}): "
                        f"{self._remedy}"
                    ) from error
                results = None
            if results is None:
                # Only now, when the error no longer holds the frames, do their tensors go.
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                self.size = half = len(part) // 2
                waiting += [part[half:], part[:half]]
                continue
            yield from results


def _is_of_memory(error: Exception) -> bool:
    """Whether memory ran out: a processor's allocator says so in words alone."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0]


def ahead(items: Iterable[Item], most: int) -> Generator[Item, None, None]:
    """The items in order, taken by a thread that is at most `most` of them ahead; errors come in their place."""
    ready: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(most)
    left = threading.Event()

    def put(item: object, error: BaseException | None) -> bool:
        while not left.is_set():
            try:
                ready.put((item, error), timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            if all(put(item, None) for item in items):
                put(left, None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the items are taken
            put(None, error)

    thread = threading.Thread(target=read, name="pagefacets-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is left:
                return
            yield item
    finally:
        left.set()
        thread.join()
