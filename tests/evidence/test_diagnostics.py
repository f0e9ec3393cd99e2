import json
import math
import weakref
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pagefacets.data import Facets, PageVectors
from pagefacets.errors import InputError
from pagefacets.evidence.diagnostics import Diagnostics, PageDiagnostics, diagnose, diagnose_many
from pagefacets.evidence.misalignment import (
    Degradation,
    covering_error,
    degradation,
    effective_facets,
    hard_demand,
    lorenz,
    proposition1,
)
from pagefacets.facets.demand import soft_demand
from pagefacets.interaction import maxsim, maxsim_reference

DIM = 16


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def page_of(n: int, seed: int) -> PageVectors:
    rows = torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed))
    return PageVectors(unit(rows), id=f"page {seed}")


def facets_of(page: PageVectors, k: int, offset: float | None = None) -> Facets:
    """The first k rows, and for every row the nearest of them."""
    F = page.vectors[:k]
    return Facets(F, (page.vectors.float() @ F.float().T).argmax(1), offset=offset, id=page.id, method="first rows")


def queries_of(count: int, seed: int = 100) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (count,), generator=g).tolist()
    return [unit(torch.randn(length, DIM, generator=g)) for length in lengths]


@pytest.fixture(scope="module")
def pages() -> list[PageVectors]:
    return [page_of(n, seed) for seed, n in enumerate((30, 17, 45, 30, 8, 22, 60, 31, 12, 26))]


@pytest.fixture(scope="module")
def found(pages: list[PageVectors]) -> Diagnostics:
    return diagnose_many(pages, [facets_of(page, max(1, page.n // 6)) for page in pages], queries_of(7))


def test_a_page_has_the_numbers_of_the_formulas() -> None:
    page, queries = page_of(40, 0), queries_of(6)
    facets = facets_of(page, 5)
    D, F, Q = page.vectors, facets.vectors, torch.cat(queries)
    w = hard_demand(D, Q)
    found = diagnose(page, facets, queries, tau=0.1)
    assert (found.id, found.k, found.n, found.ratio) == ("page 0", 5, 40, 0.125)
    assert (found.bytes_before, found.bytes_after) == (40 * DIM * 4, 5 * DIM * 4)
    assert found.demand.tolist() == w.tolist()
    torch.testing.assert_close(found.smoothed_demand, soft_demand(D, Q, 0.1))
    assert found.covering_error == pytest.approx(covering_error(D, F, w), rel=1e-6)
    assert found.effective_facets == pytest.approx(effective_facets(D, F, w), rel=1e-6)
    assert found.top_share == lorenz(w).at(0.2)
    assert found.smoothed_top_share == pytest.approx(lorenz(found.smoothed_demand).at(0.2))
    assert astuple(found.degradation) == pytest.approx(astuple(degradation(D, F, Q)), abs=1e-6)
    expected = proposition1(D, F, queries)
    assert found.proposition1.query is not None
    assert expected.query is not None
    assert astuple(found.proposition1.token) == pytest.approx(astuple(expected.token), abs=1e-6)
    assert astuple(found.proposition1.query) == pytest.approx(astuple(expected.query), abs=1e-5)


def test_scores_are_maxsims() -> None:
    page, queries = page_of(40, 1), queries_of(6)
    queries[2] = 4 * queries[2]
    facets = facets_of(page, 5, offset=0.125)
    found = diagnose(page, facets, queries)
    assert found.full_scores is not None
    assert found.facet_scores is not None
    for i, query in enumerate(queries):
        full, compressed = maxsim_reference(query, [page, facets]).tolist()
        assert float(found.full_scores[i]) == pytest.approx(full, abs=1e-4)
        assert float(found.facet_scores[i]) == pytest.approx(compressed, abs=1e-4)


def test_smoothed_demand_becomes_the_hard_one_as_tau_falls() -> None:
    page = page_of(25, 2)
    queries = [page.vectors[[4, 9]] + 0.05, page.vectors[[4, 20, 21]] - 0.05]
    found = diagnose(page, facets_of(page, 3), queries, tau=1e-3)
    assert found.demand[[4, 9, 20, 21]].tolist() == pytest.approx([0.4, 0.2, 0.2, 0.2])
    torch.testing.assert_close(found.smoothed_demand, found.demand)


def test_an_offset_moves_scores_but_neither_covering_nor_the_bound() -> None:
    page, queries = page_of(40, 3), queries_of(6)
    plain, lifted = (diagnose(page, facets_of(page, 5, offset), queries) for offset in (None, 0.25))
    assert lifted.covering_error == plain.covering_error
    assert lifted.proposition1 == plain.proposition1
    assert lifted.degradation.signed == pytest.approx(plain.degradation.signed - 0.25, abs=1e-6)
    assert plain.facet_scores is not None
    assert lifted.facet_scores is not None
    tokens = torch.tensor([len(query) for query in queries])
    torch.testing.assert_close(lifted.facet_scores, plain.facet_scores + 0.25 * tokens, atol=1e-5, rtol=0)
    assert lifted.bytes_after == plain.bytes_after + 4


def test_all_rows_kept_lose_nothing() -> None:
    page = page_of(20, 4)
    found = diagnose(page, facets_of(page, 20), queries_of(6))
    assert found.covering_error == 0
    assert found.degradation == Degradation(0.0, 0.0, 0.0)
    assert found.effective_facets == pytest.approx(math.exp(stats.entropy(found.demand.double().numpy())))


def test_rows_that_compression_dropped_as_bad_have_no_demand() -> None:
    page, queries = page_of(20, 5), queries_of(6)
    kept = torch.tensor([j for j in range(20) if j not in (3, 11)])
    spoilt = page.vectors.clone()
    spoilt[3], spoilt[11] = torch.nan, 0.0
    clean = facets_of(page.select(kept), 4)
    assignment = torch.full((20,), -1)
    assignment[kept] = clean.assignment
    found = diagnose(PageVectors(spoilt, id=page.id), replace(clean, assignment=assignment), queries)
    expected = diagnose(page.select(kept), clean, queries)
    assert found.n == 20
    assert found.demand[kept].tolist() == expected.demand.tolist()
    assert found.smoothed_demand[[3, 11]].tolist() == [0, 0]
    assert found.covering_error == expected.covering_error
    assert found.full_scores is not None
    assert expected.full_scores is not None
    assert found.full_scores.tolist() == expected.full_scores.tolist()


def test_pruned_rows_still_count_as_demanded() -> None:
    D = torch.eye(4)
    pruned = Facets(D[:1], torch.tensor([0, -1, -1, -1]))
    found = diagnose(D, pruned, D)
    assert found.demand.tolist() == [0.25] * 4
    assert found.covering_error == pytest.approx(0.75)


def test_loose_tokens_give_all_that_needs_no_query() -> None:
    page, queries = page_of(40, 6), queries_of(6)
    facets = facets_of(page, 5)
    loose, whole = diagnose(page, facets, torch.cat(queries)), diagnose(page, facets, queries)
    assert loose.proposition1.query is None
    assert loose.proposition1.token == whole.proposition1.token
    assert loose.covering_error == whole.covering_error
    assert loose.full_scores is None
    many = diagnose_many([page], [facets], torch.cat(queries))
    assert many.fidelity is None
    assert many.proposition1.query is None
    assert "Proposition 1 per query" not in dict(many.table())


def test_queries_come_as_a_list_or_as_one_block_of_either_library() -> None:
    page = page_of(30, 7)
    block = torch.stack([queries[:2] for queries in queries_of(4)])
    results = [diagnose(page, facets_of(page, 3), given) for given in (block, block.numpy(), list(block))]
    assert results[0].proposition1 == results[1].proposition1 == results[2].proposition1
    assert results[0].proposition1.query is not None


def test_means_are_means_over_pages_and_sizes_are_totals(found: Diagnostics, pages: list[PageVectors]) -> None:
    assert found.n == sum(page.n for page in pages)
    assert found.k == sum(max(1, page.n // 6) for page in pages)
    assert found.ratio == found.k / found.n
    assert found.allocated_facets == found.k / 10
    assert found.bytes_before == sum(page.nbytes for page in pages)
    for name in ("covering_error", "effective_facets", "top_share", "smoothed_top_share"):
        assert getattr(found, name) == pytest.approx(np.mean([getattr(page, name) for page in found.pages]))
    for name in ("positive", "signed", "absolute"):
        expected = np.mean([getattr(page.degradation, name) for page in found.pages])
        assert getattr(found.degradation, name) == pytest.approx(expected)
    assert found.lorenz.at(0.5) == pytest.approx(np.mean([page.lorenz.at(0.5) for page in found.pages]))


def test_the_bound_survives_averaging(found: Diagnostics) -> None:
    assert found.proposition1.query is not None
    for chain in (found.proposition1.token, found.proposition1.query):
        assert chain.degradation <= chain.covering <= chain.surrogate


def test_worst_pages_come_first(found: Diagnostics) -> None:
    errors = [page.covering_error for page in found.worst(4)]
    assert errors == sorted((page.covering_error for page in found.pages), reverse=True)[:4]


def test_fidelity_agrees_with_scipy(found: Diagnostics, pages: list[PageVectors]) -> None:
    facets = [facets_of(page, max(1, page.n // 6)) for page in pages]
    full = maxsim(queries_of(7), pages).double().numpy()
    compressed = maxsim(queries_of(7), facets).double().numpy()
    rows = list(zip(full, compressed, strict=True))
    assert found.fidelity is not None
    assert found.fidelity.pearson == pytest.approx(np.mean([stats.pearsonr(a, b).statistic for a, b in rows]), abs=1e-5)
    assert found.fidelity.spearman == pytest.approx(
        np.mean([stats.spearmanr(a, b).statistic for a, b in rows]), abs=1e-6
    )
    assert found.fidelity.absolute == pytest.approx(np.abs(full - compressed).mean(), abs=1e-5)
    shared = [len({*np.argsort(a)[-5:]} & {*np.argsort(b)[-5:]}) / 5 for a, b in rows]
    assert found.fidelity.top5 == pytest.approx(np.mean(shared))


def with_scores(page: PageDiagnostics, full: float, compressed: float) -> PageDiagnostics:
    return replace(page, full_scores=torch.tensor([full]).double(), facet_scores=torch.tensor([compressed]).double())


def test_spearman_gives_ties_their_mean_rank(found: Diagnostics) -> None:
    pairs = [(1.0, 2.0), (1.0, 3.0), (5.0, 3.0), (2.0, 3.0), (0.5, -1.0)]
    pages = tuple(with_scores(page, *pair) for page, pair in zip(found.pages, pairs, strict=False))
    fidelity = Diagnostics(pages, shared_queries=True).fidelity
    assert fidelity is not None
    assert fidelity.spearman == pytest.approx(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
    assert fidelity.top5 is None


def test_correlations_without_spread_are_undefined_not_nan(found: Diagnostics) -> None:
    pages = tuple(with_scores(page, 1.0, float(i)) for i, page in enumerate(found.pages))
    flat = Diagnostics(pages, shared_queries=True)
    assert flat.fidelity is not None
    assert (flat.fidelity.spearman, flat.fidelity.pearson) == (None, None)
    assert dict(flat.table())["Spearman of scores over pages"] == "undefined"
    json.dumps(flat.to_dict(), allow_nan=False)


def test_identical_scores_are_perfectly_faithful(pages: list[PageVectors]) -> None:
    found = diagnose_many(pages, [facets_of(page, page.n) for page in pages], queries_of(7))
    assert found.fidelity is not None
    assert (found.fidelity.spearman, found.fidelity.top5) == (pytest.approx(1), 1.0)
    assert found.fidelity.pearson == pytest.approx(1)
    assert found.fidelity.absolute == pytest.approx(0, abs=1e-5)


def test_each_page_may_have_its_own_queries(pages: list[PageVectors]) -> None:
    facets = [facets_of(page, 2) for page in pages]
    own = {f"page {i}": queries_of(3 + i % 2, seed=i) for i in range(len(pages))}
    found = diagnose_many(pages, facets, own)
    for i in (0, 9):
        assert found.pages[i].demand.tolist() == hard_demand(pages[i].vectors, torch.cat(own[f"page {i}"])).tolist()
    assert found.fidelity is None
    del own["page 4"]
    with pytest.raises(InputError, match="no entry for page 'page 4'"):
        diagnose_many(pages, facets, own)


def test_results_are_json_and_rows_of_text(found: Diagnostics) -> None:
    read = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert read["covering_error"] == found.covering_error
    assert read["proposition1"]["token"]["surrogate"] == found.proposition1.token.surrogate
    assert [page["id"] for page in read["pages"]] == [f"page {i}" for i in range(10)]
    assert read["lorenz"] == found.lorenz.mass.tolist()
    assert found.fidelity is not None
    assert read["fidelity"]["top5"] == found.fidelity.top5
    table = dict(found.table())
    assert table["covering error C_err"] == f"{found.covering_error:.4f}"
    assert table["effective facets K_eff"] == f"{found.effective_facets:.2f} of {found.allocated_facets:.2f}"
    assert dict(found.pages[0].table())["page"] == "page 0"


def test_pages_are_not_held_while_streaming() -> None:
    alive: weakref.WeakSet[PageVectors] = weakref.WeakSet()
    most = 0

    def stream() -> Iterator[PageVectors]:
        nonlocal most
        for seed in range(12):
            page = page_of(30, seed)
            alive.add(page)
            most = max(most, len(alive))
            yield page
            del page

    found = diagnose_many(stream(), (facets_of(page_of(30, seed), 3) for seed in range(12)), queries_of(3))
    assert len(found.pages) == 12
    assert most <= 2


def test_pages_and_facets_that_do_not_belong_together_are_refused() -> None:
    a, b = page_of(20, 0), page_of(20, 1)
    queries = queries_of(3)
    with pytest.raises(InputError, match="page 'page 0' came with the facets of 'page 1'"):
        diagnose(a, facets_of(b, 3), queries)
    with pytest.raises(InputError, match="page 'page 0' has 20 rows but its facets were made from 30"):
        diagnose(a, replace(facets_of(page_of(30, 0), 3), id=None), queries)
    with pytest.raises(InputError, match="dimension 16, its facets 16 and the queries 9"):
        diagnose(a, facets_of(a, 3), [query[:, :9] for query in queries])
    with pytest.raises(InputError, match="facets end after 1"):
        diagnose_many([a, b], [facets_of(a, 3)], queries)
    with pytest.raises(InputError, match="pages end after 1"):
        diagnose_many([a], [facets_of(a, 3), facets_of(b, 3)], queries)
    with pytest.raises(InputError, match="no pages to diagnose"):
        diagnose_many([], [], queries)


def test_what_cannot_be_measured_is_refused_by_name() -> None:
    page, queries = page_of(20, 8), queries_of(3)
    spoilt = page.vectors.clone()
    spoilt[7] = torch.nan
    with pytest.raises(InputError, match="row 7 of page 'page 8' is zero, NaN or infinite"):
        diagnose(PageVectors(spoilt, id="page 8"), facets_of(page, 4), queries)
    with pytest.raises(InputError, match="row 1 of query 2 is zero"):
        diagnose(page, facets_of(page, 4), [*queries[:2], torch.eye(DIM)[:3] * torch.tensor([[1.0], [0.0], [1.0]])])
    for tau in (0.0, -1.0, math.nan):
        with pytest.raises(InputError, match=r"tau must be at least 0\.001"):
            diagnose(page, facets_of(page, 4), queries, tau=tau)


@pytest.mark.realdata
def test_the_diagnosis_of_the_paper_holds_on_real_vectors(realdata: Path) -> None:
    with np.load(realdata / "lotte-colbertv2" / "dev.npz") as file:
        vectors, offsets, tokens = file["page_vectors"], file["page_offsets"], file["query_vectors"]
    pages = [PageVectors(vectors[offsets[i] : offsets[i + 1]], id=str(i)) for i in range(100)]
    queries = [query[: 8 + i % 25] for i, query in enumerate(torch.from_numpy(tokens))]
    facets = [facets_of(page, max(1, page.n // 20)) for page in pages]
    found = diagnose_many(pages, facets, queries)
    for page in found.pages:
        assert page.proposition1.query is not None
        for chain in (page.proposition1.token, page.proposition1.query):
            assert 0 < chain.degradation < chain.covering <= chain.surrogate
        assert 1 <= page.effective_facets <= page.k
    assert found.top_share > 0.5
    assert found.effective_facets < 0.9 * found.allocated_facets
