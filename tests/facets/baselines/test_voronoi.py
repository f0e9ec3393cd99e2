"""Voronoi pruning against the definition of its error, and against computing every error anew."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pagefacets as pf
from pagefacets.facets.baselines import removal
from pagefacets.facets.baselines.removal import removal_order
from pagefacets.facets.baselines.voronoi import Voronoi, directions, voronoi_global


def unit(rows):
    return torch.nn.functional.normalize(torch.as_tensor(rows, dtype=torch.float32), dim=1)


def anew(D, Q):
    """Order and errors with the two best rows of every sample looked up again after each removal."""
    scores = (Q @ D.T).double().numpy()
    alive = list(range(len(D)))
    order, errors = [], []
    while alive:
        left = np.sort(scores[:, alive], axis=1)
        second = left[:, -2] if len(alive) > 1 else np.full(len(Q), -2.0)
        error = np.bincount(scores[:, alive].argmax(1), weights=left[:, -1] - second, minlength=len(alive))
        j = int(error.argmin())
        order.append(alive.pop(j))
        errors.append(error[j])
    return order, errors


@pytest.mark.parametrize("seed", range(20))
def test_the_order_is_that_of_computing_every_error_anew(draw, seed):
    D, Q = unit(draw(60, 32, seed=seed)), directions(2000, 32, seed)
    order, errors = anew(D, Q)
    removed = removal_order(D, Q)
    assert removed.order.tolist() == order
    np.testing.assert_allclose(removed.errors, errors, rtol=1e-5)
    assert (np.diff(removed.errors) >= 0).all()


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 50),
    p=st.integers(2, 8),
    samples=st.integers(1, 300),
    reserve=st.integers(2, 6),
)
def test_few_samples_and_short_reserves_change_nothing(seed, n, p, samples, reserve):
    """With more rows than samples most errors are 0, and those rows must go in the order of their index."""
    D, Q = unit(np.random.default_rng(seed).standard_normal((n, p))), directions(samples, p, seed)
    order, errors = anew(D, Q)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(removal, "RESERVE", reserve)
        removed = removal_order(D, Q)
    assert removed.order.tolist() == order
    np.testing.assert_allclose(removed.errors, errors, rtol=1e-4, atol=1e-5)


def test_an_error_is_the_maxsim_that_is_lost(draw):
    """What is recorded of each removal is the drop of the summed MaxSim, and no other row would have cost less."""
    D, Q = unit(draw(40, 16)), directions(500, 16, 3)
    removed = removal_order(D, Q)
    scores = (Q @ D.T).double()
    for i in range(39):
        alive = removed.order[i:]
        total = scores[:, alive].max(1).values.sum()
        drops = [float(total - scores[:, np.delete(alive, j)].max(1).values.sum()) for j in range(len(alive))]
        assert removed.errors[i] == pytest.approx(drops[0], abs=1e-4)
        assert drops[0] <= min(drops) + 1e-4


def test_copies_go_first_by_index_and_one_of_each_stays():
    D = torch.eye(8)[torch.tensor([0, 1, 0, 0, 1, 2])]
    order = removal_order(D, directions(400, 8, 0)).order.tolist()
    assert order[:3] == [0, 1, 2]
    assert set(order[3:]) == {3, 4, 5}
    facets = Voronoi(budget=3, samples=400).compress(D)
    assert facets.assignment.tolist() == [-1, -1, -1, 0, 1, 2]
    assert torch.equal(facets.vectors, torch.eye(8)[:3])


def test_a_row_apart_outlives_the_crowd(draw):
    crowd = np.eye(16)[0] + 0.05 * draw(30, 16)
    page = np.concatenate([crowd, -np.eye(16)[:1]])
    assert Voronoi(budget=2, samples=2000).compress(page.astype(np.float32)).assignment[30] == 1


def test_more_rows_than_sixteen_bits_count(draw):
    """Row numbers past 32,767 are carried as well."""
    D = unit(draw(33_000, 4))
    Q = directions(20, 4, 0)
    removed = removal_order(D, Q)
    assert sorted(removed.order.tolist()) == list(range(33_000))
    kept = removed.order[-20:]
    best = (Q @ D.T).argmax(1)
    assert set(best.tolist()) <= set(kept.tolist())


def test_smaller_budgets_keep_part_of_what_larger_ones_keep(draw):
    page = draw(90, 32)
    half, tenth, few = Voronoi(ratio=0.5, samples=3000).compress_ratios(page, [0.5, 0.1, 0.03])
    kept = [set((facets.assignment >= 0).nonzero().flatten().tolist()) for facets in (half, tenth, few)]
    assert [len(rows) for rows in kept] == [45, 9, 3]
    assert kept[0] > kept[1] > kept[2]
    assert torch.equal(few.vectors, unit(page)[sorted(kept[2])])


def test_samples_lie_evenly_on_the_sphere():
    Q = directions(20_000, 16, 5)
    torch.testing.assert_close(Q.norm(dim=1), torch.ones(20_000))
    torch.testing.assert_close(Q.T @ Q / 20_000, torch.eye(16) / 16, atol=2e-3, rtol=0)
    assert Q.mean(0).norm() < 0.02
    assert torch.equal(Q, directions(20_000, 16, 5))
    assert not torch.equal(Q, directions(20_000, 16, 6))


def test_tokens_of_the_pool_as_samples(draw):
    page, pool = draw(70), pf.CalibrationPool(draw(200, seed=9))
    method = Voronoi(budget=12, source="pool")
    facets = method.compress(page, pool)
    expected = sorted(anew(unit(page), pool.tokens)[0][-12:])
    assert (facets.assignment >= 0).nonzero().flatten().tolist() == expected
    weighted = method.compress(page, pool, weights=np.arange(1.0, 71.0))
    assert torch.equal(weighted.assignment, facets.assignment)
    with pytest.raises(pf.InputError, match="needs a calibration pool"):
        method.compress(page)
    with pytest.raises(pf.InputError, match="pass pool=, whatever the weights"):
        method.compress(page, weights=np.ones(70))
    with pytest.raises(pf.PoolMismatchError, match="dimension 128 but the calibration pool has 16"):
        method.compress(page, pf.CalibrationPool(draw(9, 16)), weights=np.ones(70))
    assert pf.compressor(**method.config()) == method
    with pytest.raises(pf.InputError, match="samples and seed belong to source='sphere'"):
        Voronoi(budget=12, source="pool", samples=500)
    with pytest.raises(pf.InputError, match="samples must be a whole number"):
        Voronoi(budget=12, samples=0)


def by_sorting(pages, ratio, min_keep, voronoi):
    """The global rule in one sort over all rows: (error, page, place in the page's order)."""
    removed = [removal_order(unit(page), directions(voronoi.samples, 32, voronoi.seed)) for page in pages]
    rows = sorted(
        (error, i, place)
        for i, one in enumerate(removed)
        for place, error in enumerate(one.errors[: max(0, len(one.errors) - min_keep)])
    )
    total = sum(len(page) for page in pages)
    gone = rows[: total - math.ceil(ratio * total - 1e-9)]
    kept = []
    for i, one in enumerate(removed):
        out = {int(one.order[place]) for _, page, place in gone if page == i}
        kept.append([j for j in range(len(one.order)) if j not in out])
    return kept


@pytest.mark.parametrize("min_keep", [1, 6])
@pytest.mark.parametrize("ratio", [0.9, 0.3, 0.05, 1.0])
def test_the_least_errors_of_the_whole_corpus_go_first(draw, ratio, min_keep):
    pages = [draw(n, 32, spread=spread, seed=n) for n, spread in ((40, 0.8), (25, 0.05), (1, 1.0), (60, 2.0), (4, 0.1))]
    pages.append(pages[1])
    voronoi = Voronoi(ratio=ratio, samples=1500)
    facets = list(voronoi_global(voronoi, pages, min_keep=min_keep))
    kept = [(one.assignment >= 0).nonzero().flatten().tolist() for one in facets]
    assert kept == by_sorting(pages, ratio, min_keep, voronoi)
    floor = sum(min(min_keep, len(page)) for page in pages)
    assert sum(map(len, kept)) == max(floor, math.ceil(ratio * 155 - 1e-9))
    for page, one in zip(pages, facets, strict=True):
        assert torch.equal(one.vectors, unit(page)[one.assignment >= 0])
        assert one.method == "voronoi"


def test_a_scattered_page_keeps_more_than_a_uniform_one(draw):
    scattered, uniform = voronoi_global(Voronoi(ratio=0.2, samples=1500), [draw(60, spread=2.0), draw(60, spread=0.02)])
    assert scattered.k > uniform.k


@pytest.mark.filterwarnings("ignore:dropped row 3 of page 4:UserWarning")
def test_the_global_rule_over_files_bad_rows_and_processes(draw, tmp_path):
    rows = draw(30, 16)
    rows[3] = 0
    pages = [pf.PageVectors(draw(20 + i, 16, seed=i).astype(np.float16), id=f"p{i}") for i in range(4)]
    pages.append(pf.PageVectors(rows.astype(np.float16), id="torn"))
    pf.save_vectors(tmp_path / "pages.safetensors", pages)
    method = Voronoi(ratio=0.3, samples=500)
    with pf.open_vectors(tmp_path / "pages.safetensors") as file:
        with pytest.raises(pf.InputError, match=r"row 3 of page 4 \('torn'\) is zero"):
            voronoi_global(method, file, workers=1)
        lenient = dataclasses.replace(method, on_bad_rows="drop")
        with pytest.warns(UserWarning, match=r"dropped row 3 of page 4 \('torn'\)"):
            alone = list(voronoi_global(lenient, file, workers=1))
        together = list(voronoi_global(lenient, file, workers=2))
    assert [one.id for one in alone] == ["p0", "p1", "p2", "p3", "torn"]
    assert alone[0].vectors.dtype == torch.float16
    assert alone[4].assignment[3] == -1
    assert alone[4].n == 30
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.assignment, other.assignment)
        assert torch.equal(one.vectors, other.vectors)


def test_what_the_global_rule_cannot_do_is_refused(draw):
    pages = [draw(9, 16)]
    with pytest.raises(pf.InputError, match="share of all rows: give Voronoi ratio="):
        voronoi_global(Voronoi(budget=3), pages)
    with pytest.raises(pf.InputError, match="min_keep must be a whole number, at least 1"):
        voronoi_global(Voronoi(ratio=0.3), pages, min_keep=0)
    with pytest.raises(pf.InputError, match="needs a calibration pool"):
        voronoi_global(Voronoi(ratio=0.3, source="pool"), pages)
    assert list(voronoi_global(Voronoi(ratio=0.3), [])) == []


@pytest.mark.realdata
@pytest.mark.parametrize("name", ["colqwen2", "colpali", "colsmol"])
def test_real_pages_in_the_order_of_computing_anew(realdata, name):
    with pf.open_vectors(realdata / "visual-pages" / f"{name}.npz") as pages:
        D = unit(pages[len(pages) // 2].vectors.float())[:150]
    Q = directions(3000, 128, 0)
    assert removal_order(D, Q).order.tolist() == anew(D, Q)[0]
