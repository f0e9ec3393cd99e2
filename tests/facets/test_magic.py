"""MAGIC against the paper's algorithm in float64, and against what must hold for any input."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pagefacets as pf
from tests.facets import oracle

ABLATIONS = [
    {},
    {"source": "uniform"},
    {"target": "free"},
    {"readout": "transport"},
    {"first_seed": "first"},
    {"first_seed": "demand"},
    {"eta": 0.5, "outer": 2, "inner": 9},
    {"tau": 0.03},
    # In the cold two facets may fall onto one point, from where rounding decides: one step, before they can.
    {"epsilon": 0.03, "tau": 0.01, "outer": 1},
    {"epsilon": 0.01, "tau": 0.01, "outer": 1},
    {"epsilon": 0.01, "target": "free", "outer": 1},
]
# A row whose two best facets differ by less than float32 resolves may go to either.
TIE = 2e-6


def matches_oracle(D, Q, ratio, options):
    magic = pf.Magic(ratio=ratio, **options)
    facets = magic.compress(D, pf.CalibrationPool(Q))
    expected, assignment, margin = oracle.magic(D, Q, magic.k(len(D)), **options)
    flipped = facets.assignment.numpy() != assignment
    assert (margin[flipped] < TIE).all()
    touched = np.union1d(assignment[flipped], facets.assignment.numpy()[flipped])
    same = np.setdiff1d(np.arange(facets.k), touched if options.get("readout") != "transport" else [])
    assert flipped.sum() <= max(1, 0.005 * len(D))
    np.testing.assert_allclose(facets.vectors.numpy()[same], expected[same], atol=1e-5, rtol=0)


@pytest.mark.parametrize("options", ABLATIONS, ids=str)
@pytest.mark.parametrize("n", [1, 5, 200])
def test_equals_the_paper_in_float64(n, options, draw):
    for ratio in (0.5, 0.1, 0.01):
        matches_oracle(draw(n, seed=n), draw(300, seed=99), ratio, options)


@pytest.mark.slow
@pytest.mark.parametrize("options", ABLATIONS, ids=str)
@pytest.mark.parametrize("n", [743, 1031])
def test_equals_the_paper_in_float64_on_whole_pages(n, options, draw):
    for ratio in (0.5, 0.1, 0.01):
        matches_oracle(draw(n, seed=n), draw(1000, seed=99), ratio, options)


def test_own_weights_equal_the_paper_in_float64(draw):
    D = draw(120)
    weights = np.random.default_rng(1).exponential(size=120).astype(np.float32)
    facets = pf.Magic(budget=9).compress(D, weights=weights)
    expected, assignment, _ = oracle.magic(D, None, 9, weights=weights)
    np.testing.assert_array_equal(facets.assignment, assignment)
    np.testing.assert_allclose(facets.vectors, expected, atol=1e-5, rtol=0)


def test_real_pages_equal_the_paper_in_float64(realdata):
    pages = pf.open_vectors(realdata / "visual-pages" / "colqwen2.npz")
    tokens = pages[100].vectors[::3].float().numpy()
    for i in (0, 50):
        matches_oracle(pages[i].vectors.float().numpy(), tokens, 0.05, {})


def test_few_facets_for_few_directions():
    """Rows that are copies of K orthogonal directions compress to those directions without loss."""
    directions = torch.eye(16)[:4]
    D = directions.repeat_interleave(torch.tensor([40, 3, 2, 15]), dim=0)
    facets = pf.Magic(budget=4).compress(D, pf.CalibrationPool(torch.randn(50, 16)))
    similarity = facets.vectors @ directions.T
    torch.testing.assert_close(similarity.max(0).values, torch.ones(4), atol=1e-6, rtol=0)
    for k in range(4):
        assert len({tuple(D[j].tolist()) for j in facets.members(k)}) == 1


def test_uniform_source_and_free_target_are_soft_spherical_k_means(draw):
    """One outer step of both ablations: facets move to the softmax-weighted means of the rows."""
    D = torch.nn.functional.normalize(torch.from_numpy(draw(90, 32)), dim=1)
    magic = pf.Magic(budget=6, source="uniform", target="free", readout="transport", outer=1, eta=1.0)
    facets = magic.compress(D)
    seeds = D[oracle.seeds(D.double().numpy(), 6, int((D @ D.mean(0)).argmax()))]
    responsibility = torch.softmax(seeds @ D.T / 0.05, dim=0)
    means = torch.nn.functional.normalize(responsibility @ D, dim=1)
    torch.testing.assert_close(facets.vectors, means, atol=1e-5, rtol=0)


def test_demand_pulls_facets_to_what_is_asked_for(draw):
    """A region that queries ask for keeps more facets than the same region under uniform demand."""
    D = draw(300, clusters=6)
    asked = np.flatnonzero(oracle.unit(D) @ oracle.unit(D[:1]).T[:, 0] > 0.5)
    pool = pf.CalibrationPool(D[asked])
    demand = pf.Magic(budget=12).compress(D, pool)
    uniform = pf.Magic(budget=12, source="uniform").compress(D)
    assert len(set(demand.assignment[asked].tolist())) > len(set(uniform.assignment[asked].tolist()))


def test_plan_is_row_stochastic_and_comes_only_on_request(draw):
    D, pool = draw(80), pf.CalibrationPool(draw(60, seed=5))
    assert pf.Magic(budget=7).compress(D, pool).plan is None
    plan = pf.Magic(budget=7, keep_plan=True).compress(D, pool).plan
    torch.testing.assert_close(plan.sum(1), torch.ones(7), atol=1e-5, rtol=0)
    assert (plan >= 0).all()


def test_antipodal_rows_and_zero_weights_stay_finite():
    D = torch.cat([torch.eye(8)[:1].repeat(5, 1), -torch.eye(8)[:1].repeat(5, 1), torch.eye(8)[1:3]])
    weights = torch.zeros(12)
    weights[0] = 1.0
    for epsilon in (0.001, 0.02, 0.03, 0.05, 0.5):
        for target in ("balanced", "free"):
            facets = pf.Magic(budget=4, epsilon=epsilon, target=target).compress(D, weights=weights)
            torch.testing.assert_close(facets.vectors.norm(dim=1), torch.ones(4), atol=1e-5, rtol=0)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 60), k=st.integers(1, 20))
def test_permuting_rows_permutes_the_assignment_and_keeps_the_facets(seed, n, k):
    rng = np.random.default_rng(seed)
    D = rng.standard_normal((n, 24)).astype(np.float32)
    order = rng.permutation(n)
    magic, pool = pf.Magic(budget=k), pf.CalibrationPool(rng.standard_normal((40, 24)))
    facets, permuted = magic.compress(D, pool), magic.compress(D[order], pool)
    nearest = (facets.vectors @ permuted.vectors.T).max(1).values
    torch.testing.assert_close(nearest, torch.ones(facets.k), atol=1e-5, rtol=0)
    if facets.k < n:
        for j, i in enumerate(order):
            same = facets.vectors[facets.assignment[i]] @ permuted.vectors[permuted.assignment[j]]
            assert same > 1 - 1e-4


@given(seed=st.integers(0, 10**6))
def test_rotating_pages_and_tokens_rotates_the_facets(seed):
    rng = np.random.default_rng(seed)
    D, Q = rng.standard_normal((50, 24)), rng.standard_normal((40, 24))
    R, _ = np.linalg.qr(rng.standard_normal((24, 24)))
    magic = pf.Magic(budget=8)
    facets = magic.compress(D, pf.CalibrationPool(Q))
    rotated = magic.compress(D @ R, pf.CalibrationPool(Q @ R))
    torch.testing.assert_close(facets.vectors @ torch.from_numpy(R), rotated.vectors, atol=1e-4, rtol=0)


def test_the_configuration_is_the_object():
    magic = pf.Magic(ratio=0.05, tau=0.03, target="free")
    assert pf.compressor(**magic.config()) == magic
    assert hash(magic) == hash(dataclasses.replace(magic))
    with pytest.raises(dataclasses.FrozenInstanceError):
        magic.tau = 1.0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "exactly one of ratio"),
        ({"ratio": 0.1, "budget": 3}, "exactly one of ratio"),
        ({"ratio": 0.0}, r"ratio must lie in \(0, 1\]"),
        ({"ratio": 1.5}, r"ratio must lie in \(0, 1\]"),
        ({"budget": 0}, "at least 1"),
        ({"ratio": 0.1, "tau": 0.0}, "tau must be a number of at least 0.001"),
        ({"ratio": 0.1, "tau": float("nan")}, "tau must be a number"),
        ({"ratio": 0.1, "epsilon": -1.0}, "epsilon must be"),
        ({"ratio": 0.1, "outer": 0}, "outer must be"),
        ({"ratio": 0.1, "eta": 0.0}, r"eta must lie in \(0, 1\]"),
    ],
)
def test_options_that_cannot_work_are_refused(options, sentence):
    with pytest.raises(pf.InputError, match=sentence):
        pf.Magic(**options)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("pf.Magic(budget=2.5)", "budget must be a whole number, at least 1, got 2.5"),
        ("pf.Magic(ratio=0.1, target='fair')", "target must be one of 'balanced', 'free', got 'fair'"),
        ("pf.Magic(ratio=0.1, tau='hot')", "tau must be a number of at least 0.001, got 'hot'"),
        ("pf.Magic(ratio='5%')", "ratio must be a number of at least 0, got '5%'"),
    ],
)
def test_options_of_the_wrong_type_are_refused_where_nothing_checks_types(call, sentence):
    done = subprocess.run([sys.executable, "-c", f"import pagefacets as pf; {call}"], capture_output=True, text=True)
    assert sentence in done.stderr


def test_demand_needs_a_pool_or_weights(draw):
    with pytest.raises(pf.InputError, match="needs a calibration pool"):
        pf.Magic(ratio=0.1).compress(draw(20))
    assert pf.Magic(ratio=0.1, source="uniform").compress(draw(20)).k == 2


def test_a_pool_of_another_dimension_is_refused(draw):
    with pytest.raises(pf.PoolMismatchError, match=r"dimension 64 .* has 128"):
        pf.Magic(ratio=0.1).compress(draw(20, 64), pf.CalibrationPool(draw(30)))
