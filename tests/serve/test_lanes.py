"""The waiting room before the threads: bounded, fair, and nobody is forgotten."""

import asyncio
import threading
import time

import pytest

from pagefacets.errors import InputError
from pagefacets.serve.lanes import Batches, BusyError, Lane


def test_beyond_the_room_a_call_is_refused_and_later_ones_are_not():
    async def main():
        lane, go = Lane("test", 1, 2), threading.Event()
        waiting = [asyncio.create_task(lane.run(go.wait)) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(BusyError, match="busy"):
            await lane.run(go.wait)
        go.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await lane.run(lambda: 7) == 7
        lane.close()

    asyncio.run(main())


def test_what_came_while_the_thread_was_busy_goes_together_by_key():
    batches = []

    def answer(key, tasks):
        batches.append((key, list(tasks)))
        time.sleep(0.02)
        return [key * task for task in tasks]

    async def main():
        lane = Lane("test", 1, 100)
        some = Batches(lane, answer, 3)
        asked = [(10, 1), (10, 2), (1, 3), (10, 4), (10, 5), (1, 6), (10, 7)]
        found = await asyncio.gather(*(some.run(key, task) for key, task in asked))
        lane.close()
        assert found == [key * task for key, task in asked]

    asyncio.run(main())
    assert all(len(tasks) <= 3 for _, tasks in batches)
    assert len(batches) < 7
    firsts = [tasks[0] for _, tasks in batches]
    assert firsts == sorted(firsts), "whoever waits longest goes first"


def test_one_bad_task_does_not_spoil_its_companions():
    def answer(_, tasks):
        time.sleep(0.01)
        if 13 in tasks:
            raise InputError("13 is no good: take another")
        return [task + 1 for task in tasks]

    async def main():
        lane = Lane("test", 1, 100)
        some = Batches(lane, answer, 16)
        found = await asyncio.gather(*(some.run("k", task) for task in (1, 13, 2, 3)), return_exceptions=True)
        lane.close()
        return found

    one, bad, two, three = asyncio.run(main())
    assert (one, two, three) == (2, 3, 4)
    assert isinstance(bad, InputError)


@pytest.mark.parametrize("threads", [1, 2])
def test_nobody_waits_forever(threads):
    """Many short tasks that come one by one, just when a thread falls idle."""

    async def client(some, tasks):
        return [await some.run("k", task) for task in tasks]

    async def main():
        lane = Lane("test", threads, 1000)
        some = Batches(lane, lambda _, tasks: list(tasks), 4)
        runs = [range(100 * i, 100 * i + 100) for i in range(8)]
        async with asyncio.timeout(30):
            found = await asyncio.gather(*(client(some, run) for run in runs))
        lane.close()
        assert lane.held == 0
        assert found == [list(run) for run in runs]

    asyncio.run(main())


def test_a_client_that_gives_up_takes_nothing_with_it():
    async def main():
        lane = Lane("test", 1, 10)
        some = Batches(lane, lambda _, tasks: time.sleep(0.05) or list(tasks), 1)
        tasks = [asyncio.create_task(some.run("k", i)) for i in range(4)]
        await asyncio.sleep(0.01)
        tasks[1].cancel()
        assert await asyncio.gather(tasks[0], *tasks[2:]) == [0, 2, 3]
        assert lane.held == 0
        lane.close()

    asyncio.run(main())
