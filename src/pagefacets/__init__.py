"""pagefacets: page vectors 10 to 100 times smaller, with their answers kept."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagefacets.answers.search import rank
    from pagefacets.data import Facets, Hit, Page, PageVectors, Words
    from pagefacets.errors import (
        FileFormatError,
        InputError,
        MissingExtraError,
        PageError,
        PagefacetsError,
        PoolMismatchError,
    )
    from pagefacets.evidence.benchmark import benchmark
    from pagefacets.evidence.compare import compare
    from pagefacets.evidence.comparison import Comparison
    from pagefacets.evidence.diagnostics import Diagnostics, PageDiagnostics, diagnose, diagnose_many
    from pagefacets.evidence.reproduce import reproduce
    from pagefacets.facets.compressor import Compressor
    from pagefacets.facets.magic import Magic
    from pagefacets.facets.registry import compressor
    from pagefacets.interaction import PackedPages, maxsim
    from pagefacets.pages.datasets import Dataset, Query, open_dataset
    from pagefacets.pages.source import open_pages
    from pagefacets.pipeline import Index
    from pagefacets.recipe import Recipe
    from pagefacets.vectors.cache import Cache, encode
    from pagefacets.vectors.encoder import Encoder, encoder
    from pagefacets.vectors.files import VectorFile, open_vectors, save_vectors
    from pagefacets.vectors.pool import CalibrationPool

_HOME = {
    "Cache": "vectors.cache",
    "CalibrationPool": "vectors.pool",
    "Comparison": "evidence.comparison",
    "Compressor": "facets.compressor",
    "Dataset": "pages.datasets",
    "Diagnostics": "evidence.diagnostics",
    "Encoder": "vectors.encoder",
    "Facets": "data",
    "FileFormatError": "errors",
    "Hit": "data",
    "Index": "pipeline",
    "InputError": "errors",
    "Magic": "facets.magic",
    "MissingExtraError": "errors",
    "PackedPages": "interaction",
    "Page": "data",
    "PageDiagnostics": "evidence.diagnostics",
    "PageError": "errors",
    "PageVectors": "data",
    "PagefacetsError": "errors",
    "PoolMismatchError": "errors",
    "Query": "pages.datasets",
    "Recipe": "recipe",
    "VectorFile": "vectors.files",
    "Words": "data",
    "benchmark": "evidence.benchmark",
    "compare": "evidence.compare",
    "compressor": "facets.registry",
    "diagnose": "evidence.diagnostics",
    "diagnose_many": "evidence.diagnostics",
    "encode": "vectors.cache",
    "encoder": "vectors.encoder",
    "maxsim": "interaction",
    "open_dataset": "pages.datasets",
    "open_pages": "pages.source",
    "open_vectors": "vectors.files",
    "rank": "answers.search",
    "reproduce": "evidence.reproduce",
    "save_vectors": "vectors.files",
}

__all__ = [
    "Cache",
    "CalibrationPool",
    "Comparison",
    "Compressor",
    "Dataset",
    "Diagnostics",
    "Encoder",
    "Facets",
    "FileFormatError",
    "Hit",
    "Index",
    "InputError",
    "Magic",
    "MissingExtraError",
    "PackedPages",
    "Page",
    "PageDiagnostics",
    "PageError",
    "PageVectors",
    "PagefacetsError",
    "PoolMismatchError",
    "Query",
    "Recipe",
    "VectorFile",
    "Words",
    "__version__",
    "benchmark",
    "compare",
    "compressor",
    "diagnose",
    "diagnose_many",
    "encode",
    "encoder",
    "maxsim",
    "open_dataset",
    "open_pages",
    "open_vectors",
    "rank",
    "reproduce",
    "save_vectors",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'pagefacets' has no attribute {name!r}")
    return getattr(import_module(f"pagefacets.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
