"""Table 3 by the paper's protocol, on the device at hand: size, query latency, and indexing time.

Pages are drawn over the six data sets of ViDoRe v1; queries are distinct. The paper's indexing time is the encoder's
and the compressor's together: here they also stand apart.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from pagefacets.data import Page, PageVectors
from pagefacets.errors import InputError
from pagefacets.evidence.caches import Caches
from pagefacets.evidence.costs import Compressed, compressed, distinct, encoding_ms, megabytes, query_ms
from pagefacets.evidence.labelled import Labelled
from pagefacets.evidence.paper import Artifact, Place
from pagefacets.evidence.reproduction import Entry, Reproduction
from pagefacets.evidence.retrievers import MAIN, DataChoice, Wanted
from pagefacets.evidence.runner import machine
from pagefacets.facets.registry import compressor
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["opened_suite", "table3"]

RATIOS = (0.1, 0.01)
BLOCK = "ViDoRe v1 - ColQwen2.5"
ATTENTIVE = "DocPruner"
METHODS: Mapping[str, Mapping[str, object]] = {
    ATTENTIVE: {"name": "docpruner"},
    "Light-ColPali": {"name": "light-colpali"},
    # The sizes that the paper prints are those of the nearest count.
    "MAGIC": {"name": "magic", "rounding": "nearest"},
}
SIZE, LATENCY, INDEXING = "MB per 1,000 pages", "ms per query", "ms per page"
ENCODER, COMPRESSOR = "encoder, ms per page", "compressor, ms per page"


def table3(
    wanted: Artifact, choice: DataChoice, caches: Caches, *, pages: int, queries: int, replays: int, seed: int
) -> Reproduction:
    """Table 3 with `pages` pages and `queries` distinct queries, or as many as there are."""
    data, lost = opened_suite("vidore-v1", choice, caches)
    rng = random.Random(seed)  # noqa: S311
    everywhere = [(one, i) for one in data for i in range(len(data[one].pages))]
    drawn = [everywhere[i] for i in sorted(rng.sample(range(len(everywhere)), min(pages, len(everywhere))))]
    asked = distinct([query for one in data.values() for query in one.queries])
    run = _Run(
        caches=caches,
        vectors=tuple(data[one].pages[i] for one, i in drawn),
        sources=tuple(_sources(caches, data, drawn)),
        queries=tuple(asked[i] for i in sorted(rng.sample(range(len(asked)), min(queries, len(asked))))),
        pool=_pool(caches, seed),
        replays=replays,
        device=caches.device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )
    partial = f"without {', '.join(lost)}" if lost else None
    if any(not one.printed for one in data):
        partial = "data that is not the paper's"
    entries = []
    for name in (MAIN, *METHODS):
        for ratio in RATIOS:
            numbers, why = run.row(name, ratio)
            for measure in (SIZE, LATENCY, INDEXING, ENCODER, COMPRESSOR):
                place = Place(BLOCK, name, f"r = {ratio:g}", measure)
                printed = wanted.numbers.get(place)
                entries.append(Entry(place, numbers.get(measure), printed=printed, why=why, partial=partial))
    notes = (
        f"device: {run.where}",
        f"{len(run.vectors):,} pages, of {pages:,} asked for, and {len(run.queries):,} distinct queries, of "
        f"{queries:,}; {replays} replays, one query at a time, exhaustive MaxSim in float32",
        "the compressor takes one page at a time, the encoder as many as it does by itself, images read and scaled",
        *(f"{one.column}: {one.place}" for one in data),
        *(f"{column} is missing: {why}" for column, why in lost.items()),
    )
    return Reproduction(wanted, tuple(entries), notes, details=run.details)


def opened_suite(suite: str, choice: DataChoice, caches: Caches) -> tuple[dict[Wanted, Labelled], dict[str, str]]:
    """The data sets of a suite by the paper's main retriever, and why others are missing; InputError for none."""
    found: dict[Wanted, Labelled] = {}
    lost: dict[str, str] = {}
    for one in choice.of_suite(suite):
        if one.place is None:
            lost[one.column] = "it is not among the data sets that were asked for"
            continue
        try:
            found[one] = caches.labelled(MAIN, one.place, one.column)
        except InputError as error:
            lost[one.column] = str(error)
    if not found:
        raise InputError(f"none of the data sets could be had: {'; '.join(dict.fromkeys(lost.values()))}")
    return found, lost


def _sources(caches: Caches, data: Mapping[Wanted, Labelled], drawn: list[tuple[Wanted, int]]) -> Iterator[Page]:
    """The pages themselves, which the encoder is timed on."""
    listed = {one: {page.id: page for page in caches.dataset(one.place or "").pages} for one in data}
    return (listed[one][data[one].page_ids[i]] for one, i in drawn)


def _pool(caches: Caches, seed: int) -> CalibrationPool | str:
    """The calibration pool, or why there is none."""
    try:
        training = caches.calibration(MAIN)
    except InputError as error:
        return f"no calibration pool, because of this: {error}"
    return CalibrationPool.build(training.queries(), training.pages, seed=seed)


@final
@dataclass(frozen=True)
class _Run:
    """What is measured on; times that several rows share are taken once."""

    caches: Caches
    vectors: tuple[PageVectors, ...]
    sources: tuple[Page, ...]
    queries: tuple[Tensor, ...]
    pool: CalibrationPool | str
    replays: int
    device: str
    details: dict[str, object] = field(default_factory=dict)
    _encoder: dict[bool, float] = field(default_factory=dict)
    _whole: dict[str, float] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return torch.cuda.get_device_name(self.device) if torch.device(self.device).type == "cuda" else machine()

    def row(self, name: str, ratio: float) -> tuple[dict[str, float], str | None]:
        """Every number of a cell of the table, or why there is none."""
        try:
            made = self._made(name, ratio)
            encoder = self._encoding(attention=name == ATTENTIVE)
        except InputError as error:
            return {}, str(error)
        if name == MAIN:
            if not self._whole:
                self._whole[LATENCY] = self._latency(name, None, made)
            latency = self._whole[LATENCY]
        else:
            latency = self._latency(name, ratio, made)
        numbers = {SIZE: megabytes(made.vectors), LATENCY: latency, ENCODER: encoder, COMPRESSOR: made.ms}
        return {**numbers, INDEXING: encoder + made.ms}, None

    def _made(self, name: str, ratio: float) -> Compressed:
        if name == MAIN:
            return Compressed(tuple(page.vectors for page in self.vectors), (0.0,))
        method = compressor(**{**METHODS[name], "ratio": ratio})  # type: ignore[arg-type]  # the name is among them
        pool = self.pool if method.needs_pool else None
        if isinstance(pool, str):
            raise InputError(pool)
        self.caches.say(f"timing {name} at {ratio:g} on {len(self.vectors):,} pages")
        return compressed(
            method, self.vectors, pool, replays=self.replays, device=self.device, progress=self.caches.progress
        )

    def _latency(self, name: str, ratio: float | None, made: Compressed) -> float:
        label = name if ratio is None else f"{name} at {ratio:g}"
        self.caches.say(f"timing {len(self.queries):,} queries on {label}")
        took = query_ms(made.vectors, self.queries, replays=self.replays, device=self.device)
        self.details[label] = {
            "vectors per page": statistics.fmean(map(len, made.vectors)),
            "ms per query in each replay": took,
            "compressor, ms per page in each run": made.runs,
        }
        return statistics.fmean(took)

    def _encoding(self, *, attention: bool) -> float:
        """Milliseconds of the encoder for a page; with the attention of patches, where it can give that."""
        own = self.caches.models.find(MAIN).options
        attention = attention and "importance" in own
        if attention not in self._encoder:
            said = " with the attention of patches" if attention else ""
            self.caches.say(f"timing the encoder{said} on {len(self.sources):,} pages")
            encoder = self.caches.encoder(MAIN, **({"importance": attention} if "importance" in own else {}))
            took = encoding_ms(encoder, self.sources, replays=self.replays, device=self.device)
            self.details[f"encoder{said}"] = {"ms per page in each run": took}
            self._encoder[attention] = statistics.fmean(took)
        return self._encoder[attention]
