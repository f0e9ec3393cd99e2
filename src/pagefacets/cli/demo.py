"""pagefacets demo: documents, an index of them, answers and the evidence, without a file of one's own."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer

from pagefacets.cli.output import human_bytes, print_json, print_rows

if TYPE_CHECKING:
    from pagefacets.pages.sample import Question
    from pagefacets.pipeline import Index

__all__ = ["EXAMPLE", "command"]

EXAMPLE = "Example: pagefacets demo -o pagefacets-demo"

# The question whose evidence is shown.
_SHOWN = 3


def command(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the documents and their index go.")
    ] = Path("pagefacets-demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Write sample documents, index them, ask them questions, and show where the answers stand."""
    from pagefacets.pages.sample import sample_questions, write_sample
    from pagefacets.pipeline import Index

    documents, place = output / "documents", output / "reports.pf"
    files = write_sample(documents)
    started = time.perf_counter()
    index = Index.build(place, documents, full=True, progress=not quiet)
    seconds = time.perf_counter() - started
    questions = sample_questions()
    asked = _asked(index, questions)
    shown = questions[_SHOWN]
    best = index.search(shown.text, k=3)
    evidence = output / "why.html"
    best[0].explain().save(evidence)
    listing, dim = index.reader.listing, index.manifest.dim
    sizes = {"full": 2 * dim * sum(listing.n), "facets": 2 * dim * sum(listing.k)}
    if as_json:
        print_json(
            {
                "documents": str(documents),
                "index": str(place),
                "pages": len(index),
                "seconds": seconds,
                "bytes": sizes,
                "questions": len(questions),
                "first": {"full": asked.full, "facets": asked.facets},
                "search_ms": asked.milliseconds,
                "evidence": str(evidence),
            }
        )
        return
    total = len(questions)
    print_rows(
        "1. Documents into an index",
        [
            ("documents", f"{len(files)} PDFs with {len(index)} pages, written to {documents}"),
            ("vectors", f"{sum(listing.n):,} of them, {human_bytes(sizes['full'])} in float16"),
            ("facets", f"{sum(listing.k):,}, {human_bytes(sizes['facets'])}: {_times(sizes)} smaller"),
            ("time", f"{seconds:.1f} s"),
        ],
    )
    print_rows(
        "2. Questions",
        [
            ("full vectors", f"{asked.full} of {total} questions have the right page first"),
            ("facets", f"{asked.facets} of {total}"),
            ("one search", f"{asked.milliseconds:.0f} ms, the question's encoding included"),
        ],
    )
    hits = [(f"{hit.score:.2f}", f"{hit.source}, page {(hit.number or 0) + 1}") for hit in best]
    print_rows(f"3. “{shown.text}”", [*hits, ("why", f"{evidence} (open it in a browser)")])
    program = _program()
    turns = [
        f'{program} search {place} "{questions[0].text}"',
        f'{program} explain {place} "{questions[1].text}" -o why.png',
        f"{program} serve {place}",
        f"{program} index FOLDER -o mine.pf",
    ]
    sys.stdout.write("\n".join(["4. Your turn", *turns, ""]))


@final
@dataclass(frozen=True)
class _Asked:
    """How many questions have the right page first, and the median time of a search."""

    full: int
    facets: int
    milliseconds: float


def _asked(index: Index, questions: list[Question]) -> _Asked:
    index.search(questions[0].text)
    right = {"full": 0, "facets": 0}
    times = []
    for question in questions:
        started = time.perf_counter()
        found = index.search(question.text, k=1)
        times.append(1000 * (time.perf_counter() - started))
        exact = index.search(question.text, k=1, rescore=len(index))
        for name, hits in (("facets", found), ("full", exact)):
            right[name] += (hits[0].source, hits[0].number) == (question.source, question.number)
    return _Asked(**right, milliseconds=statistics.median(times))


def _program() -> str:
    """How this program is called from here, also where its environment is not active."""
    script = Path(sys.executable).with_name("pagefacets")
    return "pagefacets" if shutil.which("pagefacets") or not script.exists() else os.path.relpath(script)


def _times(sizes: dict[str, int]) -> str:
    return f"{sizes['full'] / sizes['facets']:.1f} times"
