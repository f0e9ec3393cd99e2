"""Spherical k-means: what Lloyd's iteration guarantees, and what its starts are meant to be."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pagefacets as pf
from pagefacets.facets.baselines.kmeans import lloyd, starting_rows

INITS = ["kmeans++", "fps", "random"]


def unit(rows):
    return torch.nn.functional.normalize(torch.as_tensor(np.asarray(rows), dtype=torch.float32), dim=1)


def gained(D, C, assignment):
    return float((D.double() * C.double()[assignment]).sum())


@given(seed=st.integers(0, 10**6), n=st.integers(6, 80), k=st.integers(2, 5), copies=st.integers(1, 4))
def test_summed_similarity_never_decreases(seed, n, k, copies):
    """Nor where empty clusters are filled: of a repeated centroid's clusters all but one start empty."""
    rng = np.random.default_rng(seed)
    D = unit(rng.standard_normal((n, 6)))
    start = D[rng.integers(0, n, k)].repeat_interleave(copies, 0)[: n - 1]
    previous = float((D @ start.T).max(1).values.double().sum())
    for iterations in range(1, 12):
        C, assignment = lloyd(D, start, iterations)
        assert torch.bincount(assignment, minlength=len(C)).min() > 0
        torch.testing.assert_close(C.norm(dim=1), torch.ones(len(C)), atol=1e-5, rtol=0)
        similarity = gained(D, C, assignment)
        assert similarity >= previous - 1e-5 * n
        previous = similarity


@pytest.mark.parametrize("init", INITS)
def test_facets_are_the_normalised_means_of_their_rows(init, draw):
    D = unit(draw(300))
    facets = pf.compressor("kmeans", budget=30, init=init).compress(D)
    for k in range(facets.k):
        mean = D[facets.members(k)].double().sum(0)
        torch.testing.assert_close(facets.vectors[k].double(), mean / mean.norm(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("init", INITS)
def test_long_runs_end_where_every_row_is_with_its_nearest_facet(init, draw):
    D = unit(draw(300))
    facets = pf.compressor("kmeans", budget=12, init=init, iterations=200).compress(D)
    assert torch.equal((D @ facets.vectors.T).argmax(1), facets.assignment)
    longer = pf.compressor("kmeans", budget=12, init=init, iterations=300).compress(D)
    assert torch.equal(longer.vectors, facets.vectors)


@pytest.mark.parametrize(("init", "seed"), [("fps", 0), *(("kmeans++", seed) for seed in range(5))])
def test_finds_every_direction_of_copies(init, seed):
    """Rows that are copies of K directions, one of them rare, leave no other choice to a start by distance."""
    D = torch.eye(8)[[0] * 40 + [1] * 5 + [2] + [3] * 14]
    facets = pf.compressor("kmeans", budget=4, init=init, seed=seed).compress(D)
    torch.testing.assert_close((facets.vectors @ torch.eye(8)[:4].T).max(0).values, torch.ones(4))


def test_a_rare_direction_beats_a_random_start():
    """A random start misses the rare rows; a start by distance does not."""
    D = unit(
        np.concatenate([np.eye(16)[[0] * 200], np.eye(16)[1:5]]) + 0.01 * np.random.default_rng(0).random((204, 16))
    )
    worst = {}
    for init in INITS:
        facets = pf.compressor("kmeans", budget=5, init=init, iterations=1).compress(D)
        worst[init] = float((D @ facets.vectors.T).max(1).values.min())
    assert worst["kmeans++"] > 0.99
    assert worst["fps"] > 0.99
    assert worst["random"] < 0.8


def test_starts_are_drawn_in_proportion_to_their_distance():
    """From row 0 the second start falls on row j with probability (1 − cos) / Σ (1 − cos)."""
    D = unit([[1, 0], [1, 0], [0.8, 0.6], [0, 1], [-1, 0]])
    second = [starting_rows(D, 2, "kmeans++", seed).tolist() for seed in range(6000)]
    after_first = [b for a, b in second if a == 0]
    shares = np.bincount(after_first, minlength=5) / len(after_first)
    np.testing.assert_allclose(shares, np.array([0, 0, 0.2, 1, 2]) / 3.2, atol=0.05)
    assert len(after_first) / len(second) == pytest.approx(1 / 5, abs=0.02)


@pytest.mark.parametrize("init", INITS)
def test_starts_are_distinct_and_nested(init):
    D = torch.eye(6)[[0, 0, 1, 1, 2, 2, 2, 0]]
    starts = starting_rows(D, 8, init, 3).tolist()
    assert sorted(starts) == list(range(8))
    assert starting_rows(D, 5, init, 3).tolist() == starts[:5]


def test_the_seed_decides(draw):
    D = draw(120)
    first, again, other = (
        pf.compressor("kmeans", budget=12, init="kmeans++", seed=seed).compress(D) for seed in (1, 1, 2)
    )
    assert torch.equal(first.vectors, again.vectors)
    assert not torch.equal(first.vectors, other.vectors)


def test_rows_that_cancel_out_keep_the_centroid():
    row = torch.eye(4)[:1]
    facets = pf.compressor("kmeans", budget=1).compress(torch.cat([row, -row]))
    assert facets.vectors.abs().tolist() == row.tolist()


def test_real_pages_are_covered_better_than_by_windows(realdata):
    pages = pf.open_vectors(realdata / "visual-pages" / "colqwen2.npz")
    for number in (0, 60, 120):
        D = unit(pages[number].vectors.float())
        covered = {
            name: float((D @ pf.compressor(name, ratio=0.05).compress(D).vectors.T).max(1).values.mean())
            for name in ("kmeans", "pool1d")
        }
        assert covered["kmeans"] > covered["pool1d"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"iterations": 0}, "iterations must be a whole number, at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number, at least 0, got -1"),
        ({"seed": 1}, "farthest-first draws nothing"),
    ],
)
def test_options_that_cannot_work_are_refused(options, sentence):
    with pytest.raises(pf.InputError, match=sentence):
        pf.compressor("kmeans", ratio=0.1, **options)
