"""Claim: time grows with pages, memory does not, and the second core is worth having.

    python -m benchmarks.growth [PAGES]

Compresses a safetensors file of 10,000 pages (743 x 128, float16, 1.9 GB) at r = 0.05 with `pagefacets compress`, on
one worker and on all cores, three times in turns, and watches the resident memory of the command and its workers
together, mapped parts of the file included. Times are whole commands, start to exit, and medians; memory is the largest
of all runs and counts from an interpreter that has loaded PyTorch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch

import pagefacets as pf
from benchmarks.compress_speed import contenders, on_both_cores
from benchmarks.measure import interleaved, pages_like, report, resident
from pagefacets.parallel import available_cores

SEED, ROUNDS = 0, 3


def write(path: Path, count: int) -> None:
    """`count` pages, of which 256 differ: time and memory do not depend on what they say."""
    distinct = pages_like(256, seed=SEED)
    pf.save_vectors(path, (pf.PageVectors(distinct[i % 256]) for i in range(count)))


def run(pages: Path, pool: Path, out: Path, workers: int) -> tuple[float, int]:
    """Seconds of the whole command, and the most memory that it and its workers held together."""
    command = [sys.executable, "-m", "pagefacets", "compress", str(pages), "--pool", str(pool), "--quiet", "--json"]
    start = time.perf_counter()
    child = subprocess.Popen([*command, "--workers", str(workers), "-o", str(out)], stdout=subprocess.DEVNULL)
    process, peak = psutil.Process(child.pid), 0
    while child.poll() is None:
        try:
            peak = max(peak, resident(process))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    if child.wait() != 0:
        raise SystemExit(f"{' '.join(command)} ended with {child.returncode}")
    return time.perf_counter() - start, peak


def baseline() -> int:
    """Resident memory of an interpreter that has loaded PyTorch and does nothing."""
    code = "import torch, psutil; print(psutil.Process().memory_info().rss)"
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 10_000
    cores = available_cores()
    with tempfile.TemporaryDirectory() as folder:
        pages, some = Path(folder, "pages.safetensors"), Path(folder, "some.safetensors")
        pool, out = Path(folder, "pool.safetensors"), Path(folder, "facets.safetensors")
        write(pages, count)
        write(some, count // 4)
        pf.CalibrationPool(torch.randn(1000, 128, generator=torch.Generator().manual_seed(SEED))).save(pool)
        os.sync()  # or the system writes two GB to its disk while the first run is timed
        empty = baseline()
        runs: dict[str, list[tuple[float, int]]] = {"some": [], "all cores": [], "alone": []}
        for _ in range(ROUNDS):
            runs["some"].append(run(some, pool, out, cores))
            runs["all cores"].append(run(pages, pool, out, cores))
            runs["alone"].append(run(pages, pool, out, 1))
    took = {name: statistics.median(seconds for seconds, _ in each) for name, each in runs.items()}
    peak = {name: max(held for _, held in each) for name, each in runs.items()}
    for name, label in (("alone", "1 worker"), ("all cores", f"{cores} workers")):
        print(
            f"  {count:,} pages, {label}: {took[name]:.1f} s, {1e3 * took[name] / count:.2f} ms/page, "
            f"{peak[name] / 1e9:.2f} GB resident, {(peak[name] - empty) / 1e9:.2f} GB above an idle interpreter with "
            f"PyTorch; runs of {', '.join(f'{seconds:.1f}' for seconds, _ in runs[name])} s"
        )
    print(f"  {count // 4:,} pages, {cores} workers: {took['some']:.1f} s")
    torch.set_num_threads(1)
    K = pf.Magic(ratio=0.05).k(743)
    bare = interleaved({"fastest products": contenders(K)["fastest products"]}, rounds=10)["fastest products"]
    print(f"  this machine's ceiling, now: {cores} processes of nothing but products are ", end="")
    print(f"{bare / on_both_cores('fastest products', K, bare, cores):.2f} times as fast as one")
    return report(
        "growth",
        {
            "GB above an idle interpreter": ((peak["all cores"] - empty) / 1e9, "<=", 1.0),
            f"{cores} cores over one": (took["alone"] / took["all cores"], ">=", 1.7 if cores > 1 else 0.9),
            "time of four times the pages over four times the time": (
                took["all cores"] / (4 * took["some"]),
                "<=",
                1.15,
            ),
        },
        seed=SEED,
    )


if __name__ == "__main__":
    sys.exit(main())
