"""The exceptions of pagefacets: one small tree, each message one sentence that ends in a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

__all__ = [
    "FileFormatError",
    "InputError",
    "MissingExtraError",
    "PageError",
    "PagefacetsError",
    "PoolMismatchError",
    "Skipped",
]


class PagefacetsError(Exception):
    """Anything pagefacets raises on purpose; the command line turns it into one line and exit status 2."""


class InputError(PagefacetsError, ValueError):
    """An argument or a page that cannot be used as it is."""


@final
class PageError(InputError):
    """A page or a document that cannot be read; `place` names it. Runs that keep going report it and skip it."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place = place
        self.why = why

    def __reduce__(self) -> tuple[type[PageError], tuple[str, str]]:
        return type(self), (self.place, self.why)


# Is told of each page or document that cannot be used; the run then goes on without it.
Skipped: TypeAlias = Callable[[PageError], None]


@final
class FileFormatError(InputError):
    """A file that is truncated, damaged, or not of the format its name promises."""


@final
class PoolMismatchError(InputError):
    """A calibration pool from another embedding space than the pages it is used on."""


@final
class MissingExtraError(PagefacetsError, ImportError):
    """An optional dependency that is not installed."""
