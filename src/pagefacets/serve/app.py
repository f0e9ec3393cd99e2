"""The web application over one index: an ASGI factory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagefacets.errors import FileFormatError, MissingExtraError, PagefacetsError
from pagefacets.extras import require
from pagefacets.serve.lanes import BusyError
from pagefacets.serve.limits import Limits
from pagefacets.serve.metrics import Metrics
from pagefacets.serve.shelf import Shelf

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

__all__ = ["create_app"]


def create_app(
    index: str | Path | Shelf, *, limits: Limits | None = None, names: Iterable[str] = (), addresses: bool = False
) -> ASGIApp:
    """The application for the index in a folder. It is opened now, and loaded when the application starts.

    `names` are Host names that are answered besides those of the loopback interface, `addresses` adds every IP address.
    """
    require("starlette", extra="serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException

    from pagefacets.serve.answer import RefusedError, json_answer, refusal
    from pagefacets.serve.guard import Guard, Hosts
    from pagefacets.serve.routes import Routes

    bounds = Limits() if limits is None else limits
    shelf = index if isinstance(index, Shelf) else Shelf(index)
    metrics = Metrics()
    routes = Routes(shelf, bounds, metrics)

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        await asyncio.to_thread(shelf.warm)
        beside = [asyncio.create_task(_watch(shelf, bounds.refresh_seconds)), asyncio.create_task(routes.measured())]
        try:
            yield
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            routes.close()

    async def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return json_answer(
                {"error": _STATUS.get(error.status_code, error.detail)}, error.status_code, error.headers
            )
        if not isinstance(error, RefusedError):
            busy = isinstance(error, BusyError)
            here = isinstance(error, FileFormatError | MissingExtraError)
            status = 503 if busy else 500 if here else 400
            error = RefusedError(status, shelf.without_paths(str(error)), retry_after=1 if busy else None)
        return refusal(error)

    async def failed(_: Request, __: Exception) -> Response:
        return json_answer({"error": "the server failed on this request: its log says why"}, 500)

    handlers = {PagefacetsError: refused, HTTPException: refused, Exception: failed}
    app = Starlette(routes=routes.table(), lifespan=lifespan, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, Hosts(names, addresses=addresses), metrics, bounds)


_STATUS = {404: "there is nothing here: /openapi.json lists what is", 405: "this takes another method"}


async def _watch(shelf: Shelf, seconds: float) -> None:
    """See what other processes write to the index."""
    while True:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(shelf.refresh)
