"""Ward's merging against SciPy on the published formulas, and against merging by hand."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

import pagefacets as pf
from pagefacets.facets.baselines.ward import ward_labels, ward_linkage

RATIOS = (0.5, 0.1, 0.01)


def unit(rows):
    rows = np.asarray(rows, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def published(D, variant):
    """What the libraries of each variant hand to SciPy, in their float32."""
    cosine_distance = 1 - D @ D.T
    if variant == "condensed":
        np.fill_diagonal(cosine_distance, 0)
        return linkage(squareform(np.clip(cosine_distance, 0, 2), checks=False), method="ward")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return linkage(cosine_distance if variant == "colpali" else D, method="ward")


def clusters(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def assert_same_cuts(rows, variant):
    D = unit(rows)
    ours, theirs = ward_linkage(torch.from_numpy(D), variant), published(D, variant)
    for ratio in RATIOS:
        K = max(1, int(ratio * len(D)))
        labels = ward_labels(ours, K)
        assert clusters(labels.numpy()) == clusters(fcluster(theirs, K, "maxclust"))
        assert sorted(set(labels.tolist())) == list(range(int(labels.max()) + 1))


@pytest.mark.parametrize("variant", ["euclidean", "colpali", "condensed"])
@pytest.mark.parametrize("n", [2, 3, 40, 127, 128, 129, 300, 743])
def test_cuts_as_scipy_cuts_the_published_formula(variant, n, draw):
    assert_same_cuts(draw(n, seed=n), variant)


def test_cuts_real_pages_as_scipy_does(realdata):
    for name, numbers in (("colqwen2", (0, 70, 139)), ("colpali", (3, 20))):
        pages = pf.open_vectors(realdata / "visual-pages" / f"{name}.npz")
        for number in numbers:
            assert_same_cuts(pages[number].vectors.float().numpy(), "colpali")


def merged_by_hand(D, K):
    """Merge the two clusters whose union adds least to the summed squared distance to the mean, until K are left."""
    groups = [[j] for j in range(len(D))]

    def spread(group):
        return ((D[group] - D[group].mean(0)) ** 2).sum()

    while len(groups) > K:
        _, a, b = min(
            (spread(groups[a] + groups[b]) - spread(groups[a]) - spread(groups[b]), a, b)
            for a in range(len(groups))
            for b in range(a)
        )
        groups[b] += groups.pop(a)
    return {frozenset(group) for group in groups}


@pytest.mark.parametrize("seed", range(3))
def test_euclidean_merges_what_adds_least_variance(seed, draw):
    D = unit(draw(24, 8, clusters=4, seed=seed)).astype(np.float64)
    tree = ward_linkage(torch.from_numpy(D).float(), "euclidean")
    for K in (12, 5, 2):
        assert clusters(ward_labels(tree, K).numpy()) == merged_by_hand(D, K)


def test_colpali_merges_the_rows_of_the_distance_matrix(draw):
    D = unit(draw(20, 8, clusters=4, seed=1)).astype(np.float64)
    tree = ward_linkage(torch.from_numpy(D).float(), "colpali")
    for K in (10, 4, 2):
        assert clusters(ward_labels(tree, K).numpy()) == merged_by_hand(1 - D @ D.T, K)


def test_light_colpali_is_the_published_pooling(draw):
    """The loop of the published pooler: normalised means of the clusters, in the order of their numbers."""
    rows = draw(245, seed=3)
    D = unit(rows)
    for factor in (2, 4, 10, 20, 40, 100):
        K = max(len(D) // factor, 1)
        numbers = fcluster(published(D, "colpali"), K, "maxclust")
        means = np.stack([D[numbers == number].mean(0) for number in range(1, numbers.max() + 1)])
        facets = pf.compressor("light-colpali", ratio=1 / factor).compress(rows)
        assert facets.k == K
        np.testing.assert_array_equal(facets.assignment, numbers - 1)
        np.testing.assert_allclose(facets.vectors, unit(means), atol=1e-6)
        by_variant = pf.compressor("ward", variant="colpali", ratio=1 / factor, rounding="floor").compress(rows)
        assert torch.equal(by_variant.vectors, facets.vectors)


def test_smaller_budgets_merge_the_clusters_of_larger_ones(draw):
    fine, coarse = pf.compressor("ward", ratio=0.5).compress_ratios(draw(200), [0.3, 0.05])
    for k in range(fine.k):
        assert len(set(coarse.assignment[fine.members(k)].tolist())) == 1


@given(n=st.integers(3, 30), k=st.integers(2, 12), protected=st.integers(1, 15), seed=st.integers(0, 10**6))
def test_protected_rows_stand_for_themselves_within_the_budget(n, k, protected, seed):
    D = unit(np.random.default_rng(seed).standard_normal((n, 8)))
    if k >= n:
        return
    facets = pf.compressor("ward", budget=k, protected=protected).compress(D)
    head = min(protected, k - 1)
    assert facets.k == k
    np.testing.assert_allclose(facets.vectors[:head], D[:head], atol=1e-6)
    assert facets.assignment[:head].tolist() == list(range(head))
    assert facets.assignment[head:].min() == head
    rest = pf.compressor("ward", budget=k - head).compress(D[head:])
    np.testing.assert_allclose(facets.vectors[head:], rest.vectors, atol=1e-6)


def test_plain_means_are_shorter_than_one(draw):
    rows = draw(60)
    D = unit(rows)
    facets = pf.compressor("ward", budget=5, normalize=False).compress(rows)
    for k in range(5):
        np.testing.assert_allclose(facets.vectors[k], D[facets.members(k)].mean(0), atol=1e-6)
    assert facets.vectors.norm(dim=1).max() < 0.95


@pytest.mark.parametrize("method", ["ward", "light-colpali"])
def test_copies_are_never_stored_twice(method):
    facets = pf.compressor(method, budget=6).compress(np.eye(8, dtype=np.float32)[[0] * 9 + [1] * 4 + [2]])
    assert facets.k == 3
    assert facets.assignment[:9].unique().numel() == 1


def test_rows_that_cancel_out_leave_the_first(draw):
    row = np.eye(4, dtype=np.float32)[:1]
    facets = pf.compressor("ward", budget=1).compress(np.concatenate([row, -row]))
    np.testing.assert_array_equal(facets.vectors, row)


def test_options_that_cannot_work_are_refused():
    with pytest.raises(pf.InputError, match="protected must be a whole number, at least 0, got -1"):
        pf.compressor("ward", ratio=0.1, protected=-1)


def test_the_other_forms_of_light_colpali_have_names(draw):
    """PyLate's and the textbook's form under the same name, with the same count, and one protected row as PyLate's."""
    D = draw(97)
    for variant in ("condensed", "euclidean"):
        light = pf.compressor("light-colpali", ratio=0.1, variant=variant, protected=1).compress(D)
        ward = pf.compressor("ward", budget=9, variant=variant, protected=1).compress(D)
        assert light.k == 9
        assert torch.equal(light.vectors, ward.vectors)
        assert light.members(0).tolist() == [0]
