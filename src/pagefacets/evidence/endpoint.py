"""A model behind an OpenAI-compatible endpoint: several pages under way, and patience with a server that stumbles."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from threading import Thread, current_thread
from typing import Any, final
from urllib.parse import urlsplit, urlunsplit

from pagefacets.data import Page
from pagefacets.errors import InputError, PageError, PagefacetsError
from pagefacets.evidence.asker import Answer, Asked, Asker
from pagefacets.extras import require

__all__ = ["Endpoint"]

# A later attempt at a page draws its words at this temperature; the first takes the likeliest.
TEMPERATURE = 0.7
# Seconds for making a connection, which a healthy server needs none of.
CONNECT = 10.0
# Seconds to wait for requests to end that nobody waits for any more.
LEAVING = 10.0
# An answer beyond this many bytes is not read to its end.
LARGEST_ANSWER = 4 << 20
# Statuses that say "later", not "no"; and those that say the address, the key or the model is wrong, whatever the page.
LATER = frozenset({408, 409, 425, 429})
NEVER = frozenset({401, 402, 403, 404, 405, 407})


class _Later(Exception):  # noqa: N818 - no error yet: the request is sent again
    """Why a request did not work this time, and how long the server wants it to wait."""

    def __init__(self, why: str, seconds: float = 0.0, *, unreachable: bool = False) -> None:
        super().__init__(why)
        self.seconds = seconds
        self.unreachable = unreachable


class _Refused(Exception):  # noqa: N818 - told apart from what may work later
    """A request that the server will not answer however often it is sent."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@final
@dataclass(frozen=True)
class Endpoint(Asker):
    """A model served at `url`, the base of an OpenAI-compatible API such as http://localhost:8000/v1.

    `key_variable` names the environment variable that holds the key; without it none is sent. A request may take
    `timeout` seconds in all. Where the server fails, is busy or cannot be reached, it is sent up to `retries` more
    times, after pauses that double from `pause` seconds, or as long as the server asks where that is no more than
    `longest_pause`. `settings` are put into each request; None takes a field out of it. Page images have at most
    `longest` pixels on their longer side.
    """

    url: str
    model: str = "Qwen/Qwen3-VL-8B-Instruct"
    key_variable: str | None = None
    concurrency: int = 4
    timeout: float = 120.0
    retries: int = 5
    pause: float = 1.0
    longest_pause: float = 120.0
    longest: int = 1600
    max_tokens: int = 1024
    settings: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_address(self.url)
        for name, least in (("concurrency", 1), ("retries", 0), ("longest", 64), ("max_tokens", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("timeout", "pause", "longest_pause"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{name} must be a positive number of seconds, got {getattr(self, name)}")
        for name in ("model", "messages", "stream", "n"):
            if name in self.settings:
                raise InputError(f"the setting {name!r} is not free: each request asks one model for one whole answer")

    @property
    def id(self) -> str:
        return self.model

    def answers(self, pages: Iterable[Page], prompt: str, *, attempt: int = 0) -> Generator[Asked, None, None]:
        httpx = require("httpx", extra="questions")
        key = self._key()
        client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity"} | ({} if key is None else {"Authorization": f"Bearer {key}"}),
            timeout=httpx.Timeout(self.timeout, connect=min(CONNECT, self.timeout)),
            limits=httpx.Limits(max_connections=self.concurrency),
        )
        asked: dict[Future[Answer | PageError], Page] = {}
        with _running(client) as loop:
            for page in pages:
                try:
                    body = self._body(_data_url(page, self.longest), prompt, attempt)
                except PageError as error:
                    yield page, error
                    continue
                request = asyncio.run_coroutine_threadsafe(self._ask(client, page.id, body, key), loop)
                asked[request] = page
                yield from _finished(asked, None if len(asked) >= self.concurrency else 0.0)
            while asked:
                yield from _finished(asked, None)

    def _key(self) -> str | None:
        if self.key_variable is None:
            return None
        key = os.environ.get(self.key_variable, "").strip()
        if not key:
            raise InputError(f"the environment variable {self.key_variable}, named for the key, is not set")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise InputError(f"the environment variable {self.key_variable} holds characters that no key has")
        return key

    def _body(self, image: str, prompt: str, attempt: int) -> dict[str, object]:
        content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": prompt}]
        body: dict[str, object] = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self.max_tokens,
            "temperature": 0.0 if attempt == 0 else TEMPERATURE,
            **self.settings,
        }
        return {name: value for name, value in body.items() if value is not None}

    async def _ask(self, client: Any, place: str, body: dict[str, object], key: str | None) -> Answer | PageError:
        server = _bare(self.url)
        tries = 0
        while True:
            tries += 1
            try:
                return _answer(await self._send(client, body))
            except _Later as later:
                why = _shown(str(later), key)
                if later.seconds > self.longest_pause:
                    raise PagefacetsError(
                        f"{server} asks for a pause of {later.seconds:,.0f} seconds ({why}): run again then to go on"
                    ) from None
                if tries > self.retries and later.unreachable:
                    raise PagefacetsError(
                        f"{server} cannot be reached in {tries} tries ({why}): check the address and run again to go on"
                    ) from None
                if tries > self.retries:
                    return PageError(place, f"{server} gave no answer in {tries} tries, at last: {why}")
                pause = min(self.pause * 2 ** (tries - 1), self.longest_pause)
                await asyncio.sleep(max(pause * random.uniform(0.5, 1.0), later.seconds))  # noqa: S311
            except _Refused as refused:
                why = f"status {refused.status}: {_shown(str(refused), key)}"
                if refused.status in NEVER or refused.status < 400:
                    raise InputError(
                        f"{server} refuses model {self.model!r} ({why}): check the address, the model and the key"
                    ) from None
                return PageError(place, f"{server} refuses this page ({why})")

    async def _send(self, client: Any, body: dict[str, object]) -> bytes:
        """The body of a successful response, read within the time there is for all of it."""
        import httpx

        parts = urlsplit(self.url)
        address = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/chat/completions", fragment=""))
        text = bytearray()
        try:
            async with asyncio.timeout(self.timeout), client.stream("POST", address, json=body) as response:
                async for piece in response.aiter_bytes():
                    text += piece
                    if len(text) > LARGEST_ANSWER:
                        raise _Later(f"an answer of more than {LARGEST_ANSWER:,} bytes")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _Later(str(error) or "no connection", unreachable=True) from None
        except (TimeoutError, httpx.TimeoutException):
            raise _Later(f"no whole answer within {self.timeout:g} seconds") from None
        except httpx.RequestError as error:
            raise _Later(f"the connection broke off: {error or type(error).__name__}") from None
        status: int = response.status_code
        if status in LATER or status >= 500:
            raise _Later(f"status {status}: {_complaint(text)}", _retry_after(response.headers))
        if status >= 300:
            raise _Refused(status, _complaint(text))
        return bytes(text)


@contextmanager
def _running(client: Any) -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own, beside whatever loop the caller may be in; leaving it ends its tasks."""
    loop = asyncio.new_event_loop()

    async def end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await client.aclose()

    def run() -> None:
        loop.run_forever()
        loop.run_until_complete(end())
        loop.close()

    opener = current_thread()
    thread = Thread(target=run, name="pagefacets-endpoint", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        # An iterator that was dropped half-way is closed by the garbage collector, in any thread and under any lock.
        if current_thread() is opener:
            thread.join(LEAVING)


def _finished(asked: dict[Future[Answer | PageError], Page], timeout: float | None) -> Iterator[Asked]:
    """What has come in; an error that ends everything comes after the answers that were there with it."""
    done, _ = wait(asked, timeout=timeout, return_when=FIRST_COMPLETED)
    for future in sorted(done, key=lambda one: one.exception() is not None):
        yield asked.pop(future), future.result()


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise InputError(f"the endpoint must be an http:// or https:// address, got {url.partition('?')[0]!r}")
    if "@" in parts.netloc:
        raise InputError(
            f"the endpoint {_bare(url)} was given with a user or password in it: put the key into an environment "
            "variable and name that"
        )


def _data_url(page: Page, longest: int) -> str:
    image = io.BytesIO()
    page.image(longest).save(image, "JPEG", quality=90, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(image.getvalue()).decode()}"


def _answer(body: bytes) -> Answer:
    """What the model wrote, from the one shape of answer that all such endpoints share."""
    try:
        choice = json.loads(body)["choices"][0]
        message = choice["message"]
        content = message.get("content") or message.get("refusal") or ""
        text = content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
        return Answer(text, cut=choice.get("finish_reason") == "length")
    except (ValueError, RecursionError):
        raise _Later(f"no JSON: {_complaint(body)}") from None
    except (LookupError, TypeError, AttributeError):
        raise _Later(f"no choices[0].message.content: {_complaint(body)}") from None


def _complaint(body: bytes | bytearray) -> str:
    """What a server says about an error: its message where it sends JSON, else how its words begin."""
    text = bytes(body[:4000]).decode("utf-8", "replace")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        said = text
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    return str(said).strip() or "nothing said"


def _retry_after(headers: Mapping[str, str]) -> float:
    """The pause that a server asks for, in seconds or until a date; 0 where it says nothing that can be read."""
    said = headers.get("retry-after", "").strip()
    try:
        seconds = (
            float(said) if said.replace(".", "", 1).isdigit() else parsedate_to_datetime(said).timestamp() - time.time()
        )
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, seconds)


def _bare(url: str) -> str:
    """An address as it may be shown: without user, password or query, which may hold a key."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _shown(text: str, key: str | None) -> str:
    """A server's words on one line, cut, without control characters, and without the key should they repeat it."""
    kept = text if key is None else text.replace(key, "***")
    line = " ".join("".join(c if c.isprintable() else " " for c in kept).split())
    return line if len(line) <= 200 else f"{line[:200]}..."
