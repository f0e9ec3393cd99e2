"""Random rows: kept as they are, uniform, and nested."""

import numpy as np
import pytest
import torch

import pagefacets as pf


def test_kept_rows_are_rows_of_the_page_in_its_order(draw):
    D = torch.nn.functional.normalize(torch.from_numpy(draw(50)), dim=1)
    facets = pf.compressor("random", budget=9).compress(D)
    kept = torch.nonzero(facets.assignment >= 0).flatten()
    assert facets.k == len(kept) == 9
    torch.testing.assert_close(facets.vectors, D[kept], atol=1e-6, rtol=0)
    assert facets.assignment[kept].tolist() == list(range(9))


def test_a_larger_ratio_keeps_the_rows_of_a_smaller_one(draw):
    all_kept = pf.compressor("random", ratio=0.5).compress_ratios(draw(80), [0.5, 0.1, 0.025])
    large, middle, small = ({j for j, k in enumerate(facets.assignment.tolist()) if k >= 0} for facets in all_kept)
    assert small < middle < large


def test_every_row_is_as_likely(draw):
    D, counts = draw(20, 8), np.zeros(20)
    for seed in range(2000):
        counts += pf.compressor("random", budget=5, seed=seed).compress(D).assignment.numpy() >= 0
    np.testing.assert_allclose(counts / 2000, 0.25, atol=0.04)


def test_seed_must_be_a_count():
    with pytest.raises(pf.InputError, match=r"seed must be a whole number, at least 0, got -3"):
        pf.compressor("random", ratio=0.1, seed=-3)
