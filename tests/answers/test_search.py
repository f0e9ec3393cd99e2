import pytest
import pytrec_eval
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagefacets.answers.search import best, rank
from pagefacets.data import Facets, PageVectors
from pagefacets.errors import InputError
from pagefacets.interaction import PackedPages, maxsim_reference


def collection(count: int, seed: int = 0) -> list[PageVectors]:
    g = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 12, (count,), generator=g).tolist()
    return [PageVectors(torch.randn(n, 16, generator=g), id=f"doc-{i}") for i, n in enumerate(sizes)]


def query(seed: int = 1) -> torch.Tensor:
    return torch.randn(5, 16, generator=torch.Generator().manual_seed(seed))


def test_the_order_is_the_definitions_order() -> None:
    pages = collection(40)
    scores = maxsim_reference(query(), pages)
    hits = rank(query(), pages, k=10)
    assert [hit.page for hit in hits] == [f"doc-{i}" for i in scores.argsort(descending=True)[:10].tolist()]
    assert [hit.rank for hit in hits] == list(range(1, 11))
    assert [hit.score for hit in hits] == pytest.approx(scores.sort(descending=True).values[:10].tolist(), abs=1e-4)


def test_five_hits_unless_asked_otherwise_and_all_when_asked_for_more() -> None:
    pages = collection(8)
    assert len(rank(query(), pages)) == 5
    everything = rank(query(), pages, k=1000)
    assert sorted(hit.page for hit in everything) == sorted(f"doc-{i}" for i in range(8))
    assert rank(query(), pages, k=3) == everything[:3]


def test_equal_scores_put_the_larger_id_first() -> None:
    row = torch.eye(4)[:1]
    pages = [PageVectors(row, id=name) for name in ("a", "B", "ab", "10", "9", "é")]
    assert [hit.page for hit in rank(row, pages, k=6)] == ["é", "ab", "a", "B", "9", "10"]


def test_ranks_are_trec_evals() -> None:
    words = ["a", "B", "ab", "10", "9", "2", "é", "z-1", "z-10", "z_1"]
    scores = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0, 0.5, 2.0, 0.1, 0.1, 0.1])
    pages = [PageVectors(score.view(1, 1), id=word) for word, score in zip(words, scores, strict=True)]
    run = {word: dict(zip(words, scores.tolist(), strict=True)) for word in words}
    judged = pytrec_eval.RelevanceEvaluator({word: {word: 1} for word in words}, {"recip_rank"}).evaluate(run)
    for hit in rank(torch.ones(1, 1), pages, k=10):
        assert judged[hit.page]["recip_rank"] == pytest.approx(1 / hit.rank)


def test_scores_that_differ_by_one_float32_step_are_not_equal() -> None:
    one = torch.tensor([[1.0, 0.0]])
    above = torch.nextafter(one, torch.tensor(2.0))
    hits = rank(one, [PageVectors(above, id="a"), PageVectors(one, id="z")])
    assert [hit.page for hit in hits] == ["a", "z"]


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(12)), st.integers(1, 14))
def test_the_order_of_the_collection_does_not_matter(order: list[int], k: int) -> None:
    pages = [*collection(9), *(PageVectors(page.vectors, id=f"copy of {page.id}") for page in collection(3))]
    assert rank(query(), [pages[i] for i in order], k) == rank(query(), pages, k)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, -0.0, 1.5, -2.0, float("inf")]), st.text(max_size=3)), max_size=20))
def test_best_is_a_sort_by_score_then_id(entries: list[tuple[float, str]]) -> None:
    scores, ids = [score for score, _ in entries], [name for _, name in entries]
    expected = sorted(entries, key=lambda entry: (entry[0], entry[1]), reverse=True)
    for k in (1, 3, 25):
        found = [(scores[i], ids[i]) for i in best(scores, ids, k)]
        assert found == expected[:k]


def test_pages_without_ids_are_called_by_their_position() -> None:
    pages = [page.vectors for page in collection(12)]
    named = rank(query(), collection(12), k=12)
    assert [f"doc-{hit.page}" for hit in rank(query(), pages, k=12)] == [hit.page for hit in named]
    packed = rank(query(), PackedPages.of(pages), k=12)
    assert [f"doc-{hit.page}" for hit in packed] == [hit.page for hit in named]


def test_ids_given_by_the_caller_win() -> None:
    pages = collection(3)
    hits = rank(query(), pages, ids=["x", "y", "z"])
    assert {hit.page for hit in hits} == {"x", "y", "z"}
    assert rank(query(), PackedPages.of(pages), ids=["x", "y", "z"]) == hits


def test_the_offset_of_facets_counts_once_per_query_token() -> None:
    rows = torch.eye(4)
    low = Facets(rows[:1], torch.zeros(3, dtype=torch.int64), id="plain")
    lifted = Facets(rows[1:2], torch.zeros(3, dtype=torch.int64), offset=0.75, id="lifted")
    hits = rank(rows[:1].repeat(2, 1), [low, lifted])
    assert [(hit.page, hit.score) for hit in hits] == [("plain", 2.0), ("lifted", 1.5)]


def test_an_empty_collection_has_no_hits() -> None:
    assert rank(query(), []) == []


@pytest.mark.parametrize("k", [0, -3])
def test_k_must_be_positive(k: int) -> None:
    with pytest.raises(InputError, match=f"k must be at least 1, got {k}"):
        rank(query(), collection(2), k)


def test_two_pages_of_one_name_are_refused() -> None:
    with pytest.raises(InputError, match="two pages are called 'doc-1'"):
        rank(query(), [*collection(3), collection(3)[1]])
    with pytest.raises(InputError, match="two pages are called '1'"):
        rank(query(), [PageVectors(torch.eye(16), id="1"), PageVectors(torch.eye(16))])
    with pytest.raises(InputError, match="two pages are called 'x'"):
        rank(query(), collection(2), ids=["x", "x"])


def test_ids_must_be_as_many_as_pages() -> None:
    with pytest.raises(InputError, match="each of the 3 pages once, got 2"):
        rank(query(), collection(3), ids=["x", "y"])


def test_a_page_with_a_nan_is_named() -> None:
    pages = collection(4)
    spoilt = pages[2].vectors.clone()
    spoilt[0, 0] = torch.nan
    with pytest.raises(InputError, match="'doc-2' scores NaN"):
        rank(query(), [*pages[:2], PageVectors(spoilt, id="doc-2")])


def test_several_queries_at_once_are_refused() -> None:
    with pytest.raises(InputError, match="one query"):
        rank(torch.stack([query(), query(2)]), collection(3))
