"""What stands before every route: which Host may be asked for, what browsers are told, and the counting."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterable
from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pagefacets.serve.answer import RefusedError, refusal
from pagefacets.serve.limits import Limits
from pagefacets.serve.metrics import Metrics

__all__ = ["Guard", "Hosts", "label"]

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# No script, style or picture but the server's own, no inline code, no frames, no answers to other sites.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_RAW = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_ROUTES = ("search", "evidence", "stats", "health", "metrics", "openapi.json", "static")


@final
class Hosts:
    """Which Host headers are answered. A page of another site that had its name resolved to this machine sends its own.

    The loopback names and those in `names` are; where others than this machine may connect, every IP address is too.
    """

    def __init__(self, names: Iterable[str] = (), *, addresses: bool = False) -> None:
        self._names = {name.lower().strip("[]") for name in (*_LOOPBACK, *names)}
        self._addresses = addresses

    def allows(self, header: str) -> bool:
        """Whether a Host header, with or without a port, is one of them."""
        name, port = header.lower(), ""
        if name.startswith("["):
            name, bracket, port = name[1:].partition("]")
            if not bracket or (port and not port.startswith(":")):
                return False
            port = port[1:]
        elif ":" in name:
            name, _, port = name.partition(":")
        if port and not (port.isascii() and port.isdigit()):
            return False
        return name in self._names or (self._addresses and _is_address(name))


@final
class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, hosts: Hosts, metrics: Metrics, limits: Limits) -> None:
        self.app, self.hosts, self.metrics, self.limits = app, hosts, metrics, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 500, time.perf_counter()

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_RAW]}
            await send(message)

        self.metrics.under_way += 1
        try:
            refused = self._refused(scope)
            await (self.app if refused is None else refusal(refused))(scope, receive, told)
        finally:
            self.metrics.under_way -= 1
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.answered(label(scope["path"]), method, status, time.perf_counter() - started)

    def _refused(self, scope: Scope) -> RefusedError | None:
        """Why this request is not even looked at, if it is not."""
        if _size(scope) > self.limits.head_bytes:
            sentence = f"the address and the headers have more than {self.limits.head_bytes:,} bytes: send fewer"
            return RefusedError(431, sentence, close=True)
        asked = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(asked) == 1 and self.hosts.allows(asked[0]):
            return None
        name = asked[0][:100] if len(asked) == 1 else "none, or several"
        sentence = f"the Host {name!r} is not served here: use the name the server printed, or start it with --name"
        return RefusedError(421, sentence, close=True)


def _size(scope: Scope) -> int:
    head = sum(len(name) + len(value) for name, value in scope["headers"])
    return head + len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])


def label(path: str) -> str:
    """The route of a path as the metrics call it; there are few, however many paths are asked for."""
    first = path.split("/", 2)[1] if "/" in path else ""
    if first == "pages":
        return "image" if path.endswith("/image") else "page"
    return "index" if path == "/" else first if first in _ROUTES else "other"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
