"""Searching an index: the score as it is defined, over facets as they are stored, in trec_eval's order."""

import numpy as np
import pytest
import pytrec_eval
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.answers.search import largest, search
from pagefacets.errors import InputError
from pagefacets.index.quantize import codec
from pagefacets.index.reader import Reader
from pagefacets.index.writer import Writer
from pagefacets.interaction import maxsim_reference
from tests.index.entries import build, entry, manifest, units


def query(tokens, dim=16, seed=0):
    return units(tokens, dim, np.random.default_rng(seed))


def scores_of(one, entries, dtype):
    """The definition, in float64, over what a codec makes of each page's facets."""
    made, totals = codec(dtype, one.shape[1]), {}
    for page in entries:
        rows = made.decode(made.encode(page.facets.vectors)).double()
        best = (one.double() @ rows.T).amax(1) + (page.facets.offset or 0.0)
        totals[page.id] = float(best.sum())
    return totals


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, None, -0.5, 0.125])), min_size=1, max_size=25),
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.sampled_from(["float32", "float16", "int8", "binary"]),
    st.integers(1, 30),
    st.integers(0, 10_000),
)
def test_scores_and_order_are_the_definitions(tmp_path_factory, pages, tokens, dtype, k, seed):
    entries = [entry(f"p{i}", seed=seed + i, k=count, n=12, offset=offset) for i, (count, offset) in enumerate(pages)]
    reader = build(tmp_path_factory.mktemp("x") / "x.pf", entries, manifest(dtype=dtype), commits=2)
    queries = [query(count, seed=seed + i) for i, count in enumerate(tokens)]
    for one, found in zip(queries, search(queries, reader, k), strict=True):
        totals = scores_of(one, entries, dtype)
        assert [hit.score for hit in found] == pytest.approx(sorted(totals.values(), reverse=True)[:k], abs=1e-4)
        assert len(found) == min(k, len(entries))
        for hit in found:
            assert totals[hit.page] == pytest.approx(hit.score, abs=1e-4)
            assert reader.listing.ids[hit.place] == hit.page
        assert found == search([one], reader, k)[0]


@pytest.mark.parametrize("threads", [1, 2])
def test_equal_pages_score_the_same_wherever_they_stand_and_the_larger_id_comes_first(tmp_path, threads):
    """Copies of a few pages among many others, so that they fall into other blocks and at other edges of them."""
    generator = np.random.default_rng(0)
    kinds = [units(8, 16, generator) for _ in range(3)]
    names = [f"{i:04d}" for i in generator.permutation(3000)]
    entries = [
        entry(name, seed=i, k=8, n=8, facets=kinds[i % 3] if i % 5 == 0 else None, bare=True)
        for i, name in enumerate(names)
    ]
    reader = build(tmp_path / "x.pf", entries)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (found,) = search([query(32)], reader, 3000)
    finally:
        torch.set_num_threads(before)
    kind = {name: i % 3 for i, name in enumerate(names) if i % 5 == 0}
    for one in range(3):
        copies = [hit for hit in found if kind.get(hit.page) == one]
        assert len(copies) == 200
        assert len({hit.score for hit in copies}) == 1
        assert [hit.page for hit in copies] == sorted((hit.page for hit in copies), reverse=True)
    assert found == sorted(found, key=lambda hit: (hit.score, hit.page), reverse=True)
    for k in (1, 7, 401):
        assert search([query(32)], reader, k)[0] == found[:k]


def test_ranks_are_trec_evals(tmp_path):
    names = ["a", "B", "ab", "10", "9", "2", "é", "z-1", "z-10", "z_1", "\u4e2d"]
    rows = units(1, 16, np.random.default_rng(0))
    entries = [entry(name, seed=0, facets=rows, k=1) for name in names]
    (found,) = search([query(3)], build(tmp_path / "x.pf", entries), 11)
    run = {name: {hit.page: hit.score for hit in found} for name in names}
    judged = pytrec_eval.RelevanceEvaluator({name: {name: 1} for name in names}, {"recip_rank"}).evaluate(run)
    for rank, hit in enumerate(found, start=1):
        assert judged[hit.page]["recip_rank"] == pytest.approx(1 / rank)


@given(st.lists(st.sampled_from([0.0, 1.5, -2.0, 3.25]), min_size=1, max_size=30), st.integers(1, 35), st.data())
def test_the_largest_are_the_first_of_a_sort(scores, k, data):
    ids = data.draw(st.permutations([f"{i}" for i in range(len(scores))]))
    allowed = data.draw(st.one_of(st.none(), st.sets(st.integers(0, len(scores) - 1)).map(sorted)))
    places = range(len(scores)) if allowed is None else allowed
    expected = sorted(places, key=lambda i: (scores[i], ids[i]), reverse=True)[:k]
    chosen = None if allowed is None else torch.tensor(allowed, dtype=torch.int64)
    assert largest(torch.tensor(scores), ids, k, chosen) == expected


def test_a_filter_ranks_what_it_leaves(tmp_path):
    entries = [entry(f"p{i}", seed=i, source=f"{i % 3}.pdf", number=i) for i in range(30)]
    reader = build(tmp_path / "x.pf", entries)
    with Writer.open(tmp_path / "x.pf") as writer:
        writer.delete(["p3", "p7"])
    reader = Reader(tmp_path / "x.pf")
    (everything,) = search([query(5)], reader, 30)
    (found,) = search([query(5)], reader, 4, condition="source = '0.pdf' AND number > 3")
    wanted = [hit for hit in everything if int(hit.page[1:]) % 3 == 0 and int(hit.page[1:]) > 3]
    assert found == wanted[:4]


def test_rescoring_is_exact_over_the_full_vectors(tmp_path):
    entries = [entry(f"p{i}", seed=i, k=1) for i in range(20)]
    reader = build(tmp_path / "x.pf", entries, manifest(full=True))
    one = query(6)
    exact = dict(
        zip([e.id for e in entries], maxsim_reference(one, [e.vectors for e in entries]).tolist(), strict=True)
    )
    (found,) = search([one], reader, 20, rescore=20)
    assert [hit.page for hit in found] == sorted(exact, key=exact.__getitem__, reverse=True)
    (candidates,) = search([one], reader, 7)
    (found,) = search([one], reader, 3, rescore=7)
    among = sorted((hit.page for hit in candidates), key=exact.__getitem__, reverse=True)
    assert [hit.page for hit in found] == among[:3]


def test_what_cannot_be_searched(tmp_path):
    reader = build(tmp_path / "x.pf", [entry("a", seed=0)])
    with pytest.raises(InputError, match="the query scores NaN: leave out its rows that are not finite"):
        search([torch.full((2, 16), torch.nan)], reader)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        search([query(2)], reader, 0)
    with pytest.raises(InputError, match="query 0 has dimension 8 but the pages have 16"):
        search([query(2, dim=8)], reader)
    assert search([], reader) == []
