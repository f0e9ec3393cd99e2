"""Farthest-first selection: each step against a plain float64 loop."""

import numpy as np
import pytest
import torch

from pagefacets.data import unit_rows
from pagefacets.farthest import farthest_first, medoid, score_biased_first


def rows_and_scores(n, p=24, seed=0):
    rng = np.random.default_rng(seed)
    rows, _ = unit_rows(torch.from_numpy(rng.standard_normal((n, p)).astype(np.float32)))
    return rows, torch.from_numpy(rng.random(n).astype(np.float32))


@pytest.mark.parametrize(("n", "count", "seed"), [(300, 60, 0), (300, 299, 1), (20_000, 400, 2), (20_000, 400, 3)])
def test_every_step_attains_the_largest_score_times_distance(n, count, seed):
    """With more rows than the short list holds, and with fewer."""
    rows, scores = rows_and_scores(n, seed=seed)
    if seed == 3:
        scores = 1.0 + 0.01 * scores
    chosen, unscored = score_biased_first(rows, scores, count)
    X, s = rows.double().numpy(), scores.double().numpy()
    assert unscored == 0
    assert int(chosen[0]) == int(s.argmax())
    distance = np.full(n, 2.0)
    for before, index in zip(chosen[:-1].tolist(), chosen[1:].tolist(), strict=True):
        distance = np.minimum(distance, 1.0 - X @ X[before])
        distance[before] = -1.0
        gain = s * distance
        assert gain[index] >= gain.max() - 1e-6
    assert len(set(chosen.tolist())) == count


def test_equal_scores_give_plain_farthest_first():
    rows, _ = rows_and_scores(200)
    chosen, unscored = score_biased_first(rows, torch.ones(200), 40)
    assert unscored == 0
    assert torch.equal(chosen, farthest_first(rows, 40, torch.tensor(0)))


def test_no_row_is_chosen_twice_and_fewer_rows_are_a_prefix():
    rows, scores = rows_and_scores(150)
    everything, _ = score_biased_first(rows, scores, 150)
    assert sorted(everything.tolist()) == list(range(150))
    assert torch.equal(score_biased_first(rows, scores, 50)[0], everything[:50])


def test_rows_without_a_score_come_last_and_by_distance():
    rows, scores = rows_and_scores(120)
    scores[20:] = 0.0
    chosen, unscored = score_biased_first(rows, scores, 60)
    assert set(chosen[:20].tolist()) == set(range(20))
    assert unscored == 40
    X = rows.double().numpy()
    for step in range(20, 60):
        before = chosen[:step].numpy()
        distance = (1.0 - X @ X[before].T).min(1)
        distance[before] = -1.0
        assert distance[int(chosen[step])] >= distance.max() - 1e-6


def test_a_copy_of_a_chosen_row_is_at_distance_zero():
    rows, scores = rows_and_scores(40, p=128)
    doubled = torch.cat([rows, rows])
    chosen, unscored = score_biased_first(doubled, torch.cat([scores, scores]) + 0.1, 80)
    assert {index % 40 for index in chosen[:40].tolist()} == set(range(40))
    assert unscored == 40
    assert sorted(chosen.tolist()) == list(range(80))


def test_the_medoid_is_the_row_most_similar_to_the_mean():
    rows, _ = rows_and_scores(90)
    X = rows.double().numpy()
    assert int(medoid(rows)) == int((X @ X.mean(0)).argmax())
