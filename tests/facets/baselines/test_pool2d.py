"""2D pooling against PyTorch's own, and its counts on grids that do not divide."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d, normalize

import pagefacets as pf
from pagefacets.facets.baselines.pool2d import Pool2D


def page_of(rows, grid, *, before=0, after=0):
    mask = np.zeros(len(rows), dtype=bool)
    mask[before : len(rows) - after] = True
    return pf.PageVectors(rows, grid=grid, image_mask=mask)


@pytest.mark.parametrize("grid", [(12, 6), (6, 12), (36, 18)])
@pytest.mark.parametrize("m", [1, 2, 3, 6])
def test_equals_average_pooling_where_the_grid_divides(draw, grid, m):
    columns, rows = grid
    page = page_of(draw(columns * rows + 11), grid, before=4, after=7)
    facets = Pool2D(kernel=m).compress(page)
    image = normalize(page.vectors[4:-7], dim=1).T.reshape(1, 128, rows, columns)
    expected = normalize(avg_pool2d(image, m)[0].flatten(1).T, dim=1)
    torch.testing.assert_close(facets.vectors, expected, atol=1e-6, rtol=0)


def test_border_windows_average_the_cells_they_hold():
    """Three columns and two rows with windows of two: the last window holds the two cells of the last column."""
    rows = torch.eye(8)[:6]
    facets = Pool2D(kernel=2).compress(pf.PageVectors(rows, grid=(3, 2)))
    assert facets.assignment.tolist() == [0, 0, 1, 0, 0, 1]
    expected = torch.stack([rows[[0, 1, 3, 4]].sum(0) / 2, rows[[2, 5]].sum(0) / 2**0.5])
    torch.testing.assert_close(facets.vectors, expected)


def test_counts_on_a_letter_page(draw):
    page = page_of(draw(755), (24, 31), before=4, after=7)
    assert Pool2D(ratio=0.1).compress(page).k == 8 * 11
    assert Pool2D(ratio=0.01).compress(page).k == 3 * 4
    assert [facets.k for facets in Pool2D(ratio=0.1).compress_ratios(page, [0.01, 1.0, 0.1, 0.25])] == [
        12,
        755,
        88,
        192,
    ]


@pytest.mark.parametrize("m", range(1, 25))
def test_the_ratio_of_a_window_chooses_that_window(draw, m):
    page = pf.PageVectors(draw(600, 16), grid=(20, 30))
    chosen, given_m = Pool2D(ratio=1 / m**2).compress(page), Pool2D(kernel=m).compress(page)
    assert torch.equal(chosen.vectors, given_m.vectors)


def test_the_prompt_is_dropped_kept_or_averaged(draw):
    page = page_of(draw(4 + 36 + 7, 16), (6, 6), before=4, after=7)
    D = normalize(page.vectors, dim=1)
    outside = torch.cat([torch.arange(4), torch.arange(40, 47)])
    dropped, kept, mean = (Pool2D(kernel=3, prompt=how).compress(page) for how in ("drop", "keep", "append_mean"))
    assert (dropped.k, kept.k, mean.k) == (4, 15, 5)
    assert (dropped.assignment[outside] == -1).all()
    torch.testing.assert_close(kept.vectors[4:], D[outside])
    assert kept.assignment[outside].tolist() == list(range(4, 15))
    torch.testing.assert_close(mean.vectors[4], normalize(D[outside].mean(0), dim=0))
    assert torch.equal(dropped.vectors, kept.vectors[:4])


@given(columns=st.integers(1, 12), rows=st.integers(1, 12), prompt=st.integers(0, 4), budget=st.integers(6, 80))
def test_a_budget_is_never_exceeded_nor_wasted_by_a_smaller_window(columns, rows, prompt, budget):
    n = columns * rows + prompt
    page = page_of(np.random.default_rng(n).standard_normal((n, 8)), (columns, rows), before=prompt)
    for how in ("drop", "keep", "append_mean"):
        facets = Pool2D(budget=budget, prompt=how).compress(page)
        assert facets.k <= budget
        m = next(m for m in range(1, 13) if Pool2D(kernel=m, prompt=how).compress(page).k <= budget)
        if budget < n:
            assert facets.k == Pool2D(kernel=m, prompt=how).compress(page).k


def test_what_cannot_be_pooled_is_refused(draw):
    with pytest.raises(pf.InputError, match=r"needs the patch grid, which page 'x' lacks .*grid=\(columns, rows\)"):
        Pool2D(ratio=0.1).compress(pf.PageVectors(draw(20), id="x"))
    page = page_of(draw(4 + 36, 16), (6, 6), before=4)
    with pytest.raises(pf.InputError, match=r"budget=4 leaves no vector for the grid beside 4 of the prompt"):
        Pool2D(budget=4, prompt="keep").compress(page)
    with pytest.raises(pf.InputError, match=r"exactly one of ratio= .* and kernel="):
        Pool2D(ratio=0.1, kernel=3)


def test_a_bad_prompt_row_leaves_the_grid_and_a_bad_patch_does_not(draw):
    rows = draw(4 + 36, 16)
    rows[1] = 0
    with pytest.warns(UserWarning, match="dropped row 1"):
        facets = Pool2D(kernel=3, on_bad_rows="drop").compress(page_of(rows, (6, 6), before=4))
    clean = Pool2D(kernel=3).compress(pf.PageVectors(rows[4:], grid=(6, 6)))
    torch.testing.assert_close(facets.vectors, clean.vectors)
    rows[10] = np.nan
    with (
        pytest.warns(UserWarning, match="dropped row 1"),
        pytest.raises(pf.InputError, match="has lost with a dropped patch"),
    ):
        Pool2D(kernel=3, on_bad_rows="drop").compress(page_of(rows, (6, 6), before=4))
