"""Answers and refusals: JSON in ASCII, and one sentence for whatever cannot be answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import final

from starlette.responses import Response

from pagefacets.errors import PagefacetsError

__all__ = ["RefusedError", "json_answer", "refusal"]


@final
class RefusedError(PagefacetsError):
    """A request that is answered with a status and one sentence; `close` ends its connection as well."""

    def __init__(self, status: int, sentence: str, *, close: bool = False, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.close, self.retry_after = status, close, retry_after


def json_answer(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Content as JSON. Whatever is not ASCII is escaped: halves of surrogate pairs have no UTF-8."""
    body = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    return Response(body, status, headers, "application/json")


def refusal(error: RefusedError) -> Response:
    """The answer to a request that is refused."""
    headers = {"connection": "close"} if error.close else {}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    return json_answer({"error": str(error)}, error.status, headers)
