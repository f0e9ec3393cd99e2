"""Claim: on late-interaction vectors that its authors never saw, MAGIC keeps more answers than what it is built from.

    python -m benchmarks.claim_lotte [FILE]

FILE is a packed .npz with page_vectors, page_offsets, query_vectors and qrels (default: the ColBERTv2 vectors of LoTTE
passages beside the checkout). Every second query goes to one half: the pool comes from one half, nDCG@5 is measured on
the other, both ways. Intervals are 95% bootstrap intervals over queries; "lead" is MAGIC minus the method, by query.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytrec_eval
import torch
from numpy.typing import NDArray

import pagefacets as pf
from benchmarks.measure import REALDATA, report

SEED = 0
RATIOS = (0.1, 0.05, 0.025, 0.01)
METHODS: dict[str, dict[str, object]] = {
    "MAGIC": {"name": "magic"},
    "uniform source": {"name": "magic", "source": "uniform"},
    "k-means": {"name": "kmeans"},
    "Ward": {"name": "ward"},
    "Light-ColPali": {"name": "light-colpali"},
    "1D pooling": {"name": "pool1d"},
    "Voronoi": {"name": "voronoi"},
    "Voronoi, pool": {"name": "voronoi", "source": "pool"},
    "random": {"name": "random"},
    "free target": {"name": "magic", "target": "free"},
    "no Lloyd": {"name": "magic", "readout": "transport"},
}
RIVALS = ("uniform source", "k-means", "Ward")


def ndcg(scores: torch.Tensor, queries: list[int], relevant: dict[int, list[int]]) -> NDArray[np.float64]:
    """nDCG@5 of each query, as trec_eval computes it."""
    qrels = {f"q{q}": {f"p{page}": 1 for page in relevant[q]} for q in queries}
    run = {
        f"q{q}": {f"p{page}": float(score) for page, score in enumerate(row)}
        for q, row in zip(queries, scores, strict=True)
    }
    found = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.5"}).evaluate(run)
    return np.array([found[f"q{q}"]["ndcg_cut_5"] for q in queries])


def measure(path: Path) -> dict[tuple[str, float], NDArray[np.float64]]:
    """nDCG@5 per query for every method and ratio, and for the full vectors as ("full", 1)."""
    with pf.open_vectors(path) as pages:
        queries, qrels = pages.queries(), pages.qrels
        if qrels is None or not queries:
            raise pf.InputError(f"{path.name} has no labelled queries: it needs query_vectors and qrels")
        relevant: dict[int, list[int]] = {}
        for query, page in qrels.tolist():
            relevant.setdefault(query, []).append(page)
        asked = sorted(relevant)
        halves = [asked[::2], asked[1::2]]
        gains: dict[tuple[str, float], list[NDArray[np.float64]]] = {}
        for calibration, evaluation in (halves, halves[::-1]):
            pool = pf.CalibrationPool.build([queries[q] for q in calibration], pages, seed=SEED)
            tokens = [queries[q] for q in evaluation]
            full = pf.maxsim(tokens, pf.PackedPages.of(list(pages)))
            gains.setdefault(("full", 1.0), []).append(ndcg(full, evaluation, relevant))
            for label, options in METHODS.items():
                for ratio, packed in compressed(options, pages, pool):
                    gains.setdefault((label, ratio), []).append(ndcg(pf.maxsim(tokens, packed), evaluation, relevant))
    return {cell: np.concatenate(parts) for cell, parts in gains.items()}


def compressed(
    options: dict[str, object], pages: pf.VectorFile, pool: pf.CalibrationPool
) -> list[tuple[float, pf.PackedPages]]:
    """The whole collection at every ratio."""
    method = pf.compressor(**options, ratio=1.0)  # type: ignore[arg-type]
    each = [method.compress_ratios(page, RATIOS, pool) for page in pages]
    return [
        (ratio, pf.PackedPages.of(list(facets))) for ratio, facets in zip(RATIOS, zip(*each, strict=True), strict=True)
    ]


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Percentile bootstrap of the mean."""
    rng = np.random.default_rng(SEED)
    means = values[rng.integers(0, len(values), (10_000, len(values)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def main() -> int:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else REALDATA / "lotte-colbertv2" / "dev.npz"
    if not path.exists():
        print(f"skipped: no labelled vectors at {path}")
        return 0
    gains = measure(path)
    full = gains["full", 1.0]
    low, high = interval(full)
    print(f"\nnDCG@5 x 100 over {len(full)} queries")
    print(f"full vectors {100 * full.mean():.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    print(f"{'r':>6} " + "".join(f"{label:>15}" for label in METHODS))
    for ratio in RATIOS:
        print(f"{ratio:6} " + "".join(f"{100 * gains[label, ratio].mean():15.1f}" for label in METHODS))
    print("\nlead of MAGIC with its 95% interval")
    for ratio in RATIOS:
        cells = []
        for label in RIVALS:
            lead = gains["MAGIC", ratio] - gains[label, ratio]
            low, high = interval(lead)
            cells.append(f"{label} {100 * lead.mean():+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]")
        print(f"{ratio:6}  " + "   ".join(cells))
    ratios = {
        f"r={ratio} over {label}": (float(gains["MAGIC", ratio].mean() / gains[label, ratio].mean()), ">=", 1.0)
        for ratio in RATIOS[1:]
        for label in RIVALS
    }
    return report("MAGIC ahead at r = 0.05, 0.025 and 0.01", dict(ratios), seed=SEED)


if __name__ == "__main__":
    sys.exit(main())
