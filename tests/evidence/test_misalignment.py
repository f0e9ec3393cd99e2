import itertools
import math
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pagefacets.errors import InputError
from pagefacets.evidence.misalignment import (
    Bound,
    Degradation,
    Lorenz,
    covering_error,
    degradation,
    effective_facets,
    hard_demand,
    lorenz,
    proposition1,
)

# Float32 inner products of unit vectors are off by about this much.
ROUNDING = 2e-6

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 24)


def rows(count: int, seed: int, dim: int = 8) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def problem(n: int, k: int, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Rows, facets near some of them, and queries of unequal length near others; none of unit norm."""
    g = torch.Generator().manual_seed(seed)
    D = torch.randn(n, 8, generator=g)
    F = D[torch.randint(n, (k,), generator=g)] + 0.5 * torch.randn(k, 8, generator=g)
    lengths = torch.randint(1, 7, (5,), generator=g).tolist()
    queries = [
        3 * D[torch.randint(n, (length,), generator=g)] + torch.randn(length, 8, generator=g) for length in lengths
    ]
    return D, F, queries


def as_floats(matrix: Tensor) -> list[list[float]]:
    units = matrix.double() / matrix.double().norm(dim=1, keepdim=True)
    return [[float(x) for x in row] for row in units]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def selected(q: list[float], D: list[list[float]]) -> int:
    return max(range(len(D)), key=lambda j: (dot(q, D[j]), -j))


def test_demand_of_copies_of_one_row_is_all_on_that_row() -> None:
    D = rows(9, 0)
    assert hard_demand(D, D[4:5].repeat(7, 1)).tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_equal_rows_leave_their_demand_to_the_first() -> None:
    D = rows(5, 1)
    w = hard_demand(torch.cat([D, D, D]), rows(200, 2))
    assert w[5:].tolist() == [0.0] * 10
    torch.testing.assert_close(w[:5], hard_demand(D, rows(200, 2)))


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 30), seeds)
def test_demand_counts_selections(n: int, tokens: int, seed: int) -> None:
    D, Q = rows(n, seed), rows(tokens, seed + 1)
    counts = [0] * n
    for q in as_floats(Q):
        counts[selected(q, as_floats(D))] += 1
    assert hard_demand(D, Q).tolist() == pytest.approx([count / tokens for count in counts])


def test_lorenz_takes_the_top_rows_and_rounds_their_number_up() -> None:
    curve = lorenz(torch.tensor([0.0, 0.2, 0.5, 0.0, 0.3]))
    assert [curve.at(rho) for rho in (0.0, 0.2, 0.21, 0.4, 0.5, 1.0)] == pytest.approx([0, 0.5, 0.8, 0.8, 1, 1])


def test_lorenz_is_not_fooled_by_binary_fractions() -> None:
    uniform = lorenz(torch.ones(100))
    for percent in range(101):
        assert uniform.at(percent / 100) == pytest.approx(percent / 100)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40).filter(lambda w: sum(w) > 1e-3), seeds)
def test_lorenz_is_concave_between_the_diagonal_and_one(weights: list[float], seed: int) -> None:
    curve = lorenz(torch.tensor(weights))
    steps = curve.mass.diff()
    assert bool((steps.diff() <= 1e-12).all())
    assert bool((curve.mass >= curve.rho - 1e-12).all())
    assert curve.mass[0] == 0
    assert curve.mass[-1] == 1
    for rho in (0.0, 0.1, 0.2, 0.55, 1.0):
        assert rho - 1e-12 <= curve.at(rho) <= 1
    shuffled = torch.tensor(weights)[torch.randperm(len(weights), generator=torch.Generator().manual_seed(seed))]
    torch.testing.assert_close(lorenz(shuffled).mass, curve.mass)


def test_the_average_curve_is_the_mean_of_the_pages_curves() -> None:
    curves = [lorenz(rows(n, n, 1).abs().flatten()) for n in (1, 3, 16, 743)]
    average = Lorenz.average(curves)
    for rho in (0.0, 0.01, 0.2, 0.37, 1.0):
        assert average.at(rho) == pytest.approx(sum(curve.at(rho) for curve in curves) / 4)


def test_facets_that_are_the_rows_cover_without_error() -> None:
    D = rows(30, 3)
    assert covering_error(D, 7 * D.flip(0), torch.ones(30)) == pytest.approx(0, abs=1e-13)
    assert covering_error(D, D, torch.ones(30)) == 0


def test_covering_error_of_opposite_and_orthogonal_rows() -> None:
    D = torch.eye(3)
    assert covering_error(D, -D[:1], torch.tensor([1.0, 0, 0])) == pytest.approx(2)
    assert covering_error(D, D[:1], torch.tensor([1.0, 1, 2])) == pytest.approx(0.75)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds)
def test_covering_error_is_the_weighted_mean_of_nearest_losses(n: int, k: int, seed: int) -> None:
    D, F, _ = problem(n, k, seed)
    w = rows(n, seed, 1).abs().flatten() + 0.01
    losses = [min(1 - dot(d, f) for f in as_floats(F)) for d in as_floats(D)]
    expected = sum(float(x) * loss for x, loss in zip(w, losses, strict=True)) / float(w.sum())
    found = covering_error(D, F, w)
    assert found >= 0
    assert found == pytest.approx(expected, abs=ROUNDING)
    assert covering_error(D, torch.cat([F, rows(1, seed)]), w) <= found + ROUNDING


def test_demand_spread_evenly_makes_every_facet_effective() -> None:
    D = torch.eye(6)
    assert effective_facets(D, D, torch.ones(6)) == pytest.approx(6)
    assert effective_facets(D, D[:4], torch.tensor([1.0, 1, 1, 1, 0, 0])) == pytest.approx(4)


def test_demand_on_one_facet_makes_one_effective() -> None:
    D = torch.eye(6)
    assert effective_facets(D, D, torch.tensor([0, 0, 5.0, 0, 0, 0])) == 1
    assert effective_facets(rows(20, 4), rows(1, 5), torch.ones(20)) == 1


def test_effective_facets_of_three_to_one() -> None:
    expected = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    D = torch.eye(4)
    assert effective_facets(D, D[[0, 3]], torch.tensor([3.0, 0, 0, 1])) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, seeds)
def test_effective_facets_lie_between_one_and_their_number(n: int, k: int, seed: int) -> None:
    D, F, queries = problem(n, k, seed)
    found = effective_facets(D, F, hard_demand(D, torch.cat(queries)))
    assert 1 <= found <= min(n, k) + 1e-9


def test_degradation_counts_losses_gains_and_the_offset() -> None:
    D = torch.eye(2)
    F, Q = D[:1], 5 * D
    assert degradation(D, F, Q) == Degradation(positive=0.5, signed=0.5, absolute=0.5)
    assert degradation(D, F, Q, offset=0.5) == Degradation(positive=0.25, signed=0.0, absolute=0.5)
    assert degradation(F, D, Q) == Degradation(positive=0.0, signed=-0.5, absolute=0.5)


def test_the_bound_is_reached_by_a_facet_opposite_to_its_row() -> None:
    d = torch.tensor([[0.0, 2.0]])
    found = proposition1(d, -d, [d.repeat(3, 1), d.repeat(1, 1)])
    assert found.token == Bound(2.0, 2.0, 2.0)
    assert found.query == Bound(4.0, 4.0, 4.0)


def test_rows_without_a_facet_count_for_the_nearest() -> None:
    D = torch.eye(2)
    found = proposition1(D, D, 2 * D, torch.tensor([0, 0])).token
    assert (found.covering, found.surrogate) == pytest.approx((math.sqrt(2) / 2, 1))
    spared = proposition1(D, D, 2 * D, torch.tensor([0, -1])).token
    assert (spared.covering, spared.surrogate) == (0, 0)


def test_facets_that_are_the_rows_lose_nothing() -> None:
    D = rows(12, 6)
    found = proposition1(D, D, [rows(4, 7), rows(9, 8)])
    assert found.token == Bound(0.0, 0.0, 0.0)
    assert found.query == Bound(0.0, 0.0, 0.0)


@settings(max_examples=150, deadline=None)
@given(sizes, sizes, seeds, st.booleans())
def test_proposition1_holds_for_any_assignment(n: int, k: int, seed: int, nearest: bool) -> None:
    D, F, queries = problem(n, k, seed)
    pi = None if nearest else torch.randint(-1, k, (n,), generator=torch.Generator().manual_seed(seed))
    found = proposition1(D, F, queries, pi)
    assert found.query is not None
    for chain in (found.token, found.query):
        assert 0 <= chain.degradation <= chain.covering + 10 * ROUNDING
        assert chain.covering <= chain.surrogate + 1e-12


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds)
def test_proposition1_is_what_the_definitions_say(n: int, k: int, seed: int) -> None:
    D, F, queries = problem(n, k, seed)
    pi = torch.randint(k, (n,), generator=torch.Generator().manual_seed(seed))
    d, f = as_floats(D), as_floats(F)
    units = [as_floats(query) for query in queries]

    def loss(q: list[float]) -> float:
        return max(dot(q, row) for row in d) - max(dot(q, facet) for facet in f)

    W = [0.0] * n
    for q in itertools.chain(*units):
        W[selected(q, d)] += 1 / len(units)
    A = sum(W)
    apart = [distance(d[j], f[pi[j]]) for j in range(n)]
    cosines = [dot(d[j], f[pi[j]]) for j in range(n)]
    tokens = [loss(q) for q in itertools.chain(*units)]
    token = (
        sum(max(0.0, x) for x in tokens) / len(tokens),
        sum(W[j] / A * apart[j] for j in range(n)),
        math.sqrt(2 * sum(W[j] / A * (1 - cosines[j]) for j in range(n))),
    )
    query = (
        sum(max(0.0, sum(loss(q) for q in tokens)) for tokens in units) / len(units),
        sum(W[j] * apart[j] for j in range(n)),
        A * token[2],
    )
    found = proposition1(D, F, queries, pi)
    assert found.query is not None
    for chain, expected in ((found.token, token), (found.query, query)):
        assert (chain.degradation, chain.covering, chain.surrogate) == pytest.approx(expected, abs=20 * ROUNDING)


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, seeds)
def test_nearest_facets_give_the_tightest_bound_and_it_is_the_covering_error(n: int, k: int, seed: int) -> None:
    D, F, queries = problem(n, k, seed)
    tight = proposition1(D, F, queries).token
    loose = proposition1(D, F, queries, torch.zeros(n, dtype=torch.int64)).token
    assert tight.covering <= loose.covering + ROUNDING
    assert tight.surrogate <= loose.surrogate + ROUNDING
    C_err = covering_error(D, F, hard_demand(D, torch.cat(queries)))
    assert tight.surrogate == pytest.approx(math.sqrt(2 * C_err), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 24), sizes, seeds)
def test_nothing_depends_on_the_order_of_rows_facets_or_tokens(n: int, k: int, seed: int) -> None:
    D, F, queries = problem(n, k, seed)
    g = torch.Generator().manual_seed(seed)
    rows_, facets_ = torch.randperm(n, generator=g), torch.randperm(k, generator=g)
    w = hard_demand(D, torch.cat(queries))
    moved = hard_demand(D[rows_], torch.cat(queries[::-1]))
    torch.testing.assert_close(moved, w[rows_])
    assert covering_error(D[rows_], F[facets_], moved) == pytest.approx(covering_error(D, F, w), abs=ROUNDING)
    assert effective_facets(D[rows_], F[facets_], moved) == pytest.approx(effective_facets(D, F, w), rel=1e-6)
    before, after = proposition1(D, F, queries), proposition1(D[rows_], F[facets_], queries[::-1])
    assert before.query is not None
    assert after.query is not None
    for one, other in ((before.token, after.token), (before.query, after.query)):
        assert (one.degradation, one.covering, one.surrogate) == pytest.approx(
            (other.degradation, other.covering, other.surrogate), abs=10 * ROUNDING
        )


def test_half_precision_is_read_as_it_is() -> None:
    D, F, queries = problem(20, 4, 9)
    D, F = D.half(), F.half()
    assert proposition1(D, F, queries) == proposition1(D.float(), F.float(), queries)


def test_loose_tokens_have_no_bound_for_queries() -> None:
    D, F, queries = problem(20, 4, 10)
    loose, whole = proposition1(D, F, torch.cat(queries)), proposition1(D, F, queries)
    assert loose.query is None
    assert loose.token == whole.token


def test_more_tokens_than_one_block_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    D, F, queries = problem(20, 4, 11)
    whole = hard_demand(D, torch.cat(queries)), proposition1(D, F, queries)
    monkeypatch.setattr("pagefacets.evidence.misalignment.BLOCK", 60)
    blocks = hard_demand(D, torch.cat(queries)), proposition1(D, F, queries)
    assert blocks[0].tolist() == whole[0].tolist()
    assert blocks[1].token.degradation == pytest.approx(whole[1].token.degradation, abs=ROUNDING)


@pytest.mark.parametrize("value", [0.0, math.nan, math.inf])
def test_rows_without_direction_are_named(value: float) -> None:
    bad = rows(5, 12)
    bad[3] = value
    with pytest.raises(InputError, match="row 3 of D is zero, NaN or infinite"):
        hard_demand(bad, rows(2, 13))
    with pytest.raises(InputError, match="row 3 of query 1 is zero"):
        proposition1(rows(4, 14), rows(2, 15), [rows(2, 13), bad])


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Annotations as users have them: there for the reader, not checked."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked_shapes")
def test_shapes_that_do_not_fit_are_refused_with_a_sentence() -> None:
    D, F, queries = problem(5, 2, 20)
    with pytest.raises(InputError, match="each of 5 rows, got shape \\(4,\\)"):
        covering_error(D, F, torch.ones(4))
    with pytest.raises(InputError, match="share one dimension, got 8 and 6"):
        effective_facets(D, F[:, :6], torch.ones(5))
    with pytest.raises(InputError, match="share one dimension, got 8 and 6"):
        degradation(D[:, :6], F, torch.cat(queries))
    with pytest.raises(InputError, match=r"each of 5 rows .* got shape \(4,\)"):
        proposition1(D, F, queries, torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("w", "said"),
    [
        (torch.zeros(5), "not all zero"),
        (torch.tensor([1.0, 1, 1, 1, -1]), "not negative"),
        (torch.tensor([1.0, 1, 1, 1, torch.nan]), "finite"),
        (torch.tensor([1.0, 1, 1, 1, torch.inf]), "finite"),
    ],
)
def test_weights_that_are_no_demand_are_refused(w: Tensor, said: str) -> None:
    for measure in (covering_error, effective_facets):
        with pytest.raises(InputError, match=said):
            measure(rows(5, 16), rows(2, 17), w)


def test_an_assignment_to_no_facet_is_refused() -> None:
    D, F, queries = problem(5, 2, 18)
    with pytest.raises(
        InputError, match="5 rows one of 2 facets, counted from 0, got shape \\(5,\\) with values up to 2"
    ):
        proposition1(D, F, queries, torch.tensor([0, 1, 2, 0, 0]))


def test_queries_must_be_matrices_of_one_width() -> None:
    D, F, _ = problem(5, 2, 19)
    with pytest.raises(InputError, match="queries are empty"):
        proposition1(D, F, [])
    with pytest.raises(InputError, match="query 2 has dimension 7 but query 0 has 8"):
        proposition1(D, F, [rows(2, 0), rows(3, 1), rows(2, 2, 7)])
    with pytest.raises(InputError, match="got shape \\(8,\\)"):
        proposition1(D, F, D[0])


@pytest.mark.parametrize("rho", [-0.1, 1.1, math.nan])
def test_shares_outside_zero_to_one_are_refused(rho: float) -> None:
    with pytest.raises(InputError, match="rho must lie in"):
        lorenz(torch.ones(3)).at(rho)
