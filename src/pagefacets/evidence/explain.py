"""Why a page answers a query: the facet each query token chose, and the places on the page behind it."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.data import ArrayLike, Facets, PageVectors, as_matrix
from pagefacets.errors import InputError
from pagefacets.evidence.heatmap import FORMATS, Heatmap, Sheet, beside, suffix_of, tinted
from pagefacets.evidence.places import Layout, Place, Spots
from pagefacets.facets.compressor import Compressor, one_of
from pagefacets.products import gram, one_thread
from pagefacets.vectors.formats.aside import replacing
from pagefacets.vectors.pool import CalibrationPool

__all__ = [
    "SUFFIXES",
    "Explanation",
    "FullEvidence",
    "Sighted",
    "TokenEvidence",
    "View",
    "Weights",
    "explain",
    "with_plan",
]

Weights: TypeAlias = Literal["assignment", "transport"]
# What is looked at: the facets that are searched, or the vectors that the page had before.
Sighted: TypeAlias = Literal["compressed", "full"]
View: TypeAlias = Literal["compressed", "full", "both"]

# What an explanation can be saved as.
SUFFIXES = (".html", ".json", *FORMATS)
# A place with less than this share of the largest weight cannot be seen beside it, and is left out of the JSON.
VISIBLE = 0.01
# Letters of a query or a token that are written under or over a picture.
LONGEST = 160
# A plan belongs to the stored facets where the facets made with it have as good as the same members.
SAME_MEMBERS = 0.9


@final
class FullEvidence(NamedTuple):
    """The row of the uncompressed page that a query token scores highest, and its score."""

    row: int
    score: float


@final
@dataclass(frozen=True, eq=False)
class TokenEvidence:
    """What one row of the query found: its facet, its part of the page's score, and the source rows behind the facet.

    `weights` is how much each source row contributes to the facet; it sums to 1, or is zero where nothing is behind
    it. `members` is how many rows the facet stands for. `text` is what the row of the query stands for, if known.
    """

    text: str | None
    facet: int
    score: float
    members: int
    weights: Float[Tensor, " N"]
    full: FullEvidence | None


@final
@dataclass(frozen=True, eq=False)
class Explanation:
    """The evidence for one page and one query.

    `score` is the sum of the tokens' scores, which is what search ranks by; `full_score` is the page's score by its
    full vectors, where they are kept. `n` vectors were compressed to `k` facets.
    """

    page: str | None
    source: str | None
    number: int | None
    query: str | None
    score: float
    full_score: float | None
    n: int
    k: int
    tokens: tuple[TokenEvidence, ...]
    weights: Weights
    layout: Layout
    sheet: Sheet

    @property
    def place(self) -> list[str]:
        """What a reader calls the page: its document and the number that a viewer shows, else its id."""
        if self.source is None or self.number is None:
            return [] if self.page is None else [self.page]
        return [self.source, f"page {self.number + 1}"]

    def boxes(self, token: int | None = None, view: Sighted = "compressed") -> list[Place]:
        """The places behind a query token, or the sum over all tokens, the weightiest first.

        In the compressed view they are those of the source rows behind the token's facet, in the full view the one of
        the vector that the token picks among all. A row without a place on the page is in none of them.
        """
        weights = self._gathered(token, view)
        found = torch.nonzero(weights > 0).flatten()
        order = found[torch.argsort(weights[found], descending=True, stable=True)]
        corners = self._spots.corners[order].double().tolist()
        return [
            Place(left, top, right, bottom, weight)
            for (left, top, right, bottom), weight in zip(corners, weights[order].tolist(), strict=True)
        ]

    def heatmap(self, token: int | None = None, view: View = "compressed") -> Heatmap:
        """The page with those places tinted; "both" draws full and compressed side by side."""
        one_of("view", view, View)
        sights: tuple[Sighted, ...] = ("full", "compressed") if view == "both" else (view,)
        panels = [
            (self._caption(token, sight), tinted(self.sheet.image, self._spots, self._gathered(token, sight)))
            for sight in sights
        ]
        return Heatmap(beside(panels, self._note))

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON takes it; boxes are [left, top, right, bottom, weight] in [0, 1] of the page."""
        gone = self.sheet.gone
        kept = self.full_score is not None
        return {
            "page": self.page,
            "source": self.source,
            "number": self.number,
            "query": self.query,
            "size": None if self.layout.size is None else list(self.layout.size),
            "score": self.score,
            "full_score": self.full_score,
            "n": self.n,
            "k": self.k,
            "weights": self.weights,
            "grid": None if self.layout.grid is None else list(self.layout.grid),
            "image": True if gone is None else gone,
            "tokens": [
                {
                    "text": one.text,
                    "facet": one.facet,
                    "score": one.score,
                    "members": one.members,
                    "boxes": self._listed(i, "compressed"),
                    "full": None if one.full is None else {**one.full._asdict(), "boxes": self._listed(i, "full")},
                }
                for i, one in enumerate(self.tokens)
            ],
            "boxes": self._listed(None, "compressed"),
            "full_boxes": self._listed(None, "full") if kept else None,
        }

    def html(self, view: View | None = None) -> str:
        """A page for a browser that needs no other file and no network; `view` is the one it opens with."""
        from pagefacets.evidence.explained_html import html_page

        return html_page(self, self._chosen(view))

    def save(self, path: str | Path, *, view: View | None = None) -> Path:
        """Write it as .html, .json, or a picture (.png, .jpg, .webp), whichever the suffix says.

        Without a `view`, pages and pictures show both where full vectors are kept. JSON has all of them anyway.
        """
        target = Path(path)
        suffix = suffix_of(target, SUFFIXES)
        if suffix in FORMATS:
            return self.heatmap(view=self._chosen(view)).save(target)
        if suffix == ".json" and view is not None:
            raise InputError(f"{target.name} holds every view: leave out view={view!r}, or write .html or .png")
        text = self.html(view) if suffix == ".html" else json.dumps(self.to_json(), ensure_ascii=False, allow_nan=False)
        with replacing(target.resolve()) as partial:
            partial.write_text(text + "\n", encoding="utf-8")
        return target

    @cached_property
    def _spots(self) -> Spots:
        return self.layout.spots(self.n)

    def _gathered(self, token: int | None, view: Sighted) -> Float[Tensor, " S"]:
        """The weight of each place behind a token, or behind all."""
        one_of("view", view, Sighted)
        if token is not None and not 0 <= token < len(self.tokens):
            raise InputError(f"there is no token {token}: the query has {len(self.tokens)}, counted from 0")
        chosen = self.tokens if token is None else (self.tokens[token],)
        if view == "compressed":
            weights = torch.stack([one.weights for one in chosen]).sum(0)
        else:
            self._need_full()
            weights = torch.zeros(self.n)
            for one in chosen:
                if one.full is not None:
                    weights[one.full.row] += 1
        return self._spots.gathered(weights)

    def _need_full(self) -> None:
        if self.full_score is None:
            raise InputError(
                f"the full vectors of page {self.page!r} are not kept, so there is no full view of it: "
                f"build the index with full vectors"
            )

    def _listed(self, token: int | None, view: Sighted) -> list[list[float]]:
        places = self.boxes(token, view)
        least = VISIBLE * places[0].weight if places else 0.0
        return [[round(number, 5) for number in place] for place in places if place.weight >= least]

    def _chosen(self, view: View | None) -> View:
        if view is not None:
            one_of("view", view, View)
            if view != "compressed":
                self._need_full()
            return view
        return "compressed" if self.full_score is None else "both"

    def _caption(self, token: int | None, view: Sighted) -> str:
        who = "each token" if token is None else f"“{_shortened(self.tokens[token].text or f'token {token + 1}')}”"
        if view == "full":
            return f"Full: what {who} picks among {self.n} vectors"
        return f"Compressed: what lies behind the facet {who} picks among {self.k}"

    @property
    def _note(self) -> str:
        asked = [] if self.query is None else [f"“{_shortened(self.query)}”"]
        full = "" if self.full_score is None else f" (full {self.full_score:.2f})"
        return " · ".join([*asked, *self.place, f"score {self.score:.2f}{full}"])


def explain(
    query: ArrayLike,
    facets: Facets,
    *,
    full: PageVectors | None = None,
    layout: Layout | None = None,
    sheet: Sheet | None = None,
    text: str | None = None,
    tokens: Sequence[str] | None = None,
    source: str | None = None,
    number: int | None = None,
    weights: Weights = "assignment",
) -> Explanation:
    """The evidence for one page at hand: its facets under a query (M, p).

    `full` are the vectors that the facets were made from; where no `layout` is given, they also tell where rows lie.
    `text` is the query, `tokens` what each row of it stands for, `sheet` the page's picture.
    """
    one_of("weights", weights, Weights)
    Q = as_matrix(query, "query").float().cpu()
    if Q.shape[1] != facets.dim:
        raise InputError(f"the query has dimension {Q.shape[1]} and the facets {facets.dim}: use one encoder for both")
    if full is not None and (full.n, full.dim) != (facets.n, facets.dim):
        raise InputError(
            f"full is a page of {full.n} vectors of {full.dim}, but the facets were made from {facets.n} of "
            f"{facets.dim}: pass the page that they were made from"
        )
    if layout is None:
        layout = Layout() if full is None else Layout(full.grid, full.image_mask, full.boxes)
    asked = None if text is None else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    texts = list(tokens) if tokens is not None and len(tokens) == len(Q) else [None] * len(Q)
    with one_thread():
        best = _scores(Q, facets.vectors, "facets", facets.id).max(dim=1)
        picked = [None] * len(Q) if full is None else _picked(Q, full)
        behind = {facet: _behind(facets, facet, weights) for facet in set(best.indices.tolist())}
    found = tuple(
        TokenEvidence(
            text=texts[i],
            facet=facet,
            score=value + (facets.offset or 0.0),
            members=len(facets.members(facet)),
            weights=behind[facet],
            full=picked[i],
        )
        for i, (facet, value) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )
    return Explanation(
        page=facets.id,
        source=source,
        number=number,
        query=asked,
        score=math.fsum(one.score for one in found),
        full_score=None if full is None else math.fsum(one.full.score for one in found if one.full is not None),
        n=facets.n,
        k=facets.k,
        tokens=found,
        weights=weights,
        layout=layout,
        sheet=Sheet(layout, None) if sheet is None else sheet,
    )


def with_plan(facets: Facets, full: PageVectors | None, method: Compressor, pool: CalibrationPool | None) -> Facets:
    """The facets of a page with their transport plan, computed once more from the vectors they were made from."""
    if "keep_plan" not in {option.name for option in dataclasses.fields(method)}:
        raise InputError(f"{method.name} has no transport plan: use weights='assignment'")
    if full is None:
        raise InputError(
            f"the plan of page {facets.id!r} would be computed from its full vectors, which are not kept: "
            f"build the index with full vectors, or use weights='assignment'"
        )
    again = dataclasses.replace(method, keep_plan=True).compress(full, pool)  # type: ignore[call-arg]  # checked above
    twin = _twins(facets, again)
    rows = facets.assignment >= 0
    same = again.assignment[rows] == twin[facets.assignment[rows]]
    if again.plan is None or float(same.float().mean()) < SAME_MEMBERS:
        raise InputError(
            f"the full vectors of page {facets.id!r}, rounded as they are stored, give other facets than those that "
            f"are searched, so their plan is unknown: use weights='assignment'"
        )
    return dataclasses.replace(facets, plan=again.plan[twin])


def _twins(facets: Facets, again: Facets) -> Int[Tensor, " K"]:
    """For each facet the one of the others that shares most members with it; of two alike, that of its own number."""
    shared = torch.eye(facets.k, again.k) / 2
    both = (facets.assignment >= 0) & (again.assignment >= 0)
    pairs = (facets.assignment[both], again.assignment[both])
    return shared.index_put(pairs, torch.ones(int(both.sum())), accumulate=True).argmax(dim=1)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _behind(facets: Facets, facet: int, weights: Weights) -> Float[Tensor, " N"]:
    """How much each row contributes to a facet; members that nobody asks for contribute alike."""
    shares = facets.evidence(facet, weights=weights).float().cpu()
    if weights == "assignment" and not bool(shares.sum() > 0):
        held = (facets.assignment == facet).float().cpu()
        return held / held.sum().clamp_min(1)
    return shares


def _picked(Q: Float[Tensor, "M p"], full: PageVectors) -> list[FullEvidence]:
    whole = torch.isfinite(full.vectors).all(dim=1).cpu()
    if not bool(whole.any()):
        raise InputError(f"no vector of page {full.id!r} is finite: leave the page out")
    scores = _scores(Q, torch.where(whole.unsqueeze(1), full.vectors.cpu(), 0), "vectors", full.id)
    best = scores.masked_fill(~whole, -torch.inf).max(dim=1)
    return [FullEvidence(row, score) for row, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def _scores(Q: Float[Tensor, "M p"], rows: Tensor, what: str, page: str | None) -> Float[Tensor, "M R"]:
    scores = gram(Q, rows.float().cpu())
    if not bool(torch.isfinite(scores).all()):
        raise InputError(f"the {what} of page {page!r} score NaN or infinity: leave out rows that are not finite")
    return scores
