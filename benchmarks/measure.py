"""What every benchmark shares: interleaved timing, and a line that says where and on what it ran."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

__all__ = ["REALDATA", "interleaved", "pages_like", "report", "resident", "where"]

REALDATA = Path(__file__).parents[2] / "shared" / "data"


def interleaved(contenders: Mapping[str, Callable[[], object]], *, rounds: int, turn: float = 0.05) -> dict[str, float]:
    """Median seconds of one call of each contender.

    They take turns, so that a noisy moment strikes all alike, and each turn is `turn` seconds of calls in a row after
    one that is not counted, so that nobody pays for the caches another has emptied.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            call()
            calls, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < turn or calls == 0:
                call()
                calls += 1
            times[name].append(elapsed / calls)
    return {name: statistics.median(values) for name, values in times.items()}


def pages_like(count: int, n: int = 743, p: int = 128, *, seed: int = 0) -> list[NDArray[np.float16]]:
    """Pages of n unit rows around a few directions, stored as float16, as retrievers' pages are."""
    rng = np.random.default_rng(seed)
    pages = []
    for _ in range(count):
        rows = rng.standard_normal((24, p))[rng.integers(0, 24, n)] + 0.8 * rng.standard_normal((n, p))
        pages.append((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16))
    return pages


def resident(process: psutil.Process) -> int:
    """Bytes that a process and those it started hold in memory, mapped parts of files included."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def where(seed: int) -> str:
    """Machine, library, seed and commit of this run."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return f"{cpu}, {torch.get_num_threads()} threads, torch {torch.__version__}, seed {seed}, commit {commit}"


def report(claim: str, ratios: Mapping[str, tuple[float, str, float]], *, seed: int) -> int:
    """Print each ratio beside what it must reach; the exit status says whether all did.

    Each entry is (measured, "<=" or ">=", bound).
    """
    print(f"\n{claim}\n{where(seed)}")
    missed = 0
    for name, (value, relation, bound) in ratios.items():
        held = value <= bound if relation == "<=" else value >= bound
        missed += not held
        print(f"  {'ok  ' if held else 'MISS'} {name}: {value:.2f} ({relation} {bound:g})")
    print(json.dumps({"claim": claim, "ratios": {name: value for name, (value, _, _) in ratios.items()}}))
    return 1 if missed else 0
