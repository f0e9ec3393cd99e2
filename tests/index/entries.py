"""Small indexes made row by row, and their pages as the mathematics has them."""

import numpy as np
import torch

from pagefacets.data import Facets, PageVectors
from pagefacets.index.format import Entry, Manifest
from pagefacets.index.reader import Reader
from pagefacets.index.writer import Writer
from pagefacets.vectors.caching.manifest import EncoderNote


def manifest(*, dim: int = 16, **choices) -> Manifest:
    note = EncoderNote("hashed", dim, "ask: ", {"name": "hashed", "salt": "", "p": dim})
    return Manifest(note, {"name": "ward", "ratio": 0.25}, **choices)


def units(count: int, dim: int, generator: np.random.Generator) -> torch.Tensor:
    rows = torch.from_numpy(generator.standard_normal((count, dim)).astype(np.float32))
    return torch.nn.functional.normalize(rows, dim=1)


def entry(
    id: str,
    *,
    seed: int,
    k: int = 3,
    n: int = 12,
    dim: int = 16,
    source: str = "a.pdf",
    number: int = 0,
    root: str | None = None,
    digest: str = "d0",
    bare: bool = False,
    offset: float | None = None,
    facets: torch.Tensor | None = None,
) -> Entry:
    """A page of n vectors and k facets; a bare one lacks all that may be null."""
    generator = np.random.default_rng(seed)
    vectors = units(n, dim, generator)
    rows = vectors[:k].clone() if facets is None else facets
    assignment = torch.from_numpy(generator.integers(-1, len(rows), n))
    demand = torch.from_numpy(generator.dirichlet(np.ones(n)).astype(np.float32))
    mask = torch.arange(n) > 0
    corners = torch.from_numpy(generator.random((n, 4)).astype(np.float32))
    page = PageVectors(
        vectors, None if bare else (n - 1, 1), None if bare else mask, None, None if bare else corners, id
    )
    made = Facets(rows, assignment, None if bare else demand, None, offset, id, "ward")
    return Entry(id, root, source, number, None if bare else (612.0, 792.5), digest, page, made)


def build(path, entries, about: Manifest | None = None, *, commits: int = 1) -> Reader:
    """An index with these pages, in so many commits."""
    with Writer.create(path, about or manifest(), lambda folder: None) as writer:
        for part in np.array_split(np.arange(len(entries)), commits):
            writer.put([entries[i] for i in part])
    return Reader(path)
