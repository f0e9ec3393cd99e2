"""Figure 1: where the demand of questions about a page falls, and what merging leaves of it at every budget.

The paper has Qwen3-VL-8B ask five questions about each of 1,000 pages. Where that model is not to be had, the data
sets' own queries are asked of the pages that answer them, and the notes say so.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from pagefacets.data import Page, PageVectors
from pagefacets.errors import InputError, PageError
from pagefacets.evidence.caches import Caches
from pagefacets.evidence.compare import RATIOS
from pagefacets.evidence.diagnostics import Diagnostics, diagnose_many
from pagefacets.evidence.labelled import Labelled
from pagefacets.evidence.paper import Artifact, Place
from pagefacets.evidence.plots import plot_budget, plot_demand
from pagefacets.evidence.reproduction import Entry, Reproduction
from pagefacets.evidence.retrievers import ASKER, MAIN, DataChoice, Wanted
from pagefacets.evidence.table3 import opened_suite
from pagefacets.facets.registry import compressor
from pagefacets.pages.datasets import Query
from pagefacets.products import one_thread
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["figure1"]

METHODS = {"light-colpali": "Light-ColPali", "magic": "MAGIC"}
DEMAND, MERGED = "(a) demand", "(b) compression"
TOP = Place(DEMAND, "top 20% of rows", "all vectors", "top share")
QUESTIONS = 5


class _Asked(NamedTuple):
    """Pages, each with what is asked of it alone, and how that came about."""

    pages: list[PageVectors]
    queries: dict[str, list[Tensor]]
    note: str


def figure1(
    wanted: Artifact,
    choice: DataChoice,
    caches: Caches,
    *,
    pages: int,
    workers: int | None,
    seed: int,
    progress: bool,
) -> Reproduction:
    """Figure 1 over `pages` pages of ViDoRe v1, or as many as there are."""
    data, lost = opened_suite("vidore-v1", choice, caches)
    asked = _asked(data, caches, pages, seed)
    entries: list[Entry] = []
    series: dict[str, list[Diagnostics]] = {}
    no_pool = ""
    try:
        training = caches.calibration(MAIN)
        pool = CalibrationPool.build(training.queries(), training.pages, seed=seed)
        made_of = f"{len(pool):,} tokens of {len(training.queries()):,} queries of {training.path.name}"
    except InputError as error:
        pool, made_of, no_pool = None, "none", f"no calibration pool, because of this: {error}"
    for method, row in METHODS.items():
        for ratio in RATIOS:
            made = compressor(method, ratio=ratio)
            place = Place(MERGED, row, f"{ratio:g}", "covering error")
            if made.needs_pool and pool is None:
                entries += [Entry(place._replace(measure=one), why=no_pool) for one in wanted.measures[1:]]
                continue
            caches.say(f"diagnosing {row} at {ratio:g} on {len(asked.pages):,} pages")
            facets = made.compress_many(asked.pages, pool, workers=workers, progress=progress)
            with one_thread():
                found = diagnose_many(asked.pages, facets, asked.queries)
            series.setdefault(row, []).append(found)
            entries.append(Entry(place, found.covering_error))
            entries.append(Entry(place._replace(measure="effective facets"), found.effective_facets))
    first = next(iter(series.values()))[0]
    partial = "data that is not the paper's" if any(not one.printed for one in data) else None
    if lost:
        partial = f"without {', '.join(lost)}"
    top = Entry(TOP, 100 * first.top_share, printed=wanted.numbers.get(TOP), partial=partial)
    notes = (
        f"retriever: {MAIN} ({caches.models.find(MAIN).place})",
        f"{len(asked.pages):,} pages, of {pages:,} asked for; {asked.note}",
        *(f"{one.column}: {one.place}" for one in data),
        *(f"{column} is missing: {why}" for column, why in lost.items()),
        f"calibration pool: {made_of}",
    )
    drawn = {
        "figure1a": ("Which share of demand the most demanded rows hold.", plot_demand(first)),
        "figure1b": ("Covering error and effective facets as the budget shrinks.", plot_budget(series)),
    }
    details = {row: [one.to_dict() for one in found] for row, found in series.items()}
    return Reproduction(wanted, (top, *entries), notes, drawn=drawn, details=details)


def _asked(data: Mapping[Wanted, Labelled], caches: Caches, most: int, seed: int) -> _Asked:
    """Questions of the paper's model about a sample of pages, or else the queries that the pages answer."""
    rng = random.Random(seed)  # noqa: S311
    everywhere = [(one, i) for one in data for i in range(len(data[one].pages))]
    drawn = [everywhere[i] for i in sorted(rng.sample(range(len(everywhere)), min(most, len(everywhere))))]
    try:
        return _generated(data, drawn, caches, seed)
    except InputError as error:
        why = str(error)
    own = _own(data)
    answering = [place for place in everywhere if place in own]
    drawn = [answering[i] for i in sorted(rng.sample(range(len(answering)), min(most, len(answering))))]
    return _Asked(
        [_called(data[one].pages[i], f"{one.column}/{data[one].page_ids[i]}") for one, i in drawn],
        {f"{one.column}/{data[one].page_ids[i]}": own[one, i] for one, i in drawn},
        f"the data sets' own queries, asked of pages that answer them, and not {QUESTIONS} questions of {ASKER} about "
        f"each page, because of this: {why}",
    )


def _generated(
    data: Mapping[Wanted, Labelled], drawn: Sequence[tuple[Wanted, int]], caches: Caches, seed: int
) -> _Asked:
    from pagefacets.evidence.local import LocalModel
    from pagefacets.evidence.questions import ask_questions

    one = caches.models.find(ASKER)
    # One file for the same pages: another sample, or another model, has another.
    name = f"asked-{len(drawn)}-{seed}"
    listed = {of: {page.id: page for page in caches.dataset(of.place or "").pages} for of in data}
    pages: list[Page] = []
    for of, i in drawn:
        page = listed[of][data[of].page_ids[i]]
        pages.append(dataclasses.replace(page, id=f"{of.column}/{page.id}"))
    failed: list[PageError] = []
    try:
        model = LocalModel(str(one.place), device=caches.device, **one.options)  # type: ignore[arg-type]  # checked there
    except TypeError as error:
        raise InputError(f"{ASKER} has no such option ({error}): leave it out") from error
    caches.say(f"asking {model.id} about {len(pages):,} pages")
    output = caches.folder / f"{name}-{model.id.replace('/', '--')}.jsonl"
    made = ask_questions(pages, model, output, count=QUESTIONS, skipped=failed.append, progress=caches.progress)
    if not made.questions:
        raise InputError(f"{model.id} wrote nothing that could be read as questions ({failed[0]})")
    there = {page.id: page for page in pages}
    lines = [json.loads(line) for line in made.path.read_text(encoding="utf-8").splitlines()]
    mine = [line for line in lines if line["relevant"][0] in there]
    about = {line["id"]: line["relevant"][0] for line in mine}
    cache = caches.asked(
        MAIN,
        f"{name}-{model.id.replace('/', '--')}",
        [page for page in pages if page.id in set(about.values())],
        [Query(line["id"], line["query"]) for line in mine],
    )
    queries: dict[str, list[Tensor]] = {}
    for question, vectors in zip(cache.query_ids, cache.queries(), strict=True):
        queries.setdefault(about[question], []).append(vectors)
    kept = [_called(page, name) for page, name in zip(cache.pages, cache.page_ids, strict=True)]
    left = f", {len(failed):,} pages without" if failed else ""
    return _Asked(kept, queries, f"{QUESTIONS} questions of {model.id} about each page{left}")


def _own(data: Mapping[Wanted, Labelled]) -> dict[tuple[Wanted, int], list[Tensor]]:
    """The encoded queries that each page answers."""
    found: dict[tuple[Wanted, int], list[Tensor]] = {}
    for one, labelled in data.items():
        places = {page: i for i, page in enumerate(labelled.page_ids)}
        for i in labelled.asked:
            for page, relevance in labelled.qrels[labelled.query_ids[i]].items():
                if relevance > 0 and page in places:
                    found.setdefault((one, places[page]), []).append(labelled.queries[i])
    return found


def _called(page: PageVectors, id: str) -> PageVectors:
    return PageVectors(page.vectors, page.grid, page.image_mask, page.importance, page.boxes, id)
