"""What a request asks for, checked: a search, a page, a size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request

from pagefacets.serve.answer import RefusedError
from pagefacets.serve.limits import Limits

__all__ = ["Asked", "PagePath", "query_of", "whole"]

# So much of a body that is too long is read and forgotten, so that the client reads the answer before it is hung up on.
_FORGOTTEN = 4_000_000
_KNOWN = ("q", "k", "filter", "rescore")


@final
@dataclass(frozen=True)
class Asked:
    """A search."""

    q: str
    k: int
    filter: str | None
    rescore: int | None

    @classmethod
    async def of(cls, request: Request, limits: Limits) -> Asked:
        """The search in the query string, or in the JSON body of a POST."""
        given: Mapping[str, object] = request.query_params
        if request.method == "POST":
            given = await _body(request, limits)
        for name in given:
            if name not in _KNOWN:
                raise RefusedError(400, f"there is no parameter {name[:40]!r}: use {', '.join(_KNOWN)}")
        condition = given.get("filter")
        if condition is not None and not isinstance(condition, str):
            raise RefusedError(400, "filter must be a text, a condition over id, source and number")
        if condition is not None and len(condition) > limits.filter_characters:
            raise RefusedError(
                400, f"filter has {len(condition):,} characters: use at most {limits.filter_characters:,}"
            )
        rescore = given.get("rescore")
        k = whole("k", given.get("k", 10), 1, limits.hits)
        return cls(
            q=query_of(given.get("q"), limits),
            k=k,
            filter=condition or None,
            rescore=None if rescore in (None, "") else whole("rescore", rescore, k, limits.candidates),
        )


@final
@dataclass(frozen=True)
class PagePath:
    """What follows /pages/: a page's id, percent-encoded or not, and whether its image is asked for.

    Only a literal /image at the end asks for the image: an id that ends in it is written with %2F before it.
    """

    id: str
    image: bool

    @classmethod
    def of(cls, request: Request) -> PagePath:
        raw = request.scope.get("raw_path") or request.scope["path"].encode("utf-8", "surrogateescape")
        rest = raw.split(b"?", 1)[0].removeprefix(request.scope.get("root_path", "").encode()).removeprefix(b"/pages/")
        image = rest.endswith(b"/image")
        return cls(unquote_to_bytes(rest.removesuffix(b"/image")).decode("utf-8", "replace"), image)


def query_of(value: object, limits: Limits) -> str:
    """The query's text."""
    if not isinstance(value, str) or not value.strip():
        raise RefusedError(400, "q is missing or empty: ask with at least one word")
    if len(value) > limits.query_characters:
        raise RefusedError(
            400, f"q has {len(value):,} characters: ask with at most {limits.query_characters:,}, or search for a part"
        )
    return value


def whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number within its bounds."""
    number = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and len(value) < 12 and value.isascii() and value.lstrip("-").isdigit():
        number = int(value)
    if number is None or not least <= number <= most:
        raise RefusedError(400, f"{name} must be a whole number from {least} to {most:,}, got {str(value)[:40]!r}")
    return number


async def _body(request: Request, limits: Limits) -> Mapping[str, object]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await _read(request, limits)
    if kind != "application/json":
        raise RefusedError(415, f"the body is of type {kind[:40] or 'none'!r}: send application/json")
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, 'the body is not JSON: send {"q": "...", "k": 10}') from error
    if not isinstance(read, dict):
        raise RefusedError(400, 'the body must be a JSON object: send {"q": "...", "k": 10}')
    return read


async def _read(request: Request, limits: Limits) -> bytes:
    body, length = bytearray(), 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                length += len(chunk)
                if length > _FORGOTTEN:
                    break
                if length <= limits.body_bytes:
                    body += chunk
    except TimeoutError as error:
        raise RefusedError(
            408, f"the body was not there after {limits.body_seconds:g} seconds: send it at once", close=True
        ) from error
    except ClientDisconnect as error:
        raise RefusedError(400, "the client went away before its request was whole", close=True) from error
    if length > limits.body_bytes:
        raise RefusedError(
            413, f"the body has more than {limits.body_bytes:,} bytes: send a shorter query", close=length > _FORGOTTEN
        )
    return bytes(body)
