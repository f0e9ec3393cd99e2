"""ColChunk against its definition in float64, with SciPy's own linkage."""

import math

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage

import pagefacets as pf
from pagefacets.facets.baselines.colchunk import ColChunk, positions


def encoding(grid, p, scale):
    """The sinusoidal encoding cell by cell, from its formula."""
    columns, rows = grid
    cells = []
    for row in range(rows):
        for column in range(columns):
            numbers = []
            for at, h in (((row + 0.5) / rows, p // 2), ((column + 0.5) / columns, p - p // 2)):
                for i in range(h):
                    angle = scale * at / 10000 ** (2 * (i // 2) / h)
                    numbers.append(math.sin(angle) if i % 2 == 0 else math.cos(angle))
            cells.append(np.array(numbers) / np.linalg.norm(numbers))
    return np.array(cells)


def unit(rows):
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def same_partition(a, b):
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


def page_of(rows, grid, before=0, after=0):
    mask = np.zeros(len(rows), dtype=bool)
    mask[before : len(rows) - after] = True
    return pf.PageVectors(rows, grid=grid, image_mask=mask)


@pytest.mark.parametrize("p", [1, 6, 16, 128, 129])
def test_positions_follow_the_formula(p):
    np.testing.assert_allclose(positions((5, 3), p, 100.0), encoding((5, 3), p, 100.0), atol=2e-5)


@pytest.mark.parametrize(("omega", "scale"), [(0.2, 100.0), (0.2, 3.0), (0.6, 30.0), (0.0, 100.0)])
@pytest.mark.parametrize("unit_fused", [False, True])
def test_chunks_are_wards_clusters_of_the_fused_rows(draw, omega, scale, unit_fused):
    grid = (13, 11)
    page = pf.PageVectors(draw(143), grid=grid)
    V = unit(page.vectors)
    z = (1 - omega) * V + omega * encoding(grid, 128, scale)
    tree = linkage(unit(z) if unit_fused else z, method="ward")
    method = ColChunk(ratio=0.5, omega=omega, pos_scale=scale, unit_fused=unit_fused)
    for K, facets in zip((58, 15, 5), method.compress_ratios(page, [0.4, 0.1, 0.03]), strict=True):
        labels = fcluster(tree, K, criterion="maxclust")
        assert same_partition(labels.tolist(), facets.assignment.tolist())
        means = np.stack([unit(V[facets.assignment == k].mean(0, keepdims=True))[0] for k in range(facets.k)])
        np.testing.assert_allclose(facets.vectors, means, atol=1e-5)


def test_like_patches_are_chunked_by_place():
    """On a blank page only the place tells patches apart: four chunks of an 8 x 8 grid are its quarters."""
    page = pf.PageVectors(torch.ones(64, 32), grid=(8, 8))
    facets = ColChunk(budget=4, pos_scale=2.0).compress(page)
    cells = np.arange(64)
    quarters = (cells // 8 // 4) * 2 + cells % 8 // 4
    assert same_partition(facets.assignment.tolist(), quarters.tolist())


def test_prompt_rows_join_their_nearest_chunk_or_are_dropped(draw):
    page = page_of(draw(4 + 60 + 7), (10, 6), before=4, after=7)
    D = unit(page.vectors)
    merged, dropped = (ColChunk(budget=9, prompt=how).compress(page) for how in ("merge", "drop"))
    outside = ~page.image_mask.numpy()
    assert (dropped.assignment.numpy()[outside] == -1).all()
    assert torch.equal(merged.assignment[~outside], dropped.assignment[~outside])
    nearest = (D[outside] @ dropped.vectors.numpy().T).argmax(1)
    np.testing.assert_array_equal(merged.assignment.numpy()[outside], nearest)
    means = [D[merged.assignment.numpy() == k].mean(0) for k in range(merged.k)]
    np.testing.assert_allclose(merged.vectors, unit(means), atol=1e-5)


def test_a_budget_beyond_the_patches_leaves_each_its_own(draw):
    page = page_of(draw(11 + 4, 16), (2, 2), before=11)
    assert ColChunk(budget=9).compress(page).assignment[11:].tolist() == [0, 1, 2, 3]
    assert ColChunk(budget=9, prompt="drop").compress(page).k == 4
    single = page_of(draw(3, 16), (1, 1), before=2)
    assert ColChunk(budget=1).compress(single).assignment.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"omega": 1.5}, r"omega must lie in \[0, 1\], got 1.5"),
        ({"omega": float("nan")}, "omega must lie in"),
        ({"pos_scale": 0.0}, "pos_scale must be"),
    ],
)
def test_options_that_cannot_work_are_refused(options, sentence):
    with pytest.raises(pf.InputError, match=sentence):
        ColChunk(ratio=0.1, **options)


def test_a_page_without_a_grid_is_refused(draw):
    for budget in (3, 20):
        with pytest.raises(pf.InputError, match="colchunk needs the patch grid, which the page lacks"):
            ColChunk(budget=budget).compress(draw(20))
