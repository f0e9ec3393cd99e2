"""DocPruner against its formula, written out."""

import numpy as np
import pytest
import torch

import pagefacets as pf
from pagefacets.facets.baselines.docpruner import DocPruner


def page_of(importance, draw, *, before=0, after=0, id=None, mask=True):
    """Patches of this importance between prompt rows."""
    n = len(importance)
    weights = np.concatenate([np.full(before, np.nan), importance, np.full(after, np.nan)])
    return pf.PageVectors(
        draw(before + n + after, 16),
        image_mask=np.isfinite(weights) if mask else None,
        importance=weights,
        id=id,
    )


def with_sink(n, seed=0):
    """Importance as attention gives it: many small weights, and one row that takes nearly all."""
    weights = np.random.default_rng(seed).exponential(1e-4, n)
    weights[n // 3] = 0.9
    return weights


@pytest.mark.parametrize("mask", [True, False])
def test_a_ratio_keeps_the_most_important_patches_and_the_prompt_on_top(draw, mask):
    importance = np.random.default_rng(1).exponential(size=732)
    page = page_of(importance, draw, before=4, after=7, mask=mask)
    facets = DocPruner(ratio=0.1).compress(page)
    chosen = np.sort(np.argsort(-importance, kind="stable")[:74]) + 4
    expected = np.concatenate([np.arange(4), chosen, np.arange(736, 743)])
    kept = facets.assignment >= 0
    np.testing.assert_array_equal(kept.nonzero().flatten(), expected)
    assert facets.assignment[kept].tolist() == list(range(85))
    rows = torch.nn.functional.normalize(page.vectors, dim=1)
    assert torch.equal(facets.vectors, rows[expected])
    bare = DocPruner(ratio=0.1, keep_prompt=False).compress(page)
    np.testing.assert_array_equal((bare.assignment >= 0).nonzero().flatten(), chosen)


def test_counts_of_the_published_index_size(draw):
    """At r = 0.01 the 11 prompt rows outnumber the patches, and the ratio counts patches only."""
    page = page_of(np.arange(1.0, 733.0), draw, before=4, after=7)
    assert DocPruner(ratio=0.01).compress(page).k == 8 + 11
    assert DocPruner(budget=5).compress(page).k == 5 + 11
    assert DocPruner(budget=5, keep_prompt=False).compress(page).k == 5


def test_equal_importance_keeps_the_lower_index(draw):
    facets = DocPruner(budget=3).compress(page_of(np.array([1.0, 2.0, 1.0, 1.0, 2.0, 1.0]), draw))
    assert facets.assignment.tolist() == [0, 1, -1, -1, 2, -1]


@pytest.mark.parametrize("k", [-0.5, -0.25, 0.0, 0.25, 1.0])
@pytest.mark.parametrize("stats", ["plain", "iqr_clip"])
def test_the_threshold_is_mean_plus_k_deviations(draw, stats, k):
    importance = np.random.default_rng(2).gamma(2.0, size=300).astype(np.float32)
    counted = importance.astype(np.float64)
    if stats == "iqr_clip":
        q1, q3 = np.quantile(counted, [0.25, 0.75])
        counted = np.minimum(counted, q3 + 3 * (q3 - q1))
    expected = importance > counted.mean() + k * counted.std()
    facets = DocPruner(threshold_k=k, stats=stats).compress(page_of(importance, draw))
    np.testing.assert_array_equal(facets.assignment >= 0, expected)


def test_the_threshold_is_strict_and_never_leaves_nothing(draw):
    """Of 0, 0, 1, 1 mean and deviation are 1/2: at k = 1 nothing lies above, and the first largest stays alone."""
    page = page_of(np.array([0.0, 0.0, 1.0, 1.0]), draw)
    assert DocPruner(threshold_k=1.0).compress(page).assignment.tolist() == [-1, -1, 0, -1]
    assert DocPruner(threshold_k=0.99).compress(page).assignment.tolist() == [-1, -1, 0, 1]
    assert DocPruner(threshold_k=-0.5).compress(page_of(np.full(5, 0.1), draw)).k == 1


def test_an_attention_sink_defeats_the_plain_threshold_and_says_so(draw):
    page = page_of(with_sink(400), draw, id="sunk")
    with pytest.warns(UserWarning, match=r"prunes no patch of page 'sunk': .*iqr_clip"):
        assert DocPruner(threshold_k=-0.25).compress(page).k == 400
    assert 100 < DocPruner(threshold_k=-0.25, stats="iqr_clip").compress(page).k < 300


def deviations(importance, stats):
    counted = importance = importance.astype(np.float32).astype(np.float64)
    if stats == "iqr_clip":
        q1, q3 = np.quantile(counted, [0.25, 0.75])
        counted = np.minimum(counted, q3 + 3 * (q3 - q1))
    return (importance - counted.mean()) / counted.std()


@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("stats", ["plain", "iqr_clip"])
def test_calibration_finds_the_largest_threshold_that_keeps_the_share(draw, stats, ratio):
    rng = np.random.default_rng(3)
    weights = [rng.gamma(shape, size=n) for shape, n in ((2.0, 200), (4.0, 90), (8.0, 301))]
    pages = [page_of(importance, draw, before=2) for importance in weights]
    pruner = DocPruner.calibrated(iter(pages), ratio, stats=stats, keep_prompt=False)
    share = np.mean([pruner.compress(page).k / (page.n - 2) for page in pages])
    z = [deviations(importance, stats) for importance in weights]
    assert share == pytest.approx(np.mean([(one > pruner.threshold_k).mean() for one in z]))
    assert share >= ratio
    next_to_go = min(one[one > pruner.threshold_k].min() for one in z)
    assert np.mean([(one > next_to_go + 1e-9).mean() for one in z]) < ratio


def test_calibration_to_everything_and_to_next_to_nothing(draw):
    importance = np.random.default_rng(3).gamma(2.0, size=50)
    pages = [page_of(importance, draw), page_of(np.full(40, 0.5), draw)]
    everything = DocPruner.calibrated(pages[:1], 1.0)
    with pytest.warns(UserWarning, match="prunes no patch of a page"):
        assert everything.compress(pages[0]).k == 50
    assert DocPruner.calibrated(pages, 1e-6).compress(pages[0]).k == 1
    assert DocPruner.calibrated(pages[1:], 0.5).compress(pages[1]).k == 1


def test_calibrated_pages_differ_in_what_they_keep(draw):
    """The point of one threshold for all: a page with a few outstanding patches keeps fewer of them."""
    flat = page_of(np.random.default_rng(4).uniform(size=300), draw)
    peaked = page_of(np.random.default_rng(5).exponential(size=300) ** 3, draw)
    pruner = DocPruner.calibrated([flat, peaked], 0.2)
    assert pruner.compress(peaked).k < pruner.compress(flat).k


def test_what_is_missing_is_named(draw):
    bare = pf.PageVectors(draw(9, 16), id="scan")
    with pytest.raises(
        pf.InputError,
        match=r"needs the importance of each patch, which page 'scan' lacks: .*PageVectors\(vectors, importance=",
    ):
        DocPruner(ratio=0.5).compress(bare)
    gap = pf.PageVectors(draw(3, 16), image_mask=[False, True, True], importance=[np.nan, 1.0, np.nan])
    with pytest.raises(pf.InputError, match="not finite at patch row 2"):
        DocPruner(ratio=0.5).compress(gap)
    blank = pf.PageVectors(draw(3, 16), image_mask=[False] * 3, importance=[1.0] * 3)
    with pytest.raises(pf.InputError, match="finds no patches on the page"):
        DocPruner(ratio=0.5).compress(blank)
    with pytest.raises(pf.InputError, match="at least one page"):
        DocPruner.calibrated([], 0.5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "exactly one of ratio= .* and threshold_k="),
        ({"ratio": 0.1, "threshold_k": 0.0}, "exactly one of"),
        ({"ratio": 0.1, "stats": "iqr_clip"}, "no effect without a threshold"),
        ({"threshold_k": float("nan")}, "threshold_k must be a finite number"),
    ],
)
def test_options_that_cannot_work_are_refused(options, sentence):
    with pytest.raises(pf.InputError, match=sentence):
        DocPruner(**options)


def test_a_threshold_serialises():
    pruner = DocPruner(threshold_k=-0.25, stats="iqr_clip")
    assert pf.compressor(**pruner.config()) == pruner
