"""The budget rule, weights, and the way through many pages."""

import math
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pagefacets as pf
from pagefacets.facets.compressor import facet_count


@given(percent=st.integers(1, 100), n=st.integers(1, 5000))
def test_whole_percentages_are_counted_exactly(percent, n):
    assert facet_count(n, percent / 100) == min(n, max(1, -(-percent * n // 100)))
    assert facet_count(n, percent / 100, "floor") == min(n, max(1, percent * n // 100))
    assert facet_count(n, percent / 100, "nearest") == min(n, max(1, (2 * percent * n + 100) // 200))


def test_budget_examples_of_the_paper():
    assert facet_count(100, 0.07) == 7
    assert facet_count(743, 0.1) == 75
    assert facet_count(743, 0.01) == 8
    assert facet_count(743, 0.01, "nearest") == 7
    assert pf.Magic(budget=32).k(743) == 32
    assert pf.Magic(budget=32).k(20) == 20


@given(ratio=st.floats(1e-6, 1.0), n=st.integers(1, 20_000))
def test_budget_is_within_one_of_the_share(ratio, n):
    k = facet_count(n, ratio)
    assert 1 <= k <= n
    assert k == 1 or k - 1 < ratio * n + 1e-6 * n
    assert k >= math.floor(ratio * n)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([1.0, 2.0], r"shape \(3,\)"),
        ([1.0, -1.0, 2.0], "not negative"),
        ([0.0] * 3, "not all zero"),
        ([math.nan] * 3, "finite"),
    ],
)
def test_weights_that_are_no_demand_are_refused(weights, sentence):
    with pytest.raises(pf.InputError, match=sentence):
        pf.Magic(budget=2).compress(np.eye(3, dtype=np.float32), weights=weights)


def test_many_takes_weights_page_by_page(draw):
    pages = [draw(20, seed=i) for i in range(3)]
    weights = [np.arange(1.0, 21.0), np.ones(20), np.ones(20)]
    magic = pf.Magic(budget=4)
    facets = list(magic.compress_many(pages, weights=weights))
    assert torch.equal(facets[0].vectors, magic.compress(pages[0], weights=weights[0]).vectors)
    with pytest.raises(pf.InputError, match="weights end after page 1"):
        list(magic.compress_many(pages, weights=weights[:2]))


def test_many_reads_only_a_window_ahead(draw):
    """Memory stays bounded: pages are asked for as results are taken."""
    asked = 0

    def pages():
        nonlocal asked
        for i in range(2000):
            asked = i + 1
            yield draw(8, 16, seed=1)

    results = pf.Magic(budget=2).compress_many(pages(), pf.CalibrationPool(draw(30, 16)), workers=2)
    next(results)
    assert asked < 400
    results.close()


def test_many_checks_its_arguments_before_the_first_page(draw):
    with pytest.raises(pf.InputError, match="needs a calibration pool"):
        pf.Magic(budget=2).compress_many([draw(8)])
    with pytest.raises(pf.InputError, match="workers must be at least 1"):
        pf.Magic(budget=2, source="uniform").compress_many([draw(8)], workers=0)
    assert list(pf.Magic(budget=2, source="uniform").compress_many([])) == []


def test_batches_of_an_accelerator_equal_single_pages(draw):
    """The batched path itself: pages grouped by length, and one bad page named among good ones."""
    from pagefacets.facets.many import Task, _batch

    magic, pool = pf.Magic(ratio=0.2), pf.CalibrationPool(draw(50, 16))
    pages = [pf.PageVectors(draw(n, 16, seed=n), id=str(n)) for n in (30, 12, 30, 1, 12, 30)]
    batched = _batch(magic, Task(0, "", pages, None), pool, torch.device("cpu"))
    for page, facets in zip(pages, batched, strict=True):
        alone = magic.compress(page, pool)
        assert facets.id == page.id
        torch.testing.assert_close(facets.vectors, alone.vectors, atol=1e-5, rtol=0)
        assert torch.equal(facets.assignment, alone.assignment)
    broken = pf.PageVectors(np.where(np.arange(12)[:, None] == 5, 0, draw(12, 16)), id="broken")
    with pytest.raises(pf.InputError, match=r"row 5 of page 1 \('broken'\)"):
        _batch(magic, Task(0, "", [pages[0], broken], None), pool, torch.device("cpu"))


def test_a_script_needs_no_main_guard(tmp_path):
    """Workers must not run the caller's script again, and an early exit must leave no process behind."""
    script = tmp_path / "user.py"
    script.write_text(
        textwrap.dedent(
            """
            import numpy as np, pagefacets as pf
            print("once", flush=True)
            rng = np.random.default_rng(0)
            pages = [rng.standard_normal((30, 16), dtype=np.float32) for _ in range(100)]
            results = pf.Magic(budget=3, source="uniform").compress_many(pages, workers=2)
            print(next(results).k, flush=True)
            """
        )
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.stdout.split() == ["once", "3"], done.stderr
    assert done.returncode == 0
    assert done.stderr == ""
