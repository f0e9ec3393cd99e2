"""Claim: time grows with pages, memory does not, and the second core is worth having.

    python -m benchmarks.growth [PAGES]

Compresses a safetensors file of 10,000 pages (743 x 128, float16, 1.9 GB) at r = 0.05 with `pagefacets compress`, on
one worker and on all cores, and watches the resident memory of the command and its workers together, mapped parts of
the file included. Memory counts from an interpreter that has loaded PyTorch.
"""

from __future__ import annotations

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

SEED = 0


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
        empty = baseline()
        quarter, _ = run(some, pool, out, cores)
        seconds, peak = run(pages, pool, out, cores)
        alone, peak_alone = run(pages, pool, out, 1)
    for label, took, held in (("1 worker", alone, peak_alone), (f"{cores} workers", seconds, peak)):
        print(
            f"  {count:,} pages, {label}: {took:.1f} s, {1e3 * took / count:.2f} ms/page, "
            f"{held / 1e9:.2f} GB resident, {(held - empty) / 1e9:.2f} GB above an idle interpreter with PyTorch"
        )
    print(f"  {count // 4:,} pages, {cores} workers: {quarter:.1f} s")
    torch.set_num_threads(1)
    K = pf.Magic(ratio=0.05).k(743)
    bare = interleaved({"fastest products": contenders(K)["fastest products"]}, rounds=10)["fastest products"]
    print(f"  this machine's ceiling, now: {cores} processes of nothing but products are ", end="")
    print(f"{bare / on_both_cores('fastest products', K, bare, cores):.2f} times as fast as one")
    return report(
        "growth",
        {
            "GB above an idle interpreter": ((peak - empty) / 1e9, "<=", 1.0),
            f"{cores} cores over one": (alone / seconds, ">=", 1.7 if cores > 1 else 0.9),
            "time of four times the pages over four times the time": (seconds / (4 * quarter), "<=", 1.15),
        },
        seed=SEED,
    )


if __name__ == "__main__":
    sys.exit(main())
