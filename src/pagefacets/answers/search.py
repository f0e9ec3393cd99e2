"""Exact ranking of pages by MaxSim: of pages at hand, or of an index."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import ArrayLike, Facets, Hit, PageVectors
from pagefacets.errors import InputError
from pagefacets.index.reader import Reader
from pagefacets.interaction import PackedPages, maxsim

__all__ = ["Found", "best", "largest", "rank", "search"]


@final
@dataclass(frozen=True)
class Found:
    """A page of an index by its place there, with its score."""

    place: int
    page: str
    score: float


def search(
    queries: Sequence[Float[Tensor, "_ p"]],
    reader: Reader,
    k: int = 5,
    *,
    condition: str | None = None,
    rescore: int | None = None,
) -> list[list[Found]]:
    """The k best pages of an index for each query, best first, ties as `rank` has them.

    `condition` leaves pages out before they are ranked. `rescore` takes that many candidates by their facets and ranks
    those by their full vectors.
    """
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}")
    if rescore is not None and rescore < k:
        raise InputError(f"rescore must be at least k={k}, the number of hits, got {rescore}")
    if rescore is not None and not reader.manifest.full:
        raise InputError(f"{reader.path.name} keeps no full vectors to rescore with: build it with full vectors")
    if not queries or len(reader) == 0:
        return [[] for _ in queries]
    ids = reader.listing.ids
    allowed = None if condition is None else reader.matching(condition)
    scores = maxsim(list(queries), reader.packed)
    found = []
    for tokens, row in zip(queries, scores, strict=True):
        if bool(row.isnan().any()):
            raise InputError("the query scores NaN: leave out its rows that are not finite")
        places = largest(row, ids, rescore or k, allowed)
        if rescore is not None:
            exact = maxsim(tokens, reader.vectors(places)) if places else torch.empty(0)
            order = best(exact.tolist(), [ids[place] for place in places], k)
            found.append([Found(places[i], ids[places[i]], float(exact[i])) for i in order])
        else:
            found.append([Found(place, ids[place], float(row[place])) for place in places])
    return found


def largest(scores: Float[Tensor, " P"], ids: Sequence[str], k: int, allowed: Tensor | None = None) -> list[int]:
    """Places of the k largest scores among those allowed, equal ones by descending id, without sorting all."""
    among = scores if allowed is None else scores[allowed]
    if among.numel() == 0:
        return []
    bar = among.topk(min(k, among.numel())).values[-1]
    tied = torch.nonzero(among >= bar).flatten()
    places = (tied if allowed is None else allowed[tied]).tolist()
    return [places[i] for i in best(scores[places].tolist(), [ids[place] for place in places], k)]


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
