"""Transport plans against POT, and the marginals they must have."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.facets.sinkhorn import transport
from tests.facets import oracle


def problem(seed, k, n, p=16):
    rng = np.random.default_rng(seed)
    F, D = oracle.unit(rng.standard_normal((k, p))), oracle.unit(rng.standard_normal((n, p)))
    a = rng.exponential(size=n)
    return F, D, n * a / a.sum()


def as32(*arrays):
    return tuple(torch.from_numpy(np.asarray(array, dtype=np.float32)) for array in arrays)


@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.2])
def test_converged_plan_equals_pot(epsilon):
    F, D, a = problem(3, 6, 40)
    facets, rows, mass = as32(F, D, a / a.sum())
    T = transport(facets, rows, mass, epsilon, iterations=4000).T.numpy()
    expected = ot.sinkhorn(
        np.full(6, 1 / 6), a / a.sum(), 1 - F @ D.T, epsilon, method="sinkhorn_log", numItermax=20000, stopThr=1e-13
    )
    np.testing.assert_allclose(T, expected, atol=1e-6, rtol=0)


@given(
    seed=st.integers(0, 10**6), k=st.integers(1, 12), n=st.integers(1, 50), epsilon=st.sampled_from([0.01, 0.05, 0.3])
)
def test_source_marginal_is_exact_after_every_iteration(seed, k, n, epsilon):
    F, D, a = problem(seed, k, n)
    facets, rows, mass = as32(F, D, a)
    for iterations in (1, 5):
        for target in ("balanced", "free"):
            T = transport(facets, rows, mass, epsilon, iterations, target).T
            torch.testing.assert_close(T.sum(0), mass, atol=0, rtol=2e-5)


def test_target_marginal_tends_to_balance():
    F, D, a = problem(0, 10, 80)
    facets, rows, mass = as32(F, D, a)
    errors = [float((transport(facets, rows, mass, 0.05, t).mass - 8.0).abs().max()) for t in (5, 50, 500, 5000)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


def test_both_domains_are_one_function():
    """Just above and just below the temperature where the logarithmic domain takes over."""
    F, D, a = problem(1, 7, 60)
    facets, rows, mass = as32(F, D, a)
    for target in ("balanced", "free"):
        for epsilon in (0.03, 0.0299999):
            expected = oracle.plan(F, D, a, epsilon, 5, target)
            torch.testing.assert_close(
                transport(facets, rows, mass, epsilon, 5, target).T.double(),
                torch.from_numpy(expected),
                atol=1e-5,
                rtol=1e-4,
            )


def test_a_batch_is_its_members():
    problems = [problem(seed, 5, 30) for seed in range(3)]
    F, D, a = (torch.stack(parts) for parts in zip(*(as32(*each) for each in problems), strict=True))
    for epsilon in (0.01, 0.05):
        together = transport(F, D, a, epsilon).W
        for i in range(3):
            torch.testing.assert_close(together[i], transport(F[i], D[i], a[i], epsilon).W, atol=1e-6, rtol=1e-5)
