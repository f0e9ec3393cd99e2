"""Claim: the rebuilt baselines compute what their references compute, in a fraction of the time.

    python benchmarks/baselines_speed.py

One page of 743 x 128 on one core.

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
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage

import pagefacets as pf
from benchmarks.measure import interleaved, pages_like, report
from pagefacets.facets.baselines.removal import removal_order
from pagefacets.facets.baselines.voronoi import directions

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


def main() -> int:
    torch.set_num_threads(1)
    return report("baselines speed", {**voronoi(), **light_colpali()}, seed=SEED)


if __name__ == "__main__":
    sys.exit(main())
