"""Small labelled collections: queries are noisy rows of the pages that answer them, so that methods differ."""

import math

import torch

import pagefacets as pf
from pagefacets.evidence.labelled import Labelled

DIM = 12


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=-1)


def labelled(name="small", *, pages=18, queries=11, seed=0, bare=True, languages=(), noise=0.6, unjudged=0):
    """Pages of 4 columns around topics that all collections share; page i answers query i, page i + 1 does less."""
    g = torch.Generator().manual_seed(seed)
    topics = torch.randn(6, DIM, generator=torch.Generator().manual_seed(99))
    made = []
    for i in range(pages):
        n = 8 + 4 * (i % 5) + 2
        rows = topics[torch.randint(0, 6, (n,), generator=g)] + 0.7 * torch.randn(n, DIM, generator=g)
        patches = torch.arange(n) < n - 2
        weights = torch.rand(n, generator=g).masked_fill(~patches, math.nan)
        known = {} if bare else {"grid": (4, (n - 2) // 4), "image_mask": patches, "importance": weights}
        made.append(pf.PageVectors(unit(rows), id=f"{name}-{i}", **known))
    asked, qrels = [], {}
    for i in range(queries):
        source = made[i % pages].vectors
        rows = source[torch.randint(0, len(source), (5,), generator=g)]
        asked.append(unit(rows + noise * torch.randn(5, DIM, generator=g)))
        if i < queries - unjudged:
            qrels[f"q{i}"] = {f"{name}-{i % pages}": 2, f"{name}-{(i + 1) % pages}": 1}
    return Labelled(
        name,
        made,
        tuple(page.id for page in made),
        tuple(asked),
        tuple(f"q{i}" for i in range(queries)),
        qrels,
        tuple(languages),
    )
