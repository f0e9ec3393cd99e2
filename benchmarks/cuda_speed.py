"""Claim: on a GPU, compressing a page costs less than a millisecond, and the facets are those of the CPU.

    python -m benchmarks.cuda_speed

Pages of 743 x 128 in float16, a pool of 1,000 tokens, through `compress_many(device="cuda")`, uploads and downloads
included; beside it the matrix products of the same pages, batched, on rows that lie on the GPU already. Needs a CUDA
device, and says so where there is none.
"""

from __future__ import annotations

import sys
import time

import torch

import pagefacets as pf
from benchmarks.compress_speed import SEED, L, N, P
from benchmarks.measure import pages_like, report

PAGES, BATCH = 1024, 32


def seconds_per_page(magic: pf.Magic, pages: list[pf.PageVectors], pool: pf.CalibrationPool) -> float:
    for _ in magic.compress_many(pages[: 2 * BATCH], pool, device="cuda"):
        pass
    torch.cuda.synchronize()
    start = time.perf_counter()
    made = sum(1 for _ in magic.compress_many(pages, pool, device="cuda"))
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / made


def products_per_page(D: torch.Tensor, Q: torch.Tensor, K: int) -> float:
    """Every matrix product of a batch, and nothing else, in full float32 like ours."""

    def batch() -> None:
        F, W = D[:, :K], torch.full((BATCH, K, N), 1.0 / N, device="cuda")
        torch.matmul(Q, D.mT)
        for k in range(K - 1):
            torch.matmul(D, D[:, k].unsqueeze(-1))
        for _ in range(5):
            torch.matmul(F, D.mT)
            torch.matmul(W, D)
        torch.matmul(D, F.mT)
        torch.matmul(W, D)

    for _ in range(3):
        batch()
    torch.cuda.synchronize()
    start, rounds = time.perf_counter(), 20
    for _ in range(rounds):
        batch()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / (rounds * BATCH)


def main() -> int:
    if not torch.cuda.is_available():
        print("cuda speed: no CUDA device here, nothing was measured")
        return 0
    print(torch.cuda.get_device_name())
    pages = [pf.PageVectors(page) for page in pages_like(64, N, P, seed=SEED)] * (PAGES // 64)
    tokens = torch.nn.functional.normalize(torch.randn(L, P, generator=torch.Generator().manual_seed(SEED)), dim=1)
    pool = pf.CalibrationPool(tokens)
    D = torch.nn.functional.normalize(torch.stack([page.vectors for page in pages[:BATCH]]).float(), dim=-1).cuda()
    ratios: dict[str, tuple[float, str, float]] = {}
    for r in (0.1, 0.05, 0.01):
        magic = pf.Magic(ratio=r)
        ours = seconds_per_page(magic, pages, pool)
        bare = products_per_page(D, tokens.cuda(), magic.k(N))
        here, there = magic.compress(pages[0], pool), next(magic.compress_many(pages, pool, device="cuda"))
        agree = float((here.assignment == there.assignment).float().mean())
        print(
            f"  r = {r}: {1e3 * ours:.3f} ms a page, its products {1e3 * bare:.3f}, "
            f"{100 * agree:.1f} % of rows in the same facet"
        )
        ratios[f"r={r}, milliseconds a page"] = (1e3 * ours, "<=", 1.0)
    return report("cuda speed", ratios, seed=SEED)


if __name__ == "__main__":
    sys.exit(main())
