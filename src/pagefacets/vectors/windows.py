"""Overlapping windows over a text that is longer than what a model reads at once."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

__all__ = ["Window", "windows"]


class Window(NamedTuple):
    """Tokens `start` to `stop` are read together; those from `first` to `last` (exclusive) take their vectors here."""

    start: int
    stop: int
    first: int
    last: int


def windows(n: int, room: int, overlap: int) -> list[Window]:
    """Windows of nearly equal length over n tokens: at most `room` each, neighbours share at least `overlap`.

    Every token is kept by one window, the one in whose middle it stands closest: where two windows overlap, each keeps
    the half on its own side.
    """
    count = 1 if n <= room else math.ceil((n - overlap) / (room - overlap))
    length = math.ceil((n + (count - 1) * overlap) / count)
    starts = [i * (n - length) // max(count - 1, 1) for i in range(count)]
    seams = [(before + length + after) // 2 for before, after in itertools.pairwise(starts)]
    return [
        Window(start, start + length, first, last)
        for start, first, last in zip(starts, [0, *seams], [*seams, n], strict=True)
    ]
