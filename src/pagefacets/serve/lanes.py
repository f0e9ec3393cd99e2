"""Where CPU work waits: a few threads, a bounded queue before them, and calls that are answered together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, final

from pagefacets.errors import PagefacetsError

__all__ = ["Batches", "BusyError", "Lane"]

Result = TypeVar("Result")
Task = TypeVar("Task")
Key = TypeVar("Key", bound=Hashable)


@final
class BusyError(PagefacetsError):
    """More calls wait than there is room for."""


@final
class Lane:
    """Calls on a few threads of their own; where `room` of them wait or run already, the next is refused."""

    def __init__(self, name: str, threads: int, room: int) -> None:
        self.name, self.threads, self.room = name, threads, room
        self.held = 0
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def enter(self) -> None:
        """Take a place; `leave` gives it back."""
        if self.held >= self.room:
            raise BusyError(f"the server is busy ({self.held} requests wait): ask again in a second")
        self.held += 1

    def leave(self) -> None:
        self.held -= 1

    async def run(self, call: Callable[[], Result]) -> Result:
        """What `call` returns, from one of the threads."""
        self.enter()
        try:
            return await self.now(call)
        finally:
            self.leave()

    async def now(self, call: Callable[[], Result]) -> Result:
        """The same for a caller that holds its place already."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


@final
@dataclass(frozen=True, eq=False)
class _Waiting(Generic[Key, Task, Result]):
    key: Key
    task: Task
    future: asyncio.Future[Result]


@final
class Batches(Generic[Key, Task, Result]):
    """Tasks that came while the threads were busy go on together, those with equal keys, up to `most` at once.

    Nothing waits for company: a task that finds a thread free goes alone. Where a batch fails its tasks go one by one,
    so that each has its own answer.
    """

    def __init__(self, lane: Lane, answer: Callable[[Key, Sequence[Task]], Sequence[Result]], most: int) -> None:
        self.lane, self._answer, self._most = lane, answer, most
        self._waiting: deque[_Waiting[Key, Task, Result]] = deque()
        self._pumps: set[asyncio.Task[None]] = set()
        self._pumping = 0

    async def run(self, key: Key, task: Task) -> Result:
        """The answer to one task."""
        self.lane.enter()
        try:
            waiting = _Waiting(key, task, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
            if self._pumping < self.lane.threads:
                self._pumping += 1
                pump = asyncio.create_task(self._pump())
                self._pumps.add(pump)
                pump.add_done_callback(self._pumps.discard)
            answer: Result = await waiting.future
            return answer
        finally:
            self.lane.leave()

    async def _pump(self) -> None:
        try:
            while self._waiting:
                await self._answer_some()
        finally:
            # Here rather than when the task is over: a task that comes in between would wait for nobody.
            self._pumping -= 1

    async def _answer_some(self) -> None:
        batch = self._batch()
        try:
            answers = await self.lane.now(partial(self._answers, batch))
        except BaseException:
            for one in batch:
                one.future.cancel()
            raise
        for one, answer in zip(batch, answers, strict=True):
            if one.future.cancelled():
                continue
            if isinstance(answer, Exception):
                one.future.set_exception(answer)
            else:
                one.future.set_result(answer)

    def _batch(self) -> list[_Waiting[Key, Task, Result]]:
        """The task that waits longest and those that can go with it."""
        first = self._waiting.popleft()
        batch: list[_Waiting[Key, Task, Result]] = [first]
        others: list[_Waiting[Key, Task, Result]] = []
        while self._waiting and len(batch) < self._most:
            one = self._waiting.popleft()
            (batch if one.key == first.key else others).append(one)
        self._waiting.extendleft(reversed(others))
        return batch

    def _answers(self, batch: list[_Waiting[Key, Task, Result]]) -> list[Result | Exception]:
        try:
            return list(self._answer(batch[0].key, [one.task for one in batch]))
        except Exception as error:  # noqa: BLE001 - whoever waits for it raises it
            if len(batch) == 1:
                return [error]
        return [answer for one in batch for answer in self._answers([one])]
