"""Claim: an index of annual reports finds as many answers with a quarter of the vectors as with all of them.

    python -m benchmarks.filings [CACHE]

Three annual reports as PDFs and 15 questions with the pages that answer them, beside the checkout; the words encoder.
CACHE keeps the encoded pages between runs (`pagefacets encode REPORTS -o CACHE` makes the same). Each row is an index
built from it and searched by the text of all 15 questions, over the pages of all reports: Recall@5 is the mean share of
a question's answer pages among its first five. Bytes are those of the facets in float16, and of the whole folder, with
what evidence needs.

MAGIC is given a pool that has seen none of the questions: runs of eight words drawn from 200 of the pages, encoded as
queries.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import pagefacets as pf
from benchmarks.measure import REALDATA, report
from pagefacets.index.reader import disk_bytes
from pagefacets.pages.source import open_pages
from pagefacets.vectors.cache import Cache

SEED, RATIOS, LINE = 0, (0.25, 0.1), 8


class Outcome(NamedTuple):
    """Recall@5 over the questions, and bytes of facets and of the folder."""

    recall: float
    facets: int
    disk: int


def main(cache: str | None = None) -> int:
    source = REALDATA / "filings"
    if not source.is_dir():
        print(f"filings: no reports at {source}, skipped")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        encoded = pf.encode(source, "words", cache or Path(folder, "cache"), progress=True)
        found = measured(encoded, Path(folder), source)
    print(f"\n{len(encoded)} pages, {len(encoded.query_ids)} questions; Recall@5, MB of facets, MB on disk\n")
    print("| kept | " + " | ".join(found) + " |\n|---|" + "---|" * len(found))
    for ratio in (1.0, *RATIOS):
        cells = [
            f"{100 * row[ratio].recall:.1f}, {row[ratio].facets / 1e6:.1f}, {row[ratio].disk / 1e6:.1f}"
            if ratio in row
            else ""
            for row in found.values()
        ]
        print(f"| {ratio:g} | " + " | ".join(cells) + " |")
    full, ward = found["full"][1.0], found["ward"]
    return report(
        "filings, by words",
        {
            "Recall@5 of a quarter over that of all": (ward[0.25].recall / full.recall, ">=", 0.9),
            "times smaller at a quarter": (full.facets / ward[0.25].facets, ">=", 3.9),
        },
        seed=SEED,
    )


def measured(encoded: Cache, folder: Path, source: Path) -> dict[str, dict[float, Outcome]]:
    """Outcomes by method and ratio."""
    pool = pooled(own_lines(encoded, source), encoded)
    found = {"full": {1.0: searched(encoded, folder / "full.pf", pf.compressor("identity"), None)}}
    methods: dict[str, Callable[[float], Outcome]] = {
        "ward": lambda ratio: searched(encoded, folder / f"w{ratio}.pf", pf.compressor("ward", ratio=ratio), None),
        "kmeans": lambda ratio: searched(encoded, folder / f"k{ratio}.pf", pf.compressor("kmeans", ratio=ratio), None),
        "magic": lambda ratio: searched(encoded, folder / f"m{ratio}.pf", pf.Magic(ratio=ratio), pool),
    }
    return found | {name: {ratio: method(ratio) for ratio in RATIOS} for name, method in methods.items()}


def searched(encoded: Cache, path: Path, compressor: pf.Compressor, pool: pf.CalibrationPool | None) -> Outcome:
    """An index of the encoded pages, asked the text of all questions."""
    index = pf.Index.build(path, encoded.path, compressor=compressor, pool=pool)
    recalls = []
    for query, hits in zip(encoded.query_ids, index.search_many(encoded.query_texts, k=5), strict=True):
        answers = {page for page, relevance in encoded.qrels[query].items() if relevance > 0}
        recalls.append(len(answers & {hit.page for hit in hits}) / len(answers))
    facets = sum(index.reader.listing.k) * 2 * index.manifest.dim
    return Outcome(float(np.mean(recalls)), facets, disk_bytes(path))


def pooled(queries: Sequence[Tensor], encoded: Cache) -> pf.CalibrationPool:
    return pf.CalibrationPool.build(queries, encoded.pages, seed=SEED, backbone=encoded.manifest.encoder.id)


def own_lines(encoded: Cache, source: Path) -> list[Tensor]:
    """One run of eight words of each of 200 pages, encoded as a query is."""
    drawn = np.random.default_rng(SEED)
    texts = []
    pages = open_pages(source)
    for number in sorted(drawn.permutation(len(pages))[:200]):
        words = pages[int(number)].words()
        if words is not None and len(words) >= LINE:
            start = int(drawn.integers(0, len(words) - LINE + 1))
            texts.append(" ".join(words.texts[start : start + LINE]))
    return encoded.encoder().encode_queries(texts)


if __name__ == "__main__":
    torch.manual_seed(SEED)
    sys.exit(main(*sys.argv[1:2]))
