"""Prune-then-Merge against its two stages, written out with SciPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

import pagefacets as pf
from pagefacets.facets.baselines.prune_then_merge import PruneThenMerge


def unit(rows):
    rows = np.asarray(rows, dtype=np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def page_of(rows, importance, before=0):
    weights = np.concatenate([np.full(before, np.nan), importance])
    return pf.PageVectors(rows, image_mask=np.isfinite(weights), importance=weights)


def merged(D, K):
    """Ward on the condensed cosine distances of these rows, and the normalised means of its K clusters."""
    distances = np.clip(1 - D @ D.T, 0, None)
    labels = fcluster(linkage(squareform(distances, checks=False), method="ward"), K, criterion="maxclust")
    return {frozenset(np.flatnonzero(labels == k).tolist()) for k in np.unique(labels)}


def importance_of(n, seed=0):
    return np.random.default_rng(seed).gamma(2.0, size=n).astype(np.float32)


@pytest.mark.parametrize("k", [-1.0, -0.5, 0.0])
def test_survivors_of_the_threshold_are_merged(draw, k):
    importance = importance_of(200)
    page = page_of(draw(200), importance)
    survivors = np.flatnonzero(importance > importance.mean(dtype=np.float64) + k * importance.std(dtype=np.float64))
    D = unit(page.vectors)
    for K, facets in zip(
        (20, 10, 2), PruneThenMerge(ratio=0.5, threshold_k=k).compress_ratios(page, [0.1, 0.05, 0.01]), strict=True
    ):
        assert set((facets.assignment >= 0).nonzero().flatten().tolist()) == set(survivors.tolist())
        clusters = {frozenset(survivors[list(members)].tolist()) for members in merged(D[survivors], K)}
        assert clusters == {frozenset(facets.members(i).tolist()) for i in range(facets.k)}
        means = unit([D[facets.members(i).numpy()].mean(0) for i in range(facets.k)])
        np.testing.assert_allclose(facets.vectors, means, atol=1e-5)


@pytest.mark.parametrize(("k", "m"), [(-0.5, 2), (-0.5, 4), (-1.0, 3), (0.0, 1)])
def test_the_published_form_makes_one_mean_of_every_m_survivors(draw, k, m):
    importance = importance_of(150)
    survivors = int((importance > importance.mean(dtype=np.float64) + k * importance.std(dtype=np.float64)).sum())
    method = PruneThenMerge(threshold_k=k, merge_factor=m, prompt="drop")
    assert method.compress(page_of(draw(150), importance)).k == max(1, survivors // m)
    assert pf.compressor(**method.config()) == method


def test_pruning_never_leaves_fewer_than_the_budget(draw):
    """At k = 3 a handful survives: a budget of 60 takes the 60 most important as they are."""
    importance = importance_of(200)
    page = page_of(draw(200), importance)
    facets = PruneThenMerge(budget=60, threshold_k=3.0).compress(page)
    expected = np.sort(np.argsort(-importance, kind="stable")[:60])
    np.testing.assert_array_equal((facets.assignment >= 0).nonzero().flatten(), expected)
    np.testing.assert_allclose(facets.vectors, unit(page.vectors)[expected], atol=1e-6)


def test_prompt_rows_are_merged_kept_or_dropped(draw):
    page = page_of(draw(8 + 100), importance_of(100), before=8)
    D = unit(page.vectors)
    kept, dropped, joined = (PruneThenMerge(budget=20, prompt=how).compress(page) for how in ("keep", "drop", "merge"))
    assert kept.k == dropped.k == joined.k == 20
    np.testing.assert_allclose(kept.vectors[12:], D[:8], atol=1e-6)
    assert kept.assignment[:8].tolist() == list(range(12, 20))
    assert (dropped.assignment[:8] == -1).all()
    assert (joined.assignment[:8] >= 0).all()
    assert torch.equal(joined.assignment >= 0, kept.assignment >= 0)
    assert PruneThenMerge(budget=5, prompt="keep").compress(page).k == 1 + 8


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 50),
    prompt=st.integers(0, 6),
    budget=st.integers(1, 60),
    k=st.floats(-2.0, 2.0),
    stats=st.sampled_from(["plain", "iqr_clip"]),
)
def test_the_budget_is_met_whatever_the_threshold(seed, n, prompt, budget, k, stats):
    rows = np.random.default_rng(seed).standard_normal((n + prompt, 8))
    page = page_of(rows, importance_of(n, seed), before=prompt)
    for how in ("merge", "drop", "keep"):
        facets = PruneThenMerge(budget=budget, threshold_k=k, stats=stats, prompt=how).compress(page)
        room = {"merge": n + prompt, "drop": n, "keep": n + prompt}[how]
        least = 1 + prompt if how == "keep" else 1
        assert facets.k == (n + prompt if budget >= n + prompt else max(least, min(budget, room)))
        assert sorted(set(facets.assignment[facets.assignment >= 0].tolist())) == list(range(facets.k))


def test_what_cannot_work_is_refused(draw):
    with pytest.raises(pf.InputError, match="prune-then-merge needs the importance of each patch"):
        PruneThenMerge(ratio=0.1).compress(draw(20))
    with pytest.raises(pf.InputError, match=r"exactly one of ratio= .* and merge_factor="):
        PruneThenMerge(ratio=0.1, merge_factor=2)
    with pytest.raises(pf.InputError, match="threshold_k must be a finite number"):
        PruneThenMerge(ratio=0.1, threshold_k=float("inf"))
    with pytest.raises(pf.InputError, match="merge_factor must be a whole number, at least 1"):
        PruneThenMerge(merge_factor=0)
