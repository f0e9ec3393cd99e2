"""The budget rule, weights, and the way through many pages."""

import math
import os
import subprocess
import sys
import textwrap
import time

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


def test_numbers_of_numpy_are_numbers():
    code = """
import json, numpy as np, pagefacets as pf
method = pf.Magic(budget=np.int64(4), tau=np.float32(0.05), source="uniform")
assert pf.compressor(**json.loads(json.dumps(method.config()))) == method
assert pf.Magic(ratio=np.float64(0.1), source="uniform").compress(np.eye(40, dtype=np.float32)).k == 4
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ("pf.Magic(budget=32.0)", "budget must be a whole number"),
        ("pf.Magic(budget=True)", "budget must be a whole number"),
        ("pf.Magic(ratio=0.1, inner=5.0)", "inner must be a whole number"),
        ("pf.Magic(ratio=0.1, eta='a')", "eta must be a number"),
        ("pf.Magic(ratio=0.1, keep_plan='no')", "keep_plan must be one of True, False"),
        ("pf.Magic(budget=3, rounding='floor')", "has no effect without a ratio"),
        ("m.compress_many(pf.PageVectors([[1.0, 2.0]]))", "put the page in a list"),
        ("pf.Magic(ratio=0.1).compress([[1.0, 2.0]], 'pool.safetensors')", "pool must be a CalibrationPool, got str"),
        ("pf.PageVectors([[1.0, 2.0], [3.0]])", "rows of equal length"),
        ("m.compress_many([[[1.0, 2.0]]], device='cuda')", "PyTorch sees no CUDA device"),
    ],
)
def test_likely_slips_are_one_sentence(call, sentence):
    """Where nothing checks types at run time, as for users."""
    if "cuda" in call and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    code = f"import pagefacets as pf\nm = pf.Magic(ratio=0.1, source='uniform')\n{call}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("pagefacets.errors.InputError"), done.stderr
    assert sentence in done.stderr


def test_lists_are_kept_as_float32():
    assert pf.Magic(budget=1, source="uniform").compress([[1.0, 2.0], [2.0, 1.0]]).vectors.dtype == torch.float32


def test_a_page_kept_whole_has_the_plan_it_is_asked_for():
    facets = pf.Magic(budget=3, keep_plan=True, source="uniform").compress(torch.eye(3))
    assert facets.evidence(1, weights="transport").tolist() == [0.0, 1.0, 0.0]


def test_warnings_of_workers_reach_the_caller(draw):
    bad = draw(40, 16)
    bad[3] = 0
    method = pf.Magic(budget=4, source="uniform", on_bad_rows="drop")
    pages = [draw(40, 16)] * 3000 + [bad]
    results = method.compress_many(pages, workers=2)
    next(results)
    time.sleep(4)
    with pytest.warns(UserWarning, match="dropped row 3 of page 3000"):
        assert sum(1 for _ in results) == 3000


def test_a_daemonic_process_works_alone_unless_told_otherwise(tmp_path):
    (tmp_path / "user.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing
            import numpy as np
            import pagefacets as pf

            def job(workers):
                pages = [np.random.default_rng(i).standard_normal((9, 8), dtype=np.float32) for i in range(600)]
                try:
                    return len(list(pf.Magic(budget=2, source="uniform").compress_many(pages, workers=workers)))
                except pf.InputError as error:
                    return str(error)

            if __name__ == "__main__":
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(*pool.map(job, [None, 2]), sep="\\n")
            """
        )
    )
    done = subprocess.run([sys.executable, tmp_path / "user.py"], capture_output=True, text=True, check=True)
    alone, refused = done.stdout.splitlines()
    assert alone == "600"
    assert "pass 1" in refused
