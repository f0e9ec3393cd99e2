"""Claim: exact scores cost little more than one bare matrix product, and no more than maxsim-cpu's.

    python benchmarks/maxsim_speed.py

2,000 pages of 75 vectors of 128 numbers, one query of 20 tokens, all cores.
"""

from __future__ import annotations

import sys

import maxsim_cpu
import numpy as np
import torch

import pagefacets as pf
from benchmarks.measure import interleaved, report
from pagefacets.interaction import PackedPages
from pagefacets.products import gram

SEED = 0


def main() -> int:
    generator = torch.Generator().manual_seed(SEED)
    rows = torch.nn.functional.normalize(torch.randn(150_000, 128, generator=generator), dim=1)
    query = torch.nn.functional.normalize(torch.randn(20, 128, generator=generator), dim=1)
    equal = PackedPages(rows, torch.arange(0, 150_001, 75))
    cuts = torch.sort(torch.randperm(149_999, generator=generator)[:1999] + 1).values
    ragged = PackedPages(rows, torch.cat([torch.tensor([0]), cuts, torch.tensor([150_000])]))
    block, q = rows.view(2000, 75, 128).numpy(), query.numpy()
    documents = [rows[a:b].numpy() for a, b in zip(ragged.offsets[:-1], ragged.offsets[1:], strict=True)]

    np.testing.assert_allclose(pf.maxsim(query, equal), maxsim_cpu.maxsim_scores(q, block), atol=1e-4)
    np.testing.assert_allclose(pf.maxsim(query, ragged), maxsim_cpu.maxsim_scores_variable(q, documents), atol=1e-4)
    seconds = interleaved(
        {
            "pagefacets": lambda: pf.maxsim(query, equal),
            "pagefacets, ragged": lambda: pf.maxsim(query, ragged),
            "maxsim-cpu": lambda: maxsim_cpu.maxsim_scores(q, block),
            "maxsim-cpu, ragged": lambda: maxsim_cpu.maxsim_scores_variable(q, documents),
            "product": lambda: torch.mm(query, rows.T),
            "fastest product": lambda: gram(query, rows),
        },
        rounds=30,
    )
    for name, value in seconds.items():
        print(f"  {name:22}{1e3 * value:8.2f} ms")
    ours, uneven = seconds["pagefacets"], seconds["pagefacets, ragged"]
    return report(
        "maxsim speed",
        {
            "over maxsim-cpu": (ours / seconds["maxsim-cpu"], "<=", 1.0),
            "over maxsim-cpu, ragged": (uneven / seconds["maxsim-cpu, ragged"], "<=", 1.0),
            "over the product": (ours / seconds["product"], "<=", 1.5),
            "over the product, ragged": (uneven / seconds["product"], "<=", 1.5),
            "over the fastest product": (ours / seconds["fastest product"], "<=", 1.5),
            "over the fastest product, ragged": (uneven / seconds["fastest product"], "<=", 1.5),
        },
        seed=SEED,
    )


if __name__ == "__main__":
    sys.exit(main())
