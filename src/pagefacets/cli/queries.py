"""Where a verb's query vectors come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pagefacets.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from pagefacets.vectors.files import VectorFile

__all__ = ["query_vectors"]


def query_vectors(pages: VectorFile, queries: Path | None) -> list[Tensor]:
    """One matrix per query: from the file `queries`, or those that lie beside the pages."""
    if queries is None:
        found = pages.queries()
        if not found:
            raise InputError(f"{pages.name} holds no query vectors: name a file of encoded queries with --vectors")
        return found
    from pagefacets.vectors.files import open_vectors

    with open_vectors(queries) as file:
        return file.queries() or [query.vectors for query in file]
