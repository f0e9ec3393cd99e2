"""Processes that start at once: forked from one that has loaded the library, and without type checks."""

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path

__all__ = ["command", "context"]

LOADED = [
    "pagefacets.cli.main",
    "pagefacets.pipeline",
    "pagefacets.vectors.cache",
    "pagefacets.vectors.pool",
    "tests.vectors.hashed",
    "lance",
]


def context() -> ForkServerContext:
    """Where such processes come from."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(LOADED)
    return made


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """The command `pagefacets`, typed in `folder`, with the encoder of the tests beside the built-in ones."""
    output, errors = folder.with_suffix(".out"), folder.with_suffix(".err")
    process = context().Process(target=_main, args=(folder, output, errors, [str(one) for one in arguments]))
    process.start()
    process.join(120)
    process.kill()
    return subprocess.CompletedProcess(arguments, process.exitcode, output.read_text(), errors.read_text())


def _main(folder: Path, output: Path, errors: Path, arguments: list[str]) -> None:
    from pagefacets.cli.main import main
    from pagefacets.vectors.encoder import ENCODERS

    for number, place in ((1, output), (2, errors)):
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8")
    os.chdir(folder)
    ENCODERS["hashed"] = "tests.vectors.hashed:HashedEncoder"
    sys.argv = ["pagefacets", *arguments]
    main()
