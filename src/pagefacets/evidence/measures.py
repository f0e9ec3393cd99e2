"""How good a ranking is: nDCG@k, Recall@k and MRR of every query, computed by pytrec_eval as mteb does.

trec_eval's conventions hold: scores are float32, equal ones rank by descending page id, the gain of nDCG is the
relevance itself, and Recall@k divides by all relevant pages. A query without any judgement is left out, as mteb leaves
it out; one whose judgements are all 0 counts, as 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from pagefacets.answers.search import largest
from pagefacets.errors import InputError
from pagefacets.extras import require

__all__ = ["DEPTH", "MEASURES", "Measure", "Qrels", "Run", "evaluate", "judged", "measures_of", "ranked", "values_of"]

Qrels = Mapping[str, Mapping[str, int]]
Run = Mapping[str, Mapping[str, float]]

MEASURES = ("ndcg@5", "recall@5", "mrr")
# Pages of a ranking that are looked at, as in mteb: MRR counts a first relevant page below them as 0.
DEPTH = 1000

_NAME = re.compile(r"(ndcg|recall|mrr)(?:@([1-9][0-9]*))?")
_TREC = {"ndcg": "ndcg_cut", "recall": "recall", "mrr": "recip_rank"}


@final
@dataclass(frozen=True)
class Measure:
    """`ndcg` or `recall` of the first k pages, or `mrr`, which needs no k."""

    kind: Literal["ndcg", "recall", "mrr"]
    k: int | None

    @classmethod
    def of(cls, name: str) -> Measure:
        """A measure by its name, such as ndcg@5."""
        found = _NAME.fullmatch(name.strip().lower())
        if found is None or (found[2] is None and found[1] != "mrr"):
            raise InputError(f"there is no measure {name!r}: write ndcg@5, recall@10, mrr or mrr@10, with any number")
        kind: Literal["ndcg", "recall", "mrr"] = found[1]  # type: ignore[assignment]
        return cls(kind, None if found[2] is None else int(found[2]))

    def __str__(self) -> str:
        return self.kind if self.k is None else f"{self.kind}@{self.k}"

    @property
    def title(self) -> str:
        """The name as people write it."""
        plain = {"ndcg": "nDCG", "recall": "Recall", "mrr": "MRR"}[self.kind]
        return plain if self.k is None else f"{plain}@{self.k}"

    @property
    def _asked(self) -> str:
        return _TREC[self.kind] if self.kind == "mrr" else f"{_TREC[self.kind]}.{self.k}"

    def _read(self, found: Mapping[str, float]) -> float:
        if self.kind != "mrr":
            return found[f"{_TREC[self.kind]}_{self.k}"]
        value = found["recip_rank"]
        return value if self.k is None or value >= 1 / self.k else 0.0


def measures_of(names: str | Iterable[str]) -> tuple[Measure, ...]:
    """Measures by name, "ndcg@5,mrr" in one string or several, each once."""
    listed = names.split(",") if isinstance(names, str) else names
    found = tuple(dict.fromkeys(Measure.of(name) for name in listed))
    if not found:
        raise InputError(f"measures are empty: pass some, such as {', '.join(MEASURES)}")
    return found


def judged(query_ids: Sequence[str], qrels: Qrels) -> list[int]:
    """Positions of the queries that have a judgement, and so count."""
    return [i for i, query in enumerate(query_ids) if qrels.get(query)]


def ranked(
    scores: Float[Tensor, "Q P"], query_ids: Sequence[str], page_ids: Sequence[str], *, depth: int = DEPTH
) -> dict[str, dict[str, float]]:
    """A run: the `depth` best pages of each query with their scores, those that trec_eval ranks first."""
    if scores.shape != (len(query_ids), len(page_ids)):
        raise InputError(
            f"scores must have shape {(len(query_ids), len(page_ids))}, one row per query and one column per page, "
            f"got {tuple(scores.shape)}"
        )
    run = {}
    for query, row in zip(query_ids, scores.float().cpu(), strict=True):
        if bool(row.isnan().any()):
            raise InputError(f"page {page_ids[int(row.isnan().nonzero()[0])]!r} scores NaN for query {query!r}")
        places = largest(row, page_ids, depth)
        run[query] = dict(zip([page_ids[place] for place in places], row[places].tolist(), strict=True))
    return run


def evaluate(run: Run, qrels: Qrels, measures: Sequence[Measure] | None = None) -> dict[str, dict[str, float]]:
    """Each measure by its name: the value of every query of `run` that has a judgement."""
    asked = measures_of(MEASURES) if measures is None else measures
    evaluator = require("pytrec_eval", extra="bench").RelevanceEvaluator(
        {query: dict(pages) for query, pages in qrels.items() if pages and query in run},
        {measure._asked for measure in asked},
    )
    found = evaluator.evaluate({query: dict(pages) for query, pages in run.items()})
    return {str(measure): {query: measure._read(found[query]) for query in found} for measure in asked}


def values_of(
    scores: Float[Tensor, "Q P"],
    query_ids: Sequence[str],
    page_ids: Sequence[str],
    qrels: Qrels,
    measures: Sequence[Measure],
) -> dict[str, NDArray[np.float64]]:
    """Each measure by its name: one value per row of `scores`, whose queries all need a judgement."""
    if not query_ids:
        return {str(measure): np.zeros(0) for measure in measures}
    lost = next((query for query in query_ids if not qrels.get(query)), None)
    if lost is not None:
        raise InputError(f"query {lost!r} has no judgement: leave it out")
    depth = max([DEPTH, *(measure.k or 0 for measure in measures)])
    with torch.no_grad():
        found = evaluate(ranked(scores, query_ids, page_ids, depth=depth), qrels, measures)
    return {name: np.array([values[query] for query in query_ids]) for name, values in found.items()}
