"""The one guard around optional dependencies."""

from __future__ import annotations

import importlib
from types import ModuleType

from pagefacets.errors import MissingExtraError

__all__ = ["require"]


def require(module: str, *, extra: str) -> ModuleType:
    """Import `module`, or say which extra of pagefacets provides it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs the package {module.partition('.')[0]!r}, which is not installed: "
            f"pip install 'pagefacets[{extra}]'"
        ) from error
