"""Late-interaction scores: the fast path against the definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pagefacets as pf
from pagefacets.interaction import PackedPages, maxsim_reference


@given(
    seed=st.integers(0, 10**6),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    tokens=st.integers(1, 9),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_equals_the_definition(seed, lengths, tokens, dtype):
    generator = torch.Generator().manual_seed(seed)
    pages = [pf.PageVectors(torch.randn(n, 8, generator=generator).to(dtype)) for n in lengths]
    query = torch.randn(tokens, 8, generator=generator)
    torch.testing.assert_close(pf.maxsim(query, pages).double(), maxsim_reference(query, pages), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("tokens", [1, 20, 24, 25, 32, 40])
@pytest.mark.parametrize("n", [1, 2, 8, 31, 32, 75])
def test_pages_of_one_length_equal_the_definition(tokens, n):
    generator = torch.Generator().manual_seed(tokens * n)
    pages = [-torch.rand(n, 8, generator=generator) for _ in range(5)]
    query = torch.rand(tokens, 8, generator=generator)
    torch.testing.assert_close(pf.maxsim(query, pages).double(), maxsim_reference(query, pages), atol=1e-4, rtol=1e-5)
    pages[3][n - 1, 5] = float("nan")
    assert torch.isnan(pf.maxsim(query, pages)).tolist() == [False, False, False, True, False]


def test_blocks_do_not_show(monkeypatch):
    pages = [torch.randn(n, 8) for n in (3, 700, 900, 1, 1500, 40, 40)]
    query = torch.randn(5, 8)
    whole = pf.maxsim(query, pages)
    monkeypatch.setattr("pagefacets.interaction.BLOCK", 5)
    monkeypatch.setattr("pagefacets.interaction.CACHED", 5)
    torch.testing.assert_close(pf.maxsim(query, pages), whole)


def test_a_page_of_negative_scores_is_not_lifted_to_zero():
    """Zero padding would score 0 here; the page's best is -1."""
    pages = [torch.tensor([[-1.0, 0.0]]), torch.tensor([[-1.0, 0.0], [-0.5, 0.0]])]
    assert pf.maxsim([[1.0, 0.0]], pages).tolist() == [-1.0, -0.5]


def test_padding_is_masked_out():
    block = torch.zeros(2, 4, 3)
    block[0, :3], block[1, :2] = -torch.rand(3, 3), -torch.rand(2, 3)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    query = torch.rand(5, 3)
    query_mask = torch.tensor([True, True, False, True, False])
    expected = maxsim_reference(query[query_mask], [block[0, :3], block[1, :2]])
    packed = PackedPages.from_padded(block, mask)
    torch.testing.assert_close(pf.maxsim(query, packed, query_mask=query_mask).double(), expected)
    with pytest.raises(pf.InputError, match="page 1 has no row left"):
        PackedPages.from_padded(block, torch.tensor([[1, 0, 0, 0], [0, 0, 0, 0]]))


def test_many_queries_are_their_members():
    pages = [torch.randn(n, 8) for n in (3, 9, 9, 2)]
    ragged = [torch.randn(m, 8) for m in (1, 700, 400, 3)]
    together = pf.maxsim(ragged, pages)
    assert together.shape == (4, 4)
    for i, query in enumerate(ragged):
        torch.testing.assert_close(together[i], pf.maxsim(query, pages), atol=1e-3, rtol=1e-5)
    block = torch.randn(3, 5, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]]).bool()
    masked = pf.maxsim(block, pages, query_mask=mask)
    torch.testing.assert_close(masked[2], pf.maxsim(block[2, :3], pages))


def test_an_offset_counts_once_per_token():
    facets = pf.Facets(torch.eye(4)[:2], torch.zeros(5, dtype=torch.long), offset=0.25)
    plain = pf.Facets(torch.eye(4)[:2], torch.zeros(5, dtype=torch.long))
    query = torch.rand(6, 4)
    torch.testing.assert_close(pf.maxsim(query, [facets, plain])[0], pf.maxsim(query, [plain])[0] + 6 * 0.25)
    torch.testing.assert_close(pf.maxsim(query, [facets, plain]).double(), maxsim_reference(query, [facets, plain]))


def test_takes_arrays_pages_and_facets_together():
    rows = np.random.default_rng(0).standard_normal((7, 8)).astype(np.float32)
    facets = pf.Facets(torch.from_numpy(rows), torch.arange(7))
    scores = pf.maxsim(rows[:2], [rows, pf.PageVectors(rows), facets, rows.tolist()])
    assert len(set(scores.tolist())) == 1


def test_what_cannot_be_scored_is_refused():
    with pytest.raises(pf.InputError, match="there are no pages"):
        pf.maxsim(torch.randn(2, 8), [])
    with pytest.raises(pf.InputError, match="query 0 has dimension 4 but the pages have 8"):
        pf.maxsim(torch.randn(2, 4), [torch.randn(3, 8)])
    with pytest.raises(pf.InputError, match="page 1 has dimension 4 but page 0 has 8"):
        pf.maxsim(torch.randn(2, 8), [torch.randn(3, 8), torch.randn(3, 4)])
    with pytest.raises(pf.InputError, match=r"query_mask must have shape \(2,\)"):
        pf.maxsim(torch.randn(2, 8), [torch.randn(3, 8)], query_mask=[True])
    with pytest.raises(pf.InputError, match="two axes"):
        pf.maxsim(torch.randn(2, 8), [torch.randn(8)])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_same_scores_on_cuda():
    pages = [torch.randn(n, 8) for n in (3, 9, 20)]
    query = torch.randn(5, 8)
    there = pf.maxsim(query, PackedPages.of(pages).to("cuda"))
    torch.testing.assert_close(there.cpu(), pf.maxsim(query, pages), atol=1e-4, rtol=1e-5)


def test_nan_is_not_hidden():
    pages = [torch.tensor([[1.0, 0.0], [float("nan"), 0.0]]), torch.eye(2), torch.eye(2)[:1]]
    assert torch.isnan(pf.maxsim([[1.0, 0.0]], pages)).tolist() == [True, False, False]


def test_a_file_of_facets_keeps_its_offsets(tmp_path):
    facets = [pf.Facets(torch.eye(4)[:2], torch.zeros(5, dtype=torch.long), offset=float(i)) for i in range(3)]
    pf.save_vectors(tmp_path / "facets.safetensors", facets)
    query = torch.rand(6, 4)
    with pf.open_vectors(tmp_path / "facets.safetensors") as stored:
        torch.testing.assert_close(pf.maxsim(query, stored), pf.maxsim(query, facets))
        assert [hit.page for hit in pf.rank(query, stored)] == [hit.page for hit in pf.rank(query, facets)]


def test_pages_of_a_query_file_are_queries(tmp_path):
    queries = [pf.PageVectors(torch.randn(n, 8)) for n in (3, 5)]
    pf.save_vectors(tmp_path / "queries.npz", queries)
    pages = [torch.randn(n, 8) for n in (4, 9, 2)]
    with pf.open_vectors(tmp_path / "queries.npz") as stored:
        both = pf.maxsim(stored, pages)
        torch.testing.assert_close(both[1], pf.maxsim(stored[1], pages))
        torch.testing.assert_close(both[0], pf.maxsim(queries[0].vectors, pages))
