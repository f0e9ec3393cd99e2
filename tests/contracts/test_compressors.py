"""What every compressor must do, run over every name in the registry."""

import dataclasses
import math
import warnings

import pytest
import torch

import pagefacets as pf
from pagefacets.facets.registry import METHODS

FEWER_SAMPLES = {"voronoi": {"samples": 2000}}
# What leaves a method without axes of its own, which would not turn with the page.
NO_AXES = {"colchunk": {"omega": 0.0}, "voronoi": {"source": "pool"}}


def a_page(n=60, p=16, seed=0, dtype=torch.float32, id=None):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(5, p, generator=generator)
    rows = centres[torch.randint(0, 5, (n,), generator=generator)] + 0.5 * torch.randn(n, p, generator=generator)
    return known(rows.to(dtype), id=id)


def known(rows, outside=(), id=None):
    """A page with all that a method may ask for: a grid, importance, and prompt rows at `outside`."""
    patches = torch.tensor([j not in outside for j in range(len(rows))])
    n = int(patches.sum())
    columns = next(c for c in range(math.isqrt(n), 0, -1) if n % c == 0)
    importance = torch.linspace(1, 2, len(rows)).masked_fill(~patches, math.nan)
    return pf.PageVectors(rows, grid=(columns, n // columns), image_mask=patches, importance=importance, id=id)


def a_pool(p=16):
    return pf.CalibrationPool(torch.randn(80, p, generator=torch.Generator().manual_seed(7)))


@pytest.fixture(params=sorted(METHODS))
def make(request):
    if request.param == "identity":
        return without_budget
    return lambda **options: pf.compressor(request.param, **FEWER_SAMPLES.get(request.param, {}), **options)


def without_budget(*, ratio=None, budget=None, rounding=None, **options):
    """The identity refuses a budget, so that whoever hands it one notices."""
    return pf.compressor("identity", **options)


@pytest.mark.parametrize("ratio", [1.0, 0.5, 0.1, 0.01])
@pytest.mark.parametrize("n", [1, 2, 13, 60])
def test_budget_and_shapes(make, n, ratio):
    method, page = make(ratio=ratio), a_page(n)
    facets = method.compress(page, a_pool())
    assert 1 <= facets.k <= method._budget(page)
    assert method.ratio is None or abs(method.k(n) - max(1, ratio * n)) < 1
    assert facets.vectors.shape == (facets.k, 16)
    assert facets.n == n
    assert facets.nbytes == facets.k * 16 * 4
    assert facets.assignment.min() >= -1
    assert facets.assignment.max() < facets.k
    torch.testing.assert_close(facets.vectors.norm(dim=1), torch.ones(facets.k), atol=1e-5, rtol=0)
    assert float(facets.demand.sum()) == pytest.approx(1, abs=1e-5)


def test_budget_of_all_rows_returns_them_normalised(make):
    page = a_page(9)
    facets = make(budget=9).compress(page, a_pool())
    torch.testing.assert_close(facets.vectors, torch.nn.functional.normalize(page.vectors, dim=1), atol=1e-7, rtol=0)
    assert facets.assignment.tolist() == list(range(9))


def test_same_input_same_bits(make):
    first, second = (make(budget=7).compress(a_page(), a_pool()) for _ in range(2))
    assert torch.equal(first.vectors, second.vectors)
    assert torch.equal(first.assignment, second.assignment)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_keeps_dtype_and_never_touches_its_input(make, dtype):
    page, pool = a_page(dtype=dtype), a_pool()
    before, tokens = page.vectors.clone(), pool.tokens.clone()
    facets = make(budget=7).compress(page, pool)
    assert facets.vectors.dtype == dtype
    assert torch.equal(page.vectors, before)
    assert torch.equal(pool.tokens, tokens)


def test_results_can_be_trained_on(make):
    """Facets are ordinary tensors: a later gradient step may use them."""
    facets = make(budget=7).compress(a_page(), a_pool())
    weight = torch.ones(16, requires_grad=True)
    (facets.vectors * weight).sum().backward()
    assert torch.isfinite(weight.grad).all()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_keeps_the_device_and_agrees_with_the_cpu(make):
    page, pool = a_page(), a_pool()
    there = make(budget=7).compress(page.to("cuda"), pool.to("cuda"))
    here = make(budget=7).compress(page, pool)
    assert there.vectors.device.type == "cuda"
    torch.testing.assert_close(there.vectors.cpu(), here.vectors, atol=1e-4, rtol=0)
    (batched,) = make(budget=7).compress_many([page], pool, device="cuda")
    assert batched.vectors.device.type == "cpu"


def test_rotation_of_page_and_pool_rotates_the_facets(make):
    R, _ = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(1)))
    page, pool, method = a_page(), a_pool(), make(budget=7)
    if method.name in NO_AXES:
        method = pf.compressor(method.name, budget=7, **NO_AXES[method.name])
    facets = method.compress(page, pool)
    rotated = method.compress(known(page.vectors @ R), pf.CalibrationPool(pool.tokens @ R))
    torch.testing.assert_close(facets.vectors @ R, rotated.vectors, atol=1e-4, rtol=0)


def test_duplicates_and_zero_demand(make):
    page = known(torch.eye(16)[torch.tensor([0] * 20 + [1] * 3)])
    weights = torch.zeros(23)
    weights[20:] = 1.0
    covered = make(budget=5).compress(page, a_pool())
    assert ((covered.vectors @ page.vectors.T).max(0).values > 0.999)[covered.assignment >= 0].all()
    asked = make(budget=5).compress(page, a_pool(), weights=weights)
    assert torch.isfinite(asked.vectors).all()
    assert ((asked.vectors @ page.vectors[20:].T).max(0).values > 0.999)[asked.assignment[20:] >= 0].all()


def test_ten_thousand_rows(make):
    method = make(budget=20)
    facets = method.compress(a_page(10_000), a_pool())
    assert facets.k <= method.k(10_000)
    assert torch.isfinite(facets.vectors).all()


def test_every_ratio_at_once_as_one_by_one(make):
    method, page, pool = make(ratio=0.3), a_page(), a_pool()
    ratios = [0.1, 0.5, 0.07, 1.0, 0.06, 0.5]
    if method.ratio is None:
        with pytest.raises(pf.InputError, match="keeps every row"):
            method.compress_ratios(page, ratios, pool)
        return
    together = method.compress_ratios(page, ratios, pool)
    for ratio, facets in zip(ratios, together, strict=True):
        alone = dataclasses.replace(method, ratio=ratio).compress(page, pool)
        assert torch.equal(alone.vectors, facets.vectors)
        assert torch.equal(alone.assignment, facets.assignment)


@pytest.mark.parametrize("workers", [1, 2])
def test_alone_and_among_many(make, workers):
    method, pool = make(ratio=0.2), a_pool()
    pages = [a_page(n, seed=n, id=f"p{n}") for n in (1, 5, 40, 40, 60, 3)]
    together = list(method.compress_many(iter(pages), pool, workers=workers))
    assert [facets.id for facets in together] == [page.id for page in pages]
    for page, facets in zip(pages, together, strict=True):
        alone = method.compress(page, pool)
        assert torch.equal(alone.vectors, facets.vectors)
        assert torch.equal(alone.assignment, facets.assignment)


@pytest.mark.parametrize("bad", [0.0, float("nan"), float("inf")])
def test_refuses_bad_rows_by_page_and_row(make, bad):
    rows = a_page(12).vectors.clone()
    rows[4] = bad
    page = known(rows, id="scan-7")
    with pytest.raises(pf.InputError, match=r"row 4 of page 'scan-7' is zero, NaN or infinite: .*on_bad_rows"):
        make(budget=3).compress(page, a_pool())
    with pytest.raises(pf.InputError, match=r"row 4 of page 1 \('scan-7'\)"):
        list(make(budget=3).compress_many([a_page(12), page], a_pool()))


def test_drops_bad_rows_when_told_to(make):
    rows = a_page(12).vectors.clone()
    rows[4], rows[9] = 0.0, float("nan")
    good = torch.tensor([j for j in range(12) if j not in (4, 9)])
    page = known(rows, outside=(4, 9))
    with pytest.warns(UserWarning, match=r"dropped row 4 \(and 1 more\)"):
        facets = make(budget=3, on_bad_rows="drop").compress(page, a_pool())
    patches = pf.PageVectors(rows[good], page.grid, importance=page.importance[good])
    clean = make(budget=3).compress(patches, a_pool())
    assert torch.equal(facets.vectors, clean.vectors)
    assert facets.assignment[[4, 9]].tolist() == [-1, -1]
    assert torch.equal(facets.assignment[good], clean.assignment)
    with warnings.catch_warnings(), pytest.raises(pf.InputError, match="leave the page out"):
        make(budget=3, on_bad_rows="drop").compress(torch.zeros(3, 16), a_pool())


def test_configuration_comes_back_equal(make):
    method = make(ratio=0.07, rounding="nearest")
    assert pf.compressor(**method.config()) == method
    assert method.ratio is None or dataclasses.replace(method, ratio=0.5).k(10) == 5


def test_an_unknown_option_is_named(make):
    with pytest.raises(pf.InputError, match="has no option 'speed'"):
        make(ratio=0.1, speed="fast")


def test_what_comes_back_belongs_to_the_caller(make):
    facets = make(budget=7).compress(a_page(), a_pool())
    assert not facets.vectors.is_inference()
    facets.demand.mul_(2)
    facets.assignment.add_(1)
