"""Token pooling of colpali-engine by any method that runs on bare vectors."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pagefacets.adapters.choice import Choice
from pagefacets.data import Facets
from pagefacets.extras import require
from pagefacets.facets.compressor import Compressor
from pagefacets.vectors.pool import CalibrationPool

__all__ = ["token_pooler"]

# For every vector that is kept, the rows it stands for, in the form of colpali-engine.
Clusters: TypeAlias = dict[int, tuple[Int[Tensor, " M"]]]


def token_pooler(
    method: str | Compressor = "magic",
    *,
    pool: CalibrationPool | str | os.PathLike[str] | None = None,
    **options: object,
) -> Any:
    """A `BaseTokenPooler` that keeps of each page what a pagefacets compressor keeps.

    `method` is a name with its options (`token_pooler("magic", ratio=0.05, pool=pool)`) or a compressor. A padded
    tensor needs `padding=True` and its `padding_side`, as with every pooler: a zero row that counts as a patch is
    refused. `num_workers` are processes.
    """
    return _pooler(Choice.of(method, pool, options))


def _pooler(choice: Choice) -> Any:
    return _kind()(choice)


@functools.cache
def _kind() -> Callable[[Choice], Any]:
    base = require("colpali_engine.compression.token_pooling", extra="colpali").BaseTokenPooler
    return type("TokenPooler", (_Pooling, base), {"__module__": __name__, "__doc__": token_pooler.__doc__})


class _Pooling:
    """The one method that a pooler of colpali-engine adds to its base."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def __reduce__(self) -> tuple[Callable[[Choice], object], tuple[Choice]]:
        return _pooler, (self.choice,)

    def __repr__(self) -> str:
        return f"TokenPooler({self.choice.described()})"

    def _pool_embeddings_impl(
        self, embeddings: list[Float[Tensor, "_ p"]], num_workers: int | None = None
    ) -> tuple[list[Float[Tensor, "_ p"]], list[Clusters]]:
        workers = 1 if num_workers is None else num_workers
        pages = self.choice.compressor.compress_many(
            embeddings, self.choice.pool, workers=workers, device=embeddings[0].device
        )
        kept = list(pages)
        return [facets.vectors for facets in kept], [_clusters(facets) for facets in kept]


def _clusters(facets: Facets) -> Clusters:
    assignment = facets.assignment.cpu()
    return {facet: (torch.nonzero(assignment == facet).flatten(),) for facet in range(facets.k)}
