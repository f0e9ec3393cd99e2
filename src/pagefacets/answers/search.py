"""Exact ranking of pages by MaxSim."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from pagefacets.data import ArrayLike, Facets, Hit, PageVectors
from pagefacets.errors import InputError
from pagefacets.interaction import PackedPages, maxsim

__all__ = ["best", "rank"]


def rank(
    query: ArrayLike,
    pages: PackedPages | Sequence[PageVectors | Facets | ArrayLike],
    k: int = 5,
    *,
    ids: Sequence[str] | None = None,
) -> list[Hit]:
    """The k best pages for one query (M, p), best first; every page when k exceeds their number.

    A page is called by `ids`, else by its own id, else by its position. Equal scores go as trec_eval has them: the
    larger id first.
    """
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}")
    names = _names(pages, ids)
    if not names:
        return []
    found = maxsim(query, pages)
    if found.ndim != 1:
        raise InputError(f"rank takes one query (tokens, dimension), got {len(found)}: rank them one at a time")
    scores = found.tolist()
    for name, score in zip(names, scores, strict=True):
        if math.isnan(score):
            raise InputError(f"page {name!r} scores NaN: leave out the rows of it or of the query that are not finite")
    return [Hit(score=scores[i], page=names[i], rank=place) for place, i in enumerate(best(scores, names, k), start=1)]


def best(scores: Sequence[float], ids: Sequence[str], k: int) -> list[int]:
    """Positions of the k largest scores in descending order; equal scores by descending id."""
    return [i for _, _, i in heapq.nlargest(k, zip(scores, ids, range(len(ids)), strict=True))]


def _names(pages: PackedPages | Sequence[PageVectors | Facets | ArrayLike], ids: Sequence[str] | None) -> list[str]:
    if ids is None:
        own = [None] * len(pages) if isinstance(pages, PackedPages) else [getattr(page, "id", None) for page in pages]
        names = [str(i) if name is None else name for i, name in enumerate(own)]
    else:
        names = list(ids)
        if len(names) != len(pages):
            raise InputError(f"ids must name each of the {len(pages)} pages once, got {len(names)}")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two pages are called {name!r}: pass ids= with a name of its own for each page")
        seen.add(name)
    return names
