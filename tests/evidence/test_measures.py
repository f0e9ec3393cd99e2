"""Measures against pytrec_eval itself and by hand; intervals and tests against SciPy."""

import math

import numpy as np
import pytest
import pytrec_eval
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pagefacets.errors import InputError
from pagefacets.evidence.measures import Measure, evaluate, judged, measures_of, ranked, values_of
from pagefacets.evidence.significance import intervals, macro, paired, resampled

NAMES = ("ndcg@1", "ndcg@5", "ndcg@10", "recall@5", "recall@20", "mrr")
TREC = ("ndcg_cut_1", "ndcg_cut_5", "ndcg_cut_10", "recall_5", "recall_20", "recip_rank")


def test_a_thousand_random_runs_with_ties_score_as_pytrec_eval_scores_them():
    """The whole run goes to the oracle; scores are few different numbers, so that most pages tie."""
    rng = np.random.default_rng(0)
    for _ in range(1000):
        pages = int(rng.integers(1, 40))
        ids = [f"{word}{i}" for i, word in enumerate(rng.choice(["p", "P", "", "é", "page-"], pages))]
        scores = torch.tensor(rng.integers(0, rng.integers(1, 8), (2, pages)) / 3, dtype=torch.float32)
        qrels = {
            query: {ids[i]: int(rng.integers(0, 4)) for i in rng.permutation(pages)[: rng.integers(1, 9)]}
            for query in ("a", "b")
        }
        qrels["b"]["page that is not there"] = int(rng.integers(0, 3))
        whole = {q: dict(zip(ids, row.tolist(), strict=True)) for q, row in zip("ab", scores, strict=True)}
        expected = pytrec_eval.RelevanceEvaluator(qrels, set(TREC)).evaluate(whole)
        found = values_of(scores, ["a", "b"], ids, qrels, measures_of(NAMES))
        for name, theirs in zip(NAMES, TREC, strict=True):
            assert found[name].tolist() == [expected["a"][theirs], expected["b"][theirs]], (name, scores, qrels)


def test_equal_scores_rank_by_descending_id_and_gains_are_the_relevance():
    """Ranks: z, then b and a tied (b first), then c: gains 0, 1, 3, 0; ideal 3, 1."""
    scores = torch.tensor([[1.0, 1.0, 0.5, 2.0]])
    found = values_of(
        scores, ["q"], ["a", "b", "c", "z"], {"q": {"a": 3, "b": 1}}, measures_of("ndcg@3,ndcg@2,recall@2,mrr,mrr@1")
    )
    ideal = 3 + 1 / math.log2(3)
    assert found["ndcg@3"][0] == pytest.approx((1 / math.log2(3) + 3 / 2) / ideal)
    assert found["ndcg@2"][0] == pytest.approx(1 / math.log2(3) / ideal)
    assert found["recall@2"][0] == 0.5
    assert found["mrr"][0] == 0.5
    assert found["mrr@1"][0] == 0.0


def test_recall_divides_by_all_relevant_pages_however_many():
    scores = torch.arange(20.0)[None]
    ids = [f"{i:02}" for i in range(20)]
    found = values_of(scores, ["q"], ids, {"q": {f"{i:02}": 1 for i in range(8, 20)}}, measures_of("recall@5,ndcg@5"))
    assert found["recall@5"][0] == 5 / 12
    assert found["ndcg@5"][0] == 1


def test_scores_that_differ_by_less_than_float32_tells_are_tied():
    run = ranked(torch.tensor([[1.0, 1.0 + 1e-9]], dtype=torch.float64), ["q"], ["z", "a"], depth=1)
    assert list(run["q"]) == ["z"]


def test_a_page_below_the_depth_is_not_found():
    scores = -torch.arange(1200.0)[None]
    ids = [f"{i:04}" for i in range(1200)]
    found = values_of(scores.repeat(2, 1), ["a", "b"], ids, {"a": {"0999": 1}, "b": {"1000": 1}}, measures_of("mrr"))
    assert found["mrr"].tolist() == [1 / 1000, 0]
    deep = values_of(scores, ["b"], ids, {"b": {"1000": 1}}, measures_of("recall@1100"))
    assert deep["recall@1100"][0] == 1


def test_queries_without_judgement_are_left_out_and_those_judged_zero_count():
    qrels = {"none": {}, "zero": {"p": 0}, "one": {"p": 1}}
    assert judged(["none", "zero", "one", "unknown"], qrels) == [1, 2]
    run = {query: {"p": 1.0} for query in ("none", "zero", "one", "unknown")}
    assert evaluate(run, qrels, measures_of("ndcg@5")) == {"ndcg@5": {"zero": 0.0, "one": 1.0}}
    with pytest.raises(InputError, match="query 'none' has no judgement"):
        values_of(torch.ones(1, 1), ["none"], ["p"], qrels, measures_of("mrr"))


@pytest.mark.slow
def test_mteb_filters_queries_the_same_way():
    """Its own function on the same qrels: what has no judgement goes, what is judged 0 stays."""
    datasets = pytest.importorskip("datasets")
    from mteb.abstasks.retrieval import _filter_queries_without_positives

    qrels = {"none": {}, "zero": {"p": 0}, "one": {"p": 1}}
    queries = datasets.Dataset.from_dict({"id": ["none", "zero", "one", "unknown"]})
    _, kept = _filter_queries_without_positives(qrels, queries)
    assert [queries["id"][i] for i in judged(queries["id"], qrels)] == list(kept["id"])


@pytest.mark.parametrize("name", ["ndcg", "ndcg@0", "ndcg@-1", "map@5", "recall", "", "ndcg@5.5"])
def test_an_unknown_measure_is_named(name):
    with pytest.raises(InputError, match="there is no measure"):
        Measure.of(name)


def test_measures_have_names_that_lead_back_to_them():
    assert [str(one) for one in measures_of(" nDCG@5, mrr,ndcg@5 ,MRR@10")] == ["ndcg@5", "mrr", "mrr@10"]
    assert [one.title for one in measures_of("ndcg@5,recall@10,mrr")] == ["nDCG@5", "Recall@10", "MRR"]


def test_scores_of_another_shape_and_nan_are_refused():
    with pytest.raises(InputError, match=r"shape \(1, 2\), one row per query"):
        ranked(torch.zeros(2, 2), ["q"], ["a", "b"])
    with pytest.raises(InputError, match="page 'b' scores NaN for query 'q'"):
        ranked(torch.tensor([[0.0, math.nan]]), ["q"], ["a", "b"])


def test_an_interval_is_that_of_scipys_percentile_bootstrap():
    values = np.random.default_rng(1).beta(5, 2, 200)
    (found,) = intervals([values[None]], resamples=20_000)
    low, high = scipy.stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert found.mean == values.mean()
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.002)


def test_the_average_of_data_sets_counts_each_once_and_draws_within_each():
    rng = np.random.default_rng(3)
    small, large = rng.random(10), rng.random(1000)
    assert macro([small, large]) == pytest.approx((small.mean() + large.mean()) / 2)
    (found,) = intervals([small[None], large[None]])
    assert found.mean == pytest.approx((small.mean() + large.mean()) / 2)
    spread = resampled([small[None], large[None]]).std()
    assert spread == pytest.approx(math.sqrt(small.var() / 10 + large.var() / 1000) / 2, rel=0.05)


@given(arrays.arrays(np.float64, st.integers(2, 30), elements=st.floats(0, 1)), st.floats(-2, 2))
def test_an_interval_moves_with_the_values_and_holds_their_mean(values, shift):
    (found,) = intervals([values[None]], resamples=400)
    (moved,) = intervals([values[None] + shift], resamples=400)
    assert (moved.low, moved.high) == pytest.approx((found.low + shift, found.high + shift), abs=1e-9)
    assert values.min() - 1e-12 <= found.low <= found.high <= values.max() + 1e-12


def test_series_share_their_draws_so_a_difference_is_tighter_than_its_parts():
    rng = np.random.default_rng(4)
    ours = rng.random(60)
    theirs = ours - 0.05 + 0.01 * rng.standard_normal(60)
    found = paired([ours], [theirs])
    drawn = resampled([np.stack([ours, theirs])])
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn[0] - drawn[1], [0.025, 0.975])))
    (alone,) = intervals([ours[None]])
    assert found.low > 0
    assert found.high - found.low < (alone.high - alone.low) / 5


@pytest.mark.parametrize("queries", [4, 9, 40])
def test_p_is_that_of_scipys_permutation_test(queries):
    rng = np.random.default_rng(queries)
    ours, theirs = rng.random(queries) + 0.1, rng.random(queries)
    expected = scipy.stats.permutation_test(
        (ours, theirs),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        n_resamples=20_000,
        rng=np.random.default_rng(0),
    ).pvalue
    assert paired([ours], [theirs]).p == pytest.approx(expected, abs=1e-12 if queries < 10 else 0.012)


def test_a_method_against_itself_and_the_other_way_round():
    rng = np.random.default_rng(6)
    ours, theirs = [rng.random(30), rng.random(7)], [rng.random(30), rng.random(7)]
    same = paired(ours, ours)
    assert (same.difference, same.low, same.high, same.p, same.queries) == (0, 0, 0, 1, 37)
    there, back = paired(ours, theirs), paired(theirs, ours)
    assert there.difference == pytest.approx(-back.difference)
    assert there.p == back.p
    assert there == paired(ours, theirs)
    assert there.difference == pytest.approx(macro(ours) - macro(theirs))


def test_different_queries_cannot_be_paired_and_none_cannot_be_averaged():
    with pytest.raises(InputError, match="different queries"):
        paired([np.zeros(3)], [np.zeros(4)])
    with pytest.raises(InputError, match="no query to average over"):
        macro([np.zeros(3), np.zeros(0)])
    with pytest.raises(InputError, match=r"level must lie in \(0, 1\)"):
        intervals([np.zeros((1, 3))], level=95)
