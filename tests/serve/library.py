"""A small library to serve: documents with odd names and hostile words, an index of them, a server in a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tests.pages.pdfs import Sheet, pdf, show

__all__ = ["SCRIPT", "Running", "address", "documents", "server"]

SCRIPT = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
_PAGES = {
    "ferries.pdf": [
        ["The new battery ferry cost 41 million crowns.", "Capital expenditure rose to 63 million."],
        ["Departures are cancelled above 22 metres per second of wind.", "Passengers receive a full refund."],
        ["Holidays of the crew: 28 days a year, ten of them may be carried over."],
    ],
    "deep/er/100%25 & co #2?.pdf": [["The café serves a vegan soup with lentils.", "Bread is baked at five."]],
    "image/image.pdf": [["Copper pollution of the harbour water near the slipway."]],
    "hostile.pdf": [["Hostile words stand here:", SCRIPT, "and nothing of it may run."]],
}


def documents(folder: Path) -> Path:
    """PDFs in a folder; the name of one looks like an address, one document speaks HTML."""
    for name, pages in _PAGES.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(pdf([sheet(lines) for lines in pages]))
    return folder


def sheet(lines: list[str]) -> Sheet:
    return Sheet("".join(show(line, 60, 700 - 40 * i, 14) for i, line in enumerate(lines)))


def address(id: str) -> str:
    """The path of a page."""
    return f"/pages/{quote(id, safe='')}"


_LIMITED = """
import json
from pagefacets.serve.limits import Limits
from pagefacets.serve.server import serve

def ready(url, pages):
    print(json.dumps({{"url": url, "pages": pages}}), flush=True)

serve({index!r}, port=0, limits=Limits(**{limits!r}), ready=ready)
"""


@dataclass
class Running:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    pages: int

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def server(index: Path, *options: object, limits: dict[str, float] | None = None, **environment: str):
    """`pagefacets serve` on a free port of the loopback interface; with other limits, the function behind it."""
    command = [sys.executable, "-m", "pagefacets", "serve", str(index), "--port", "0", "--json", *map(str, options)]
    if limits is not None:
        command = [sys.executable, "-c", _LIMITED.format(index=str(index), limits=limits)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Running(process, **json.loads(line))
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
