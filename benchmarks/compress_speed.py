"""Claim: MAGIC costs little more than the matrix products it consists of, and far less than Ward's linkage.

    python benchmarks/compress_speed.py

Pages of 743 x 128, a pool of 1,000 tokens. Two views of one run:
- one core: every contender on one thread, one page at a time, in turns;
- both cores: MAGIC through `compress_many` with one process per core, pages and facets travelling between processes;
  the products in the same worker processes without any travelling; Ward as its libraries run it, one page per call
  (SciPy's linkage uses one core), and with one process per core as well.

"products" are the products of Algorithm 1 in PyTorch's own `matmul`: Q Dᵀ, the K - 1 steps of farthest-first, F Dᵀ and
W D five times each, and the two of the readout. "fastest products" are the same by the kernel that pagefacets uses.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.cluster.hierarchy import linkage

import pagefacets as pf
from benchmarks.measure import interleaved, pages_like, report, where
from pagefacets.parallel import available_cores, ordered
from pagefacets.products import gram

SEED, N, P, L = 0, 743, 128, 1000
# Seconds after which worker processes have loaded their libraries.
STARTED = 4.0


def products(
    D: torch.Tensor, Q: torch.Tensor, K: int, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Every matrix product of one page, and nothing else."""
    F, W = D[:K], torch.full((K, D.shape[0]), 1.0 / D.shape[0])
    for q in torch.split(Q, 200):
        product(q, D)
    for k in range(K - 1):
        torch.mv(D, D[k])
    for _ in range(5):
        product(F, D)
        product(W, D.T)
    product(D, F)
    product(W, D.T)


def ward(page: np.ndarray, variant: str) -> None:
    rows = page.astype(np.float32)
    linkage(1 - rows @ rows.T if variant == "colpali-engine" else rows, method="ward")


@functools.cache
def contenders(K: int) -> dict[str, Callable[[], object]]:
    pages = pages_like(8, N, P, seed=SEED)
    pool = pf.CalibrationPool(torch.randn(L, P, generator=torch.Generator().manual_seed(SEED)))
    magic = pf.Magic(budget=K)
    units = [torch.nn.functional.normalize(torch.from_numpy(page).float(), dim=1) for page in pages]
    turn = iter(range(10**9))
    return {
        "magic": lambda: magic.compress(pages[next(turn) % 8], pool),
        "products": lambda: products(units[next(turn) % 8], pool.tokens, K, lambda A, B: torch.mm(A, B.T)),
        "fastest products": lambda: products(units[next(turn) % 8], pool.tokens, K, gram),
        "ward colpali-engine": lambda: ward(pages[next(turn) % 8], "colpali-engine"),
        "ward unit vectors": lambda: ward(pages[next(turn) % 8], "unit"),
    }


def repeat(K: int, task: tuple[str, int]) -> int:
    """In a worker: one contender so many times, made once and not for every task."""
    from benchmarks.compress_speed import contenders

    name, times = task
    call = contenders(K)[name]
    for _ in range(times):
        call()
    return times


def on_both_cores(name: str, K: int, seconds_alone: float, cores: int) -> float:
    """Seconds per page with one process per core, after both have started."""
    times = max(4, int(0.4 / seconds_alone))
    tasks = [(name, 1)] * (2 * cores) + [(name, times)] * (5 * cores)
    results = ordered(repeat, tasks, workers=cores, shared=K)
    for i in range(2 * cores):
        next(results)
        time.sleep(STARTED if i == 0 else 0)
    start = time.perf_counter()
    done = sum(results)
    return (time.perf_counter() - start) / done


def magic_on_both_cores(K: int, cores: int) -> float:
    """Seconds per page of `compress_many` itself, in its steady state."""
    pages = pages_like(64, N, P, seed=SEED)
    pool = pf.CalibrationPool(torch.randn(L, P, generator=torch.Generator().manual_seed(SEED)))
    warm, counted = 128 * cores, 1024
    facets = pf.Magic(budget=K).compress_many((pages[i % 64] for i in range(warm + counted)), pool, workers=cores)
    for i in range(warm):
        next(facets)
        time.sleep(STARTED if i == 0 else 0)
    start = time.perf_counter()
    done = sum(1 for _ in facets)
    return (time.perf_counter() - start) / done


def main() -> int:
    torch.set_num_threads(1)
    cores = available_cores()
    print(where(SEED))
    ratios: dict[str, tuple[float, str, float]] = {}
    for r, over_products, over_ward in ((0.1, 1.8, 20.0), (0.01, 1.5, 30.0)):
        K = pf.Magic(ratio=r).k(N)
        alone = interleaved(contenders(K), rounds=20)
        both = {name: on_both_cores(name, K, seconds, cores) for name, seconds in alone.items() if name != "magic"}
        both["magic"] = magic_on_both_cores(K, cores)
        print(f"\nr = {r} (K = {K}), milliseconds per page")
        print(f"  {'':22}{'one core':>10}{f'{cores} cores':>10}")
        for name, seconds in alone.items():
            print(f"  {name:22}{1e3 * seconds:10.2f}{1e3 * both[name]:10.2f}")
        ratios |= {
            f"r={r} over the products, one core": (alone["magic"] / alone["products"], "<=", over_products),
            f"r={r} over the products, {cores} cores": (both["magic"] / both["products"], "<=", over_products),
            f"r={r} faster than a call of colpali-engine's Ward": (
                alone["ward colpali-engine"] / both["magic"],
                ">=",
                over_ward,
            ),
        }
        print(f"  one core, {alone['magic'] / alone['fastest products']:.2f} times the fastest products")
        for name in ("ward colpali-engine", "ward unit vectors"):
            print(f"  core for core, {alone[name] / alone['magic']:.1f} times faster than {name}")
        if r == 0.1:
            ratios[f"r={r} faster than a call of Ward on unit vectors"] = (
                alone["ward unit vectors"] / both["magic"],
                ">=",
                4.0,
            )
    return report("compression speed", ratios, seed=SEED)


if __name__ == "__main__":
    sys.exit(main())
