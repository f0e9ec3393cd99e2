"""The routes: search, pages, evidence, numbers, and the web page itself."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple, final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pagefacets.data import Hit
from pagefacets.errors import PageError
from pagefacets.serve.answer import RefusedError, json_answer
from pagefacets.serve.asked import Asked, PagePath, query_of, whole
from pagefacets.serve.lanes import Batches, Lane
from pagefacets.serve.limits import Limits
from pagefacets.serve.metrics import Metrics
from pagefacets.serve.openapi import description
from pagefacets.serve.pictures import Pictures
from pagefacets.serve.stats import Stats, effective_facets

if TYPE_CHECKING:
    from pagefacets.pipeline import Index
    from pagefacets.serve.shelf import Shelf

__all__ = ["Routes"]

_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
_TYPES |= {"svg": "image/svg+xml"}
_KEEP_PICTURE = "private, max-age=300"


class _Key(NamedTuple):
    """Searches with equal keys can be answered together."""

    k: int
    filter: str | None
    rescore: int | None
    version: int


class _File(NamedTuple):
    content: bytes
    kind: str
    mark: str


@final
class Routes:
    """What the server answers, and from what."""

    def __init__(self, shelf: Shelf, limits: Limits, metrics: Metrics) -> None:
        self.shelf, self.limits, self.metrics = shelf, limits, metrics
        self.search_lane = Lane("search", limits.threads, limits.waiting)
        self.picture_lane = Lane("picture", limits.threads, limits.waiting)
        self.number_lane = Lane("numbers", 1, limits.waiting)
        self.pictures = Pictures(shelf, self.picture_lane, limits)
        self._stats = Stats()
        self._searches: Batches[_Key, tuple[Index, str], list[Hit]] = Batches(self.search_lane, _found, limits.together)
        self._static = {
            one.name: _File(content := one.read_bytes(), _TYPES[one.name.rpartition(".")[2]], _mark(content))
            for one in files("pagefacets.serve").joinpath("static").iterdir()
            if one.name.rpartition(".")[2] in _TYPES
        }
        self._gauges()

    def table(self) -> list[Route]:
        """Every route."""
        return [
            Route("/", self.front),
            Route("/static/{name}", self.static),
            Route("/search", self.search, methods=["GET", "POST"]),
            Route("/pages/{rest:path}", self.page),
            Route("/evidence", self.evidence),
            Route("/stats", self.stats),
            Route("/health", self.health),
            Route("/metrics", self.numbers),
            Route("/openapi.json", self.openapi),
        ]

    def close(self) -> None:
        """Wait for the threads to be done with what they do."""
        for lane in (self.search_lane, self.picture_lane, self.number_lane):
            lane.close()

    async def measured(self) -> dict[str, Any]:
        """The numbers of the index. The first time they take long: an application asks for them when it starts."""
        return await self.number_lane.run(partial(self._stats.of, self.shelf.index))

    async def search(self, request: Request) -> Response:
        started = time.perf_counter()
        asked = await Asked.of(request, self.limits)
        index = self.shelf.index
        key = _Key(asked.k, asked.filter, asked.rescore, id(index))
        hits = await self._searches.run(key, (index, asked.q))
        return json_answer(
            {
                "hits": [
                    {"id": hit.page, "source": hit.source, "number": hit.number, "score": hit.score} for hit in hits
                ],
                "took_ms": round(1000 * (time.perf_counter() - started), 3),
            }
        )

    async def page(self, request: Request) -> Response:
        path = PagePath.of(request)
        index = self.shelf.index
        place = self._place(index, path.id)
        if path.image:
            return await self._image(request, index, place)
        return json_answer(await self.search_lane.run(partial(_described, index, place)))

    async def _image(self, request: Request, index: Index, place: int) -> Response:
        listing, sides = index.reader.listing, self.limits.sides
        longest = whole("longest", request.query_params.get("longest", "960"), 1, sides[-1])
        try:
            picture = await self.pictures.get(listing.ids[place], listing.digests[place], longest)
        except PageError as error:
            why = self.shelf.without_paths(str(error))
            raise RefusedError(404, f"there is no picture of this page ({why})") from error
        return _unless_known(request, _File(picture.jpeg, "image/jpeg", f'"{picture.mark}"'), _KEEP_PICTURE)

    async def evidence(self, request: Request) -> Response:
        started = time.perf_counter()
        index = self.shelf.index
        query = query_of(request.query_params.get("q"), self.limits)
        place = self._place(index, request.query_params.get("page", ""))
        found = await self.search_lane.run(partial(_evidence, index, query, index.reader.listing.ids[place]))
        if isinstance(found["image"], str):
            found["image"] = self.shelf.without_paths(found["image"])
        return json_answer({**found, "took_ms": round(1000 * (time.perf_counter() - started), 3)})

    async def stats(self, request: Request) -> Response:
        return json_answer(await self.measured())

    async def health(self, request: Request) -> Response:
        index, stale = self.shelf.index, self.shelf.stale
        return json_answer(
            {
                "status": "ok" if stale is None else "stale",
                "pages": len(index.reader.listing),
                "version": index.reader.version,
                "why": stale,
            }
        )

    async def numbers(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(self, request: Request) -> Response:
        return json_answer(description(self.limits))

    async def front(self, request: Request) -> Response:
        return _unless_known(request, self._static["index.html"], "no-cache")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            raise RefusedError(404, "there is no such file")
        return _unless_known(request, self._static[name], "no-cache")

    def _place(self, index: Index, id: str) -> int:
        """Where a page stands that the index lists; nothing else is ever read."""
        place = index.reader.listing.place(id)
        if place is None:
            raise RefusedError(404, f"the index has no page {id[:200]!r}: use an id that a search gave")
        return place

    def _gauges(self) -> None:
        add = self.metrics.gauge
        add("pagefacets_index_pages", "Pages of the index.", lambda: len(self.shelf.listing))
        add("pagefacets_index_version", "Version of the index.", lambda: self.shelf.index.reader.version)
        add("pagefacets_index_stale", "1 where a newer version cannot be read.", lambda: self.shelf.stale is not None)
        for lane in (self.search_lane, self.picture_lane):
            add(f"pagefacets_{lane.name}_waiting", f"Calls in the {lane.name} lane.", partial(_held, lane))
        add("pagefacets_picture_bytes", "Bytes of pictures kept.", lambda: self.pictures.nbytes)
        add("pagefacets_picture_hits_total", "Pictures kept from before.", lambda: self.pictures.hits, "counter")
        add("pagefacets_picture_misses_total", "Pictures drawn.", lambda: self.pictures.misses, "counter")


def _found(key: _Key, tasks: Sequence[tuple[Index, str]]) -> list[list[Hit]]:
    texts = [text for _, text in tasks]
    return tasks[0][0].search_many(texts, key.k, filter=key.filter, rescore=key.rescore)


def _evidence(index: Index, query: str, id: str) -> dict[str, Any]:
    found: dict[str, Any] = index.explain(query, id).to_json()
    return found


def _described(index: Index, place: int) -> dict[str, Any]:
    listing = index.reader.listing
    facets, layout = index.reader.facets(listing.ids[place]), index.reader.layout(listing.ids[place])
    demand = None if facets.demand is None else facets.demand.numpy()
    size = listing.sizes[place]
    return {
        "id": listing.ids[place],
        "source": listing.sources[place],
        "number": listing.numbers[place],
        "size": None if size is None else list(size),
        "n": facets.n,
        "k": facets.k,
        "k_eff": effective_facets(facets.assignment.numpy(), demand, facets.k),
        "grid": None if layout["grid"] is None else list(layout["grid"]),
        "boxes": layout["boxes"] is not None,
        "full": index.manifest.full,
    }


def _unless_known(request: Request, file: _File, keep: str) -> Response:
    headers = {"etag": file.mark, "cache-control": keep}
    if file.mark in [mark.strip() for mark in request.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.kind)


def _mark(content: bytes) -> str:
    return f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'


def _held(lane: Lane) -> float:
    return lane.held
