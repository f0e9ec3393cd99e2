"""The demand estimator: the formula, its limit, and temperatures where float32 would underflow."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagefacets.facets.demand import soft_demand
from tests.facets import oracle


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 300),
    tokens=st.integers(1, 700),
    tau=st.sampled_from([1e-3, 0.01, 0.03, 0.05, 1.0]),
)
def test_equals_the_formula_in_float64(seed, n, tokens, tau):
    rng = np.random.default_rng(seed)
    D, Q = oracle.unit(rng.standard_normal((n, 16))), oracle.unit(rng.standard_normal((tokens, 16)))
    w = soft_demand(torch.from_numpy(D).float(), torch.from_numpy(Q).float(), tau)
    np.testing.assert_allclose(w, oracle.demand(D, Q, tau), atol=3e-4 * 0.01 / tau if tau < 0.01 else 2e-5, rtol=0)
    assert float(w.sum()) == pytest.approx(1, abs=1e-5)


def test_small_temperature_counts_what_maxsim_selects():
    D = torch.eye(6)
    Q = torch.nn.functional.normalize(torch.eye(6)[[0, 0, 0, 2, 5]] + 0.01, dim=1)
    torch.testing.assert_close(soft_demand(D, Q, 1e-3), torch.tensor([3, 0, 1, 0, 0, 1]) / 5, atol=1e-6, rtol=0)


def test_opposite_rows_do_not_underflow():
    D = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    for tau in (1e-3, 0.01, 0.03, 0.05):
        w = soft_demand(D, torch.tensor([[1.0, 0.0]]), tau)
        assert torch.isfinite(w).all()
        assert w[0] > 0.999


def test_a_batch_is_its_members():
    D = torch.nn.functional.normalize(torch.randn(3, 40, 16), dim=-1)
    Q = torch.nn.functional.normalize(torch.randn(500, 16), dim=-1)
    for tau in (0.01, 0.05):
        together = soft_demand(D, Q, tau)
        for i in range(3):
            torch.testing.assert_close(together[i], soft_demand(D[i], Q, tau), atol=1e-7, rtol=1e-4)
