"""How much one client, and all of them together, can ask of the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from pagefacets.errors import InputError

__all__ = ["Limits"]


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the server. Beyond them a request is answered with 400, 408, 413, 431 or 503 and one sentence.

    `threads` compute answers, up to `together` at once each, and as many draw pages; `waiting` requests may wait for
    each of the two. A client that takes longer than `head_seconds` for the head of a request, `body_seconds` for its
    body or `stall_seconds` to read an answer is hung up on. Pictures have one of the `sides`, the least that is not
    smaller than what was asked for.
    """

    query_characters: int = 1_000
    filter_characters: int = 500
    hits: int = 100
    candidates: int = 1_000
    head_bytes: int = 16_384
    body_bytes: int = 16_384
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    stall_seconds: float = 30.0
    idle_seconds: float = 30.0
    connections: int = 512
    threads: int = 2
    waiting: int = 256
    together: int = 32
    sides: tuple[int, ...] = (160, 320, 640, 960, 1280, 1600, 2000)
    picture_bytes: int = 64_000_000
    refresh_seconds: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name != "sides" and not value > 0:
                raise InputError(f"{name} must be positive, got {value!r}")
        if not self.sides or min(self.sides) < 1 or list(self.sides) != sorted(self.sides):
            raise InputError(f"sides must be positive and ascending, got {self.sides!r}")

    def side(self, longest: int) -> int:
        """The side of a picture that is asked for with `longest` pixels."""
        return next((side for side in self.sides if side >= longest), self.sides[-1])
