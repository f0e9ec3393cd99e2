"""Claim: the offline encoder finds the pages of scanned documents by their text.

    python -m benchmarks.mpdocvqa [FOLDER]

FOLDER holds pages.jsonl (an "id" and a "text" in each line) and queries.jsonl (a "query" and its "relevant" page ids);
by default the 740 pages and 1,879 questions of MP-DocVQA beside the checkout. All vectors of every page are kept, every
page is scored, and nDCG@5 is trec_eval's.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytrec_eval

import pagefacets as pf
from benchmarks.measure import REALDATA, report
from pagefacets.pages.texts import json_lines, text_pages
from pagefacets.vectors.words import WordsEncoder

# Nothing here is drawn at random.
SEED = 0


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else REALDATA / "mpdocvqa"
    if not (folder / "pages.jsonl").is_file():
        print(f"skipped: no pages with their text at {folder}")
        return 0
    encoder = WordsEncoder()
    start = time.perf_counter()
    pages = list(encoder.encode_pages(text_pages(folder / "pages.jsonl")))
    encoded = time.perf_counter()
    asked = [line for _, line in json_lines(folder / "queries.jsonl")]
    queries = encoder.encode_queries([line["query"] for line in asked])
    packed = pf.PackedPages.of(pages)
    ids = [str(page.id) for page in pages]
    searched = time.perf_counter()
    scores = pf.maxsim(queries, packed).tolist()
    run = {f"q{i}": dict(zip(ids, row, strict=True)) for i, row in enumerate(scores)}
    ranked = time.perf_counter()
    qrels = {f"q{i}": dict.fromkeys(line["relevant"], 1) for i, line in enumerate(asked)}
    gains = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.5"}).evaluate(run)
    ndcg = 100 * sum(gain["ndcg_cut_5"] for gain in gains.values()) / len(qrels)
    tokens = sum(page.n for page in pages)
    print(f"{len(pages)} pages, {tokens:,} vectors, encoded in {encoded - start:.0f} s")
    print(f"{len(queries):,} questions, ranked in {ranked - searched:.0f} s")
    return report(
        "the offline encoder finds pages by their text", {"nDCG@5 x 100, full vectors": (ndcg, ">=", 73.0)}, seed=SEED
    )


if __name__ == "__main__":
    sys.exit(main())
