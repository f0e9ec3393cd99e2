"""What a query costs: exhaustive MaxSim over as many vectors as a method keeps, one query at a time, on all cores.

The time depends on how many vectors each page has and not on what they are, so it is measured over rows of the pages
themselves, after the workers have gone, once for all methods that keep as many.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Mapping, Sequence

import torch

from pagefacets.data import as_page
from pagefacets.evidence.cells import Store, hashed
from pagefacets.evidence.labelled import Labelled
from pagefacets.evidence.runner import machine
from pagefacets.interaction import PackedPages, maxsim
from pagefacets.progress import track
from pagefacets.vectors.files import VectorFile

__all__ = ["latencies", "replayed"]

# Queries that are timed, after a few that are not counted.
QUERIES, WARM = 30, 3


def latencies(
    data: Labelled, counts: Sequence[tuple[int, ...]], store: Store, *, progress: bool
) -> Mapping[tuple[int, ...], float]:
    """Milliseconds of a query, the median, for each list of vectors per page."""
    missing = []
    found = {}
    for one in dict.fromkeys(counts):
        known = store.number(_key(data, one))
        if known is None:
            missing.append(one)
        else:
            found[one] = known
    for one in track(missing, len(missing), "timing queries", unit="sizes") if progress and missing else missing:
        ms = 1e3 * statistics.median(replayed(data, one))
        store.add_number(_key(data, one), ms, {"data": data.name, "query ms, vectors per page": sum(one) / len(one)})
        found[one] = ms
    return found


def replayed(data: Labelled, counts: Sequence[int], *, queries: int = QUERIES) -> list[float]:
    """Seconds of queries spread over the judged ones, each over `counts` vectors of the pages."""
    rows = [as_page(page).vectors[:count].clone() for page, count in zip(data.pages, counts, strict=True)]
    if isinstance(data.pages, VectorFile):
        data.pages.release()
    lengths = [len(row) for row in rows]
    packed = PackedPages(torch.cat(rows), torch.tensor([0, *lengths]).cumsum(0))
    del rows
    step = max(1, len(data.asked) // queries)
    chosen = [data.queries[i] for i in data.asked[::step][:queries]]
    spent = []
    for query in [*chosen[:WARM], *chosen]:
        start = time.perf_counter()
        maxsim(query, packed)
        spent.append(time.perf_counter() - start)
    return spent[min(WARM, len(chosen)) :]


def _key(data: Labelled, counts: Sequence[int]) -> str:
    lengths = hashlib.blake2b(repr(tuple(counts)).encode(), digest_size=16).hexdigest()
    return hashed({"latency": data.digest, "counts": lengths, "machine": machine(), "threads": torch.get_num_threads()})
