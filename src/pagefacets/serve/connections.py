"""A connection that a slow client cannot hold: uvicorn's, with a deadline for each of its waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from pagefacets.serve.limits import Limits

__all__ = ["BoundedConnection", "bounded"]


@final
class BoundedConnection(H11Protocol):
    """An HTTP/1.1 connection.

    The head of a request has to be whole, and an answer has to be taken, within a time that starts once: a client that
    sends a byte now and then wins nothing. Where there are more connections than allowed, the one that has waited
    longest for a request is closed for the new one.
    """

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], limits: Limits, **options: Any
    ) -> None:
        super().__init__(config, server_state, app_state, **options)
        self._limits = limits
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._since = time.monotonic()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()
        others = [one for one in self.connections if isinstance(one, BoundedConnection) and one is not self]
        if len(others) >= self._limits.connections:
            idle = [one for one in others if not one._answering and not one.transport.is_closing()]
            min(idle, key=lambda one: one._since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget("_head", "_stall")
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._answering:
            self._forget("_head")
        elif self._head is None and not self.transport.is_closing():
            self._await_head()

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(self._limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._forget("_stall")
        super().resume_writing()

    def _forget(self, *timers: str) -> None:
        for name in timers:
            timer = getattr(self, name)
            if timer is not None:
                timer.cancel()
            setattr(self, name, None)

    def _await_head(self) -> None:
        self._head = self.loop.call_later(self._limits.head_seconds, self._late)

    def _late(self) -> None:
        self._head = None
        if not self._answering:
            self.transport.abort()


def bounded(limits: Limits) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes a connection with."""

    def made(**given: Any) -> asyncio.Protocol:
        return BoundedConnection(limits=limits, **given)

    return made
