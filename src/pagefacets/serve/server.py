"""The server of the web page: one process, one port, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pagefacets.errors import InputError
from pagefacets.extras import require
from pagefacets.serve.limits import Limits

__all__ = ["listening", "serve", "url_of"]

# Requests under way at the end have so many seconds to be answered.
_LAST_SECONDS = 5
# The loop that reads requests gets its turn this soon, however busy the threads are.
_SWITCH_SECONDS = 0.001


def serve(
    index: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    names: Sequence[str] = (),
    limits: Limits | None = None,
    ready: Callable[[str, int], None] | None = None,
) -> None:
    """Serve an index until the process is told to stop; `ready` hears the URL and the number of pages.

    Port 0 takes a free one. Who may connect is decided by `host`; `names` are the Host names answered besides it.
    """
    require("starlette", extra="serve")
    require("uvicorn", extra="serve")
    bounds = Limits() if limits is None else limits
    with listening(host, port) as bound:
        import torch
        import uvicorn

        from pagefacets.parallel import available_cores
        from pagefacets.serve.app import create_app
        from pagefacets.serve.connections import bounded
        from pagefacets.serve.shelf import Shelf

        # The threads share the cores: a product on all of them would wait for the others'.
        torch.set_num_threads(max(1, available_cores() // bounds.threads))
        shelf = Shelf(index)
        shelf.warm()
        app = create_app(shelf, limits=bounds, names=(host, *names), addresses=not _is_loopback(bound))
        config = uvicorn.Config(
            app,
            http=bounded(bounds),  # type: ignore[arg-type]  # any callable that makes a protocol will do
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(bounds.idle_seconds),
            timeout_graceful_shutdown=_LAST_SECONDS,
        )
        sys.setswitchinterval(_SWITCH_SECONDS)
        if ready is not None:
            ready(url_of(host, bound), len(shelf.listing))
        uvicorn.Server(config).run(sockets=[bound])


def listening(host: str, port: int) -> socket.socket:
    """A socket that connections are already let in on, or one sentence."""
    if not 0 <= port <= 65535:
        raise InputError(f"port must lie between 0 and 65535, got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"there is no address {host!r} here: use 127.0.0.1, or an address of this machine") from error
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(
                f"port {port} of {host} is in use: choose another with --port, or 0 for a free one"
            ) from error
        if error.errno == errno.EACCES:
            raise InputError(f"port {port} is reserved for the system: choose one from 1024 on with --port") from error
        raise InputError(f"cannot listen on {host} ({error.strerror}): use an address of this machine") from error
    return bound


def url_of(host: str, bound: socket.socket) -> str:
    """Where a browser finds the server."""
    name = "localhost" if host in ("", "0.0.0.0", "::") else host  # noqa: S104 - it is compared, not bound
    return f"http://{f'[{name}]' if ':' in name else name}:{bound.getsockname()[1]}/"


def _is_loopback(bound: socket.socket) -> bool:
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback
