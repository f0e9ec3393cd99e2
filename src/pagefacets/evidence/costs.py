"""What an index costs: its size in float32, a query's time on it, and what a page costs to encode and to compress.

Queries go one at a time over all pages, pages one at a time through a compressor, and as many at a time as it takes
through an encoder. Times on a GPU wait for it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from pagefacets.data import Page, PageVectors
from pagefacets.facets.compressor import Compressor
from pagefacets.interaction import PackedPages, maxsim
from pagefacets.progress import track
from pagefacets.vectors.encoder import Encoder
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["Compressed", "compressed", "distinct", "encoding_ms", "megabytes", "query_ms"]

# Queries that are not counted, before those that are.
WARM = 5


@final
@dataclass(frozen=True, eq=False)
class Compressed:
    """Pages as a method left them, and the mean milliseconds of a page in each run over all of them."""

    vectors: tuple[Float[Tensor, "_ p"], ...]
    runs: tuple[float, ...]

    @property
    def ms(self) -> float:
        return statistics.fmean(self.runs)


def megabytes(pages: Sequence[Float[Tensor, "_ p"]]) -> float:
    """Decimal megabytes of 1,000 such pages in float32."""
    return sum(4 * page.numel() for page in pages) / len(pages) / 1000


def distinct(queries: Sequence[Float[Tensor, "_ p"]]) -> list[Float[Tensor, "_ p"]]:
    """Each query once, in the order of the first of equal ones."""
    found: dict[tuple[int, bytes], Tensor] = {}
    for query in queries:
        found.setdefault((len(query), query.float().cpu().numpy().tobytes()), query)
    return list(found.values())


def query_ms(
    pages: Sequence[Float[Tensor, "_ p"]], queries: Sequence[Float[Tensor, "_ p"]], *, replays: int, device: str
) -> tuple[float, ...]:
    """Mean milliseconds of one query against all pages, in each replay of all queries."""
    packed = PackedPages.of([page.float() for page in pages]).to(device)
    asked = [query.float().to(device) for query in queries]
    wait = _waiting(device)
    for query in asked[:WARM]:
        maxsim(query, packed)
    found = []
    for _ in range(replays):
        spent = 0.0
        for query in asked:
            wait()
            start = time.perf_counter()
            maxsim(query, packed)
            wait()
            spent += time.perf_counter() - start
        found.append(1e3 * spent / len(asked))
    return tuple(found)


def compressed(
    method: Compressor,
    pages: Sequence[PageVectors],
    pool: CalibrationPool | None,
    *,
    replays: int,
    device: str,
    progress: bool = False,
) -> Compressed:
    """Every page compressed on the device, one at a time, in each of `replays` runs."""
    there = None if pool is None else pool.to(device)
    wait = _waiting(device)
    method.compress(pages[0].to(device), there)
    kept: list[Tensor] = []
    runs = []
    steps: Any = range(replays * len(pages))
    spent = 0.0
    for step in track(steps, len(steps), f"timing {method.name}", unit="pages") if progress else steps:
        page = pages[step % len(pages)].to(device)
        wait()
        start = time.perf_counter()
        facets = method.compress(page, there)
        wait()
        spent += time.perf_counter() - start
        if len(kept) < len(pages):
            kept.append(facets.vectors.cpu())
        if (step + 1) % len(pages) == 0:
            runs.append(1e3 * spent / len(pages))
            spent = 0.0
    return Compressed(tuple(kept), tuple(runs))


def encoding_ms(encoder: Encoder, pages: Sequence[Page], *, replays: int, device: str) -> tuple[float, ...]:
    """Mean milliseconds that the encoder takes for a page, its image read and scaled included, in each run."""
    wait = _waiting(device)
    found = []
    for _ in encoder.encode_pages(pages[:1]):
        wait()
    for _ in range(replays):
        wait()
        start = time.perf_counter()
        made = sum(1 for _ in encoder.encode_pages(pages))
        wait()
        found.append(1e3 * (time.perf_counter() - start) / made)
    return tuple(found)


def _waiting(device: str) -> Callable[[], None]:
    """What waits until the device has done all it was given."""
    if torch.device(device).type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None
