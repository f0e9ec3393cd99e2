"""Claim: the rebuilt baselines compute what their references compute, in a fraction of the time.

    python -m benchmarks.baselines_speed [PAGES]

One page of 743 x 128 on one core; at last PAGES of them (1,000) by every method at r = 0.05, on all cores.

- Voronoi pruning with 100,000 samples, against looking up the two best rows of every sample again after each removal.
  That takes minutes, so it is timed on two smaller pages with fewer samples and scaled by its cost law, N² S; the
  lower of the two counts.
- Light-ColPali, against the call it stands for: SciPy's Ward on the rows of 1 - D Dᵀ, a cut, and normalised means.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

import pagefacets as pf
from benchmarks.measure import interleaved, pages_like, report, resident
from pagefacets.facets.baselines.removal import removal_order
from pagefacets.facets.baselines.voronoi import directions
from pagefacets.facets.registry import METHODS
from pagefacets.parallel import available_cores

SEED, N, P, SAMPLES = 0, 743, 128, 100_000

Ratios = dict[str, tuple[float, str, float]]


def removal_anew(D: torch.Tensor, Q: torch.Tensor) -> list[int]:
    """The order of removal with every error computed anew after each."""
    scores = Q @ D.T
    gone = np.zeros(D.shape[0], dtype=bool)
    order = []
    for _ in range(D.shape[0] - 1):
        best, row = scores.topk(2, dim=1)
        lead = best[:, 0].double() - best[:, 1].double()
        errors = np.bincount(row[:, 0].numpy(), weights=lead.numpy(), minlength=D.shape[0])
        errors[gone] = np.inf
        j = int(errors.argmin())
        order.append(j)
        gone[j] = True
        scores[:, j] = -2.0
    return [*order, int(gone.argmin())]


def seconds(call: Callable[[], object], rounds: int) -> float:
    return interleaved({"": call}, rounds=rounds)[""]


def voronoi() -> Ratios:
    D = torch.nn.functional.normalize(torch.from_numpy(pages_like(1, N, P, seed=SEED)[0]).float(), dim=1)
    Q = directions(SAMPLES, P, SEED)
    if removal_order(D[:150], Q[:4000]).order.tolist() != removal_anew(D[:150], Q[:4000]):
        raise AssertionError("the two orders of removal differ")
    scaled = {}
    for n, samples in ((150, 4000), (300, 8000)):
        start = time.perf_counter()
        removal_anew(D[:n], Q[:samples])
        scaled[n] = (time.perf_counter() - start) * (N / n) ** 2 * (SAMPLES / samples)
        print(f"  voronoi anew, scaled from N={n}, S={samples}: {scaled[n]:8.1f} s")
    ours = seconds(lambda: removal_order(D, Q), 5)
    all_ratios = seconds(
        lambda: pf.compressor("voronoi", ratio=0.5).compress_ratios(D, [0.5, 0.25, 0.1, 0.05, 0.01]), 3
    )
    print(f"  voronoi: {ours:.2f} s a page, {all_ratios:.2f} s for five ratios of it")
    return {
        "voronoi faster than computing anew": (min(scaled.values()) / ours, ">=", 20.0),
        "voronoi, seconds a page": (ours, "<=", 2.0),
        "voronoi, five ratios over one": (all_ratios / ours, "<=", 1.5),
    }


def scipy_light_colpali(page: NDArray[np.float16], K: int) -> NDArray[np.float32]:
    rows = page.astype(np.float32)
    labels = fcluster(linkage(1 - rows @ rows.T, method="ward"), K, criterion="maxclust")
    means = np.stack([rows[labels == k].mean(0) for k in range(1, labels.max() + 1)])
    unit: NDArray[np.float32] = means / np.linalg.norm(means, axis=1, keepdims=True)
    return unit


def light_colpali() -> Ratios:
    pages = pages_like(8, N, P, seed=SEED)
    method = pf.compressor("light-colpali", ratio=0.1)
    turn = iter(range(10**9))
    times = interleaved(
        {
            "light-colpali": lambda: method.compress(pages[next(turn) % 8]),
            "SciPy's call": lambda: scipy_light_colpali(pages[next(turn) % 8], method.k(N)),
        },
        rounds=20,
    )
    for name, value in times.items():
        print(f"  {name:16}{1e3 * value:8.1f} ms")
    return {"light-colpali faster than SciPy's call": (times["SciPy's call"] / times["light-colpali"], ">=", 2.0)}


def every_method(count: int) -> Ratios:
    """Milliseconds a page on all cores, and how far memory grows, for pages that come as a stream."""
    pool = pf.CalibrationPool(torch.randn(1000, P, generator=torch.Generator().manual_seed(SEED)))
    rows = pages_like(16, N, P, seed=SEED)
    mask = np.arange(N) >= 11
    grid = (12, 61)
    importance = np.where(mask, np.random.default_rng(SEED).exponential(size=N), np.nan)
    pages = [pf.PageVectors(block, grid=grid, image_mask=mask, importance=importance) for block in rows]
    process = psutil.Process()
    grown = 0.0
    print(f"  {count:,} pages of {N} on {available_cores()} cores, r = 0.05")
    for name in METHODS:
        method = pf.compressor(name) if name == "identity" else pf.compressor(name, ratio=0.05)
        before = process.memory_info().rss
        start = time.perf_counter()
        stream = (pages[i % len(pages)] for i in range(count))
        kept = 0
        for i, facets in enumerate(method.compress_many(stream, pool, workers=available_cores(), progress=True)):
            kept += facets.k
            if i % 50 == 0:
                grown = max(grown, (resident(process) - before) / 1e9)
        took = time.perf_counter() - start
        print(f"  {name:18}{1e3 * took / count:8.2f} ms a page {kept / count:8.1f} vectors a page")
    return {"GB that memory grew by": (grown, "<=", 1.0)}


def main() -> int:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1000
    return report("baselines speed", {**voronoi(), **light_colpali(), **every_method(count)}, seed=SEED)


if __name__ == "__main__":
    sys.exit(main())
