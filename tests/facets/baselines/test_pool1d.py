"""1D pooling: windows of the right length, whose number never exceeds the budget."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pagefacets as pf


@pytest.mark.parametrize(("ratio", "factor"), [(0.5, 2), (0.25, 4), (0.1, 10), (0.05, 20), (0.025, 40), (0.01, 100)])
def test_the_papers_ratios_are_its_windows(ratio, factor, draw):
    rows = draw(743)
    facets = pf.compressor("pool1d", ratio=ratio).compress(rows)
    assert facets.k == -(-743 // factor)
    assert facets.assignment.tolist() == [j // factor for j in range(743)]
    explicit = pf.compressor("pool1d", factor=factor)
    assert explicit.k(743) == facets.k
    assert torch.equal(explicit.compress(rows).vectors, facets.vectors)


def test_full_windows_are_torch_s_average_pooling(draw):
    D = torch.nn.functional.normalize(torch.from_numpy(draw(120)), dim=1)
    pooled = torch.nn.functional.avg_pool1d(D.T, 8).T
    plain = pf.compressor("pool1d", factor=8, normalize=False).compress(D)
    torch.testing.assert_close(plain.vectors, pooled, atol=1e-6, rtol=0)
    normalised = pf.compressor("pool1d", factor=8).compress(D)
    torch.testing.assert_close(normalised.vectors, torch.nn.functional.normalize(pooled, dim=1), atol=1e-6, rtol=0)


def test_the_last_window_averages_what_is_left():
    D = np.eye(5, dtype=np.float32)
    facets = pf.compressor("pool1d", factor=3, normalize=False).compress(D)
    third, half = 1 / 3, 1 / 2
    np.testing.assert_allclose(facets.vectors, [[third, third, third, 0, 0], [0, 0, 0, half, half]])


@given(
    n=st.integers(1, 400),
    ratio=st.floats(0.001, 1.0),
    rounding=st.sampled_from(["ceil", "nearest", "floor"]),
)
def test_windows_are_even_and_within_the_budget(n, ratio, rounding):
    method = pf.compressor("pool1d", ratio=ratio, rounding=rounding)
    facets = method.compress(np.eye(1, 4, dtype=np.float32).repeat(n, 0))
    sizes = torch.bincount(facets.assignment)
    assert facets.k <= method.k(n)
    assert (facets.assignment.diff() >= 0).all()
    assert (sizes[:-1] == sizes[0]).all()
    assert 0 < sizes[-1] <= sizes[0]


@given(n=st.integers(2, 400), budget=st.integers(1, 400))
def test_a_budget_takes_the_shortest_window_that_meets_it(n, budget):
    facets = pf.compressor("pool1d", budget=budget).compress(np.eye(1, 4, dtype=np.float32).repeat(n, 0))
    window = int(torch.bincount(facets.assignment)[0])
    assert facets.k <= budget
    assert window == 1 or -(-n // (window - 1)) > budget


def test_one_budget_and_no_more():
    for options in ({}, {"ratio": 0.1, "factor": 10}, {"budget": 3, "factor": 10}, {"ratio": 0.1, "budget": 3}):
        with pytest.raises(pf.InputError, match=r"exactly one of ratio= .* budget= .* factor="):
            pf.compressor("pool1d", **options)
    with pytest.raises(pf.InputError, match="factor must be a whole number, at least 1, got 0"):
        pf.compressor("pool1d", factor=0)


def test_a_factor_travels_with_the_configuration():
    method = pf.compressor("pool1d", factor=7)
    assert pf.compressor(**method.config()) == method
