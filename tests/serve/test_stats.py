"""The numbers of an index against their definitions."""

import math

import numpy as np
import pytest
import torch

from pagefacets.pipeline import Index
from pagefacets.serve.stats import Stats, effective_facets


@pytest.mark.parametrize(
    ("assignment", "demand", "k", "expected"),
    [
        ([0, 1, 2, 3], None, 4, 4.0),
        ([0, 0, 0, 0], None, 4, 1.0),
        ([0, 1, -1, -1], None, 2, 2.0),
        ([0, 1], [0.25, 0.75], 2, math.exp(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))),
        ([0, 1, 1], [0.0, 0.0, 0.0], 2, math.exp(-(1 / 3 * math.log(1 / 3) + 2 / 3 * math.log(2 / 3)))),
    ],
)
def test_effective_facets_of_known_pages(assignment, demand, k, expected):
    weights = None if demand is None else np.array(demand, dtype=np.float32)
    assert effective_facets(np.array(assignment, dtype=np.int32), weights, k) == pytest.approx(expected, rel=1e-6)


def test_the_numbers_of_an_index(index):
    one = Index.open(index)
    found = Stats().of(one)
    listing = one.reader.listing
    full = [one.reader.page(name) for name in listing.ids]
    held = [one.reader.facets(name) for name in listing.ids]
    assert found["pages"] == 6
    assert found["documents"] == 4
    assert found["bytes"] == sum(2 * facets.vectors.numel() for facets in held)
    assert found["full_bytes"] == sum(2 * page.vectors.numel() for page in full)
    assert found["ratio"] == pytest.approx(found["facets"] / found["vectors"])
    losses = {}
    for page, facets in zip(full, held, strict=True):
        D, F = (torch.nn.functional.normalize(rows.double(), dim=1) for rows in (page.vectors, facets.vectors))
        loss = 1 - (D @ F.T).max(dim=1).values
        weight = torch.ones(page.n) if facets.demand is None else facets.demand
        losses[facets.id] = float((loss * weight).sum() / weight.sum())
    assert found["worst_by"] == "covering_error"
    assert [one["id"] for one in found["worst"]] == sorted(losses, key=losses.get, reverse=True)[:5]
    assert [one["value"] for one in found["worst"]] == pytest.approx(
        sorted(losses.values(), reverse=True)[:5], abs=1e-4
    )
