"""64 clients at once for a minute, one of which hangs: nobody sees an error, and p99 beside the unloaded median.

python -m benchmarks.serve_load [--seconds 60] [--clients 64] [--index reports.pf]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from urllib.parse import quote

from benchmarks.measure import report
from pagefacets.pages.sample import sample_questions, write_sample
from pagefacets.pipeline import Index

__all__ = ["main"]

_QUESTIONS = [one.text for one in sample_questions()]
_ALONE = 200


@contextmanager
def served(index: Path) -> Iterator[int]:
    """The port of a server in a process of its own."""
    command = [sys.executable, "-m", "pagefacets", "serve", str(index), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(json.loads(process.stdout.readline())["url"].rstrip("/").rpartition(":")[2])
    finally:
        process.terminate()
        process.wait(30)


async def client(port: int, stop: float, first: int, seconds: list[float], wrong: list[str]) -> None:
    """One keep-alive connection that asks one question after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in count(first):
        if time.perf_counter() > stop:
            break
        question = f"{_QUESTIONS[number % len(_QUESTIONS)]} {number}"
        started = time.perf_counter()
        try:
            writer.write(f"GET /search?k=10&q={quote(question)} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            body = await reader.readexactly(int(length.split(b":")[1]))
        except (OSError, EOFError, StopIteration) as error:
            wrong.append(repr(error))
            return
        seconds.append(time.perf_counter() - started)
        if not head.startswith(b"HTTP/1.1 200") or not json.loads(body)["hits"]:
            wrong.append(head.split(b"\r\n")[0].decode())
    writer.close()
    await writer.wait_closed()


async def hung(port: int, stop: float) -> int:
    """Half a request, again whenever the server hangs up; returns how often it did."""
    ended = 0
    while time.perf_counter() < stop:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /search?q=hung HTTP/1.1\r\nHost: local")
        try:
            async with asyncio.timeout(max(0.0, stop - time.perf_counter())):
                await reader.read()
                ended += 1
        except (TimeoutError, ConnectionError):
            pass
        writer.close()
    return ended


async def load(port: int, clients: int, duration: float) -> tuple[list[float], list[float], list[str], int]:
    """Seconds of each answer to one client alone, then to all; what went wrong; how often the hung one was cut off."""
    alone: list[float] = []
    seconds: list[float] = []
    wrong: list[str] = []
    asking = asyncio.create_task(client(port, time.perf_counter() + 60, 0, alone, wrong))
    while len(alone) < _ALONE and not asking.done():
        await asyncio.sleep(0.05)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    stop = time.perf_counter() + duration
    cut = asyncio.create_task(hung(port, stop))
    await asyncio.gather(*(client(port, stop, 1000 * i, seconds, wrong) for i in range(clients)))
    return alone, seconds, wrong, await cut


def main(arguments: Sequence[str] = ()) -> int:
    """Run it; the exit status says whether every answer was whole and the tail within its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--index", type=Path, help="an index to serve; by default one of the sample documents")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        index = options.index
        if index is None:
            write_sample(Path(folder, "documents"))
            index = Path(folder, "reports.pf")
            Index.build(index, Path(folder, "documents"), full=True)
        pages = len(Index.open(index))
        with served(index) as port:
            alone, seconds, wrong, cut = asyncio.run(load(port, options.clients, options.seconds))
    median, p99 = (1000 * statistics.quantiles(times, n=100)[at] for times, at in ((alone, 49), (seconds, 98)))
    rate = len(seconds) / options.seconds
    print(
        f"{pages} pages; alone: median {median:.1f} ms; {options.clients} clients for {options.seconds:g} s: "
        f"{len(seconds):,} answers, {rate:.0f} a second, median {1000 * statistics.median(seconds):.0f} ms, "
        f"p99 {p99:.0f} ms, worst {1000 * max(seconds):.0f} ms; the hung client was cut off {cut} times"
    )
    for one in sorted(set(wrong)):
        print(f"  wrong {wrong.count(one)} times: {one}")
    return report(
        f"{options.clients} clients and a hung one lose no answer",
        {
            "errors": (float(len(wrong)), "<=", 0.0),
            "p99 over clients times unloaded median": (p99 / (options.clients * median), "<=", 1.5),
        },
        seed=0,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
