"""Every compressor at every ratio: the same numbers as one by one, and what keeps a method out."""

import json
import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import fmean
from typing import ClassVar, final

import numpy as np
import pytest
import torch

import pagefacets as pf
from pagefacets.evidence import compare as module
from pagefacets.evidence.comparison import HEADINGS, Cell, Comparison
from pagefacets.evidence.misalignment import Degradation
from pagefacets.evidence.plots import plot_comparison
from pagefacets.facets.compressor import Compressor, Reduction
from pagefacets.facets.registry import METHODS
from tests.evidence.test_plots import assert_readable

DIM = 16
QUICK = ("identity", "kmeans", "magic", "pool1d", "random", "ward")


def matrix(n, seed):
    return torch.randn(n, DIM, generator=torch.Generator().manual_seed(seed))


def known(n, seed, *, importance=True):
    """A page of 4 columns with two prompt rows, of which every method finds all it needs."""
    patches = torch.arange(n) < n - 2
    weights = torch.rand(n, generator=torch.Generator().manual_seed(seed)).masked_fill(~patches, math.nan)
    return pf.PageVectors(
        matrix(n, seed),
        grid=(4, (n - 2) // 4),
        image_mask=patches,
        importance=weights if importance else None,
        id=f"p{seed}",
    )


@pytest.fixture(scope="module")
def pages():
    return [known(n, seed) for seed, n in enumerate((30, 22, 42, 30, 14, 26, 62))]


@pytest.fixture(scope="module")
def pool():
    return pf.CalibrationPool(matrix(50, 100))


@pytest.fixture(scope="module")
def queries():
    return [matrix(length, 200 + length) for length in (3, 5, 8, 2)]


@pytest.fixture(scope="module")
def every(pages, pool, queries):
    return pf.compare(pages, pool, queries, ratios=(0.05, 0.5, 0.2))


def numbers(found):
    """All but the times, which differ from run to run."""
    return [
        (c.method, c.ratio, c.vectors, c.nbytes, c.covering_error, c.effective_facets, c.degradation)
        for c in found.cells
    ]


def test_every_method_has_every_ratio_once_and_the_whole_page_stands_above(every):
    ratios = [0.5, 0.2, 0.05]
    others = [name for name in METHODS if name != "identity"]
    assert len(others) == 11
    assert every.unable == {}
    assert [(c.method, c.ratio) for c in every.cells] == [("identity", 1.0), *((m, r) for r in ratios for m in others)]
    whole = every.cells[0]
    assert (whole.vectors, whole.nbytes) == (every.vectors, every.nbytes)
    assert whole.covering_error == pytest.approx(0, abs=1e-12)
    assert astuple(whole.degradation) == pytest.approx((0, 0, 0), abs=1e-6)
    assert all(c.ms > 0 for c in every.cells)


def test_the_numbers_are_those_of_diagnosing_the_same_facets(every, pages, pool, queries):
    for cell in every.cells:
        options = {} if cell.method == "identity" else {"ratio": cell.ratio}
        method = pf.compressor(cell.method, **options)
        facets = [method.compress(page, pool) for page in pages]
        found = pf.diagnose_many(pages, facets, queries)
        assert cell.vectors == fmean(one.k for one in facets)
        assert cell.nbytes == fmean(one.nbytes for one in facets)
        assert cell.covering_error == pytest.approx(found.covering_error, rel=1e-9, abs=1e-12)
        assert cell.effective_facets == pytest.approx(found.effective_facets, rel=1e-9)
        assert astuple(cell.degradation) == pytest.approx(astuple(found.degradation), rel=1e-9, abs=1e-12)


def test_a_file_in_two_processes_gives_the_numbers_of_a_list_in_one(pages, pool, queries, tmp_path):
    many = [page for seed in range(6) for page in (*pages, known(18, 50 + seed))]
    renamed = [pf.PageVectors(p.vectors, p.grid, p.image_mask, p.importance, id=f"{i}") for i, p in enumerate(many)]
    pf.save_vectors(tmp_path / "pages.safetensors", renamed)
    with pf.open_vectors(tmp_path / "pages.safetensors") as file:
        there = pf.compare(file, pool, queries, methods=QUICK, workers=2)
        assert file[3].id == "3"
    here = pf.compare(renamed, pool, queries, methods=",".join(QUICK), workers=1)
    assert there.pages == 48
    assert numbers(there) == numbers(here)


def test_without_queries_the_pool_judges_and_the_result_says_so(pages, pool):
    found = pf.compare(pages, pool, methods=QUICK, ratios=[0.2])
    asked = pf.compare(pages, pool, pool.tokens, methods=QUICK, ratios=[0.2])
    assert numbers(found) == numbers(asked)
    assert (found.judged_by, found.tokens, found.queries, found.held_in_pool) == ("pool", 50, None, None)
    (note,) = found.notes
    assert "no queries were given" in note
    assert "the pool's 50 tokens, which magic has seen" in note
    (note,) = pf.compare(pages, pool, methods="ward", ratios=[0.2]).notes
    assert "has seen" not in note


def test_queries_the_pool_was_made_of_are_noticed(pages, pool, queries):
    found = pf.compare(pages, pool, [pool.tokens[:20], pool.tokens[20:40].half()], methods="magic,ward", ratios=[0.2])
    assert found.held_in_pool == pytest.approx(0.8)
    assert "80% of the pool's tokens are among these queries, and magic has seen them" in found.notes[0]
    fair = pf.compare(pages, pool, queries, methods="magic,ward", ratios=[0.2])
    assert (fair.judged_by, fair.queries, fair.tokens) == ("queries", 4, 18)
    assert fair.held_in_pool == 0
    assert fair.notes == ()
    without = pf.compare(pages, pool, [pool.tokens], methods="ward", ratios=[0.2])
    assert without.held_in_pool is None
    assert without.notes == ()


def test_methods_that_cannot_run_say_why_and_stop_nobody(queries):
    bare = [matrix(n, n) for n in (20, 31)]
    found = pf.compare(bare, None, queries, ratios=[0.2])
    assert set(found.unable) == {"colchunk", "docpruner", "magic", "pool2d", "prune-then-merge"}
    assert {c.method for c in found.cells} == set(METHODS) - set(found.unable)
    assert "needs the patch grid, which page '0' lacks" in found.unable["pool2d"]
    assert "needs the importance of each patch, which page '0' lacks" in found.unable["docpruner"]
    assert "magic needs a calibration pool" in found.unable["magic"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_method_that_fails_on_a_late_page_has_no_cell(pool, queries, workers):
    some = [known(14, seed, importance=seed != 8) for seed in range(12)]
    found = pf.compare(some, pool, queries, methods=["docpruner", "ward"], ratios=[0.5, 0.2], workers=workers)
    assert "which page 'p8' lacks" in found.unable["docpruner"]
    assert [c.method for c in found.cells] == ["ward", "ward"]
    assert numbers(found) == numbers(pf.compare(some, pool, queries, methods="ward", ratios=[0.5, 0.2]))


def test_when_no_method_can_run_that_is_an_error(queries):
    with pytest.raises(pf.InputError, match="no method can run on these pages: docpruner needs the importance"):
        pf.compare([matrix(9, 0)], None, queries, methods="docpruner,pool2d", ratios=[0.5])


def test_a_sample_is_drawn_with_its_seed(pages, pool, queries, tmp_path):
    some = [matrix(2 ** (i + 1), i) for i in range(8)]
    pf.save_vectors(tmp_path / "some.npz", [pf.PageVectors(rows) for rows in some])

    def drawn(source, **options):
        return pf.compare(source, pool, queries, methods="random,ward", ratios=[0.5], **options)

    three = {seed: drawn(some, sample=3, seed=seed) for seed in range(6)}
    sizes = {seed: round(found.vectors * 3) for seed, found in three.items()}
    assert all(found.pages == 3 and bin(sizes[seed]).count("1") == 3 for seed, found in three.items())
    assert len(set(sizes.values())) > 1
    assert numbers(drawn(some, sample=3, seed=4)) == numbers(three[4])
    assert numbers(drawn(pf.open_vectors(tmp_path / "some.npz"), sample=3, seed=4)) == numbers(three[4])
    assert numbers(drawn(some, sample=99)) == numbers(drawn(some))


class Generated(Sequence):
    """Pages that exist only while somebody holds them."""

    def __init__(self, count):
        self.count, self.alive, self.most = count, weakref.WeakSet(), 0

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        page = pf.PageVectors(matrix(20, i))
        self.alive.add(page.vectors)
        self.most = max(self.most, len(self.alive))
        return page


def test_pages_are_asked_for_one_by_one_and_let_go(pool, queries):
    source = Generated(40)
    found = pf.compare(source, None, queries, methods="random,ward", ratios=[0.2], workers=1)
    assert found.pages == 40
    assert source.most <= 3


@final
@dataclass(frozen=True, kw_only=True)
class Busy(Compressor):
    """Spends 20 ms of the clock on a page, once for all its budgets."""

    name: ClassVar[str] = "busy"
    clock: ClassVar[list[float]] = [0.0]

    def _reduce(self, D, w, K, pages):
        return self._reduce_each(D, w, [K], pages[0])[0]

    def _reduce_each(self, D, w, budgets, page):
        self.clock[0] += 0.02
        return [Reduction(D[:K], torch.arange(len(D)).clamp(max=K - 1)) for K in budgets]


def test_a_time_is_that_of_the_ratio_alone(queries, monkeypatch):
    monkeypatch.setattr(module, "compressor", lambda name, **options: Busy(**options))
    monkeypatch.setattr(time, "thread_time", lambda: Busy.clock[0])
    for count, timed in ((2, 2), (7, 5)):
        some = [matrix(20, i) for i in range(count)]
        found = pf.compare(some, None, queries, methods="busy", ratios=[0.5, 0.2, 0.1])
        assert found.timed_pages == timed
        for cell in found.cells:
            assert cell.ms == pytest.approx(20)


def test_pages_of_one_row_and_of_copies_make_valid_json(pool):
    odd = [matrix(1, 0), torch.ones(6, DIM), np.eye(DIM, dtype=np.float16)[:5]]
    found = pf.compare(odd, pool, [pool.tokens[:1]])
    text = json.dumps(found.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["pages"] == 3
    assert len(back["cells"]) == len(found.cells)
    assert set(back["cells"][0]) == {
        *("method", "ratio", "vectors_per_page", "bytes_per_page", "ms_per_page"),
        *("covering_error", "effective_facets", "degradation"),
    }
    assert back["unable"].keys() == found.unable.keys()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"methods": "zip"}, "there is no compressor 'zip'"),
        ({"methods": []}, "methods are empty"),
        ({"ratios": []}, "ratios must be a list of shares, got "),
        ({"ratios": [0.5, 2.0]}, r"ratio must lie in \(0, 1\], got 2"),
        ({"ratios": [math.nan]}, "ratio must .*, got nan"),
        ({"sample": 0}, "sample must be a whole number, at least 1, got 0"),
        ({"workers": 0}, "workers must be a whole number, at least 1, got 0"),
        ({"pages": []}, "there are no pages to compare on"),
        ({"pool": None, "queries": None}, "there is nothing to judge by"),
        ({"queries": [torch.ones(3, 5)]}, "the calibration pool has dimension 16 but the queries have 5"),
        ({"pages": [torch.ones(3, 5)]}, "page 0 has dimension 5 but the calibration pool has 16"),
        ({"pages": [torch.ones(3, 5)], "pool": None}, "page 0 has dimension 5 but the query tokens have 16"),
        ({"pages": [torch.ones(3, DIM), torch.zeros(3, DIM)]}, "row 0 of page 1 is zero, NaN or infinite"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(pages, pool, queries, change, sentence):
    arguments = {"pages": pages, "pool": pool, "queries": queries, "methods": "magic,ward", "ratios": [0.2], **change}
    with pytest.raises(pf.InputError, match=sentence):
        pf.compare(**arguments)


def test_a_file_of_facets_is_refused(pages, pool, queries, tmp_path):
    pf.save_vectors(tmp_path / "facets.npz", pf.compressor("ward", ratio=0.5).compress_many(pages))
    with pytest.raises(pf.InputError, match=r"facets\.npz already holds facets"):
        pf.compare(pf.open_vectors(tmp_path / "facets.npz"), pool, queries)


def cell(method, ratio, nbytes, error, active, loss):
    return Cell(method, ratio, nbytes / 32, nbytes, 1.0, error, active, Degradation(loss, loss, loss))


def test_the_table_marks_what_nobody_betters_at_a_ratio():
    cells = (
        cell("identity", 1.0, 3200, 0.0, 50.0, 0.0),
        cell("a", 0.1, 320, 0.20001, 7.0, 0.5),
        cell("b", 0.1, 320, 0.20003, 9.0, 0.3),
        cell("c", 0.1, 640, 0.3, 8.0, 0.4),
    )
    found = Comparison(cells, {}, 1, 100, 3200, "queries", 1, 4, None, (), 1)
    assert HEADINGS == ("method", "vectors", "bytes", "ms", "C_err", "K_eff", "loss", "change")
    rows = found.table()
    assert [row.ratio for row in rows] == [1.0, 0.1, 0.1, 0.1]
    assert rows[2].texts == ("b", "10.0", "320", "1.0", "0.2000", "9.0", "0.3000", "-0.3000")
    marked = [{HEADINGS[place] for place in row.best} for row in rows]
    assert marked == [set(), {"vectors", "bytes", "C_err"}, set(HEADINGS) - {"method", "ms"}, set()]


def test_the_figure_draws_every_method_at_the_bytes_it_leaves(every):
    figure = plot_comparison(every)
    (axes,) = figure.axes
    drawn = {line.get_label(): line for line in axes.lines}
    assert set(drawn) == (set(METHODS) - {"identity"}) | {"the whole page"}
    for method in set(METHODS) - {"identity"}:
        points = sorted([c.nbytes, c.covering_error] for c in every.cells if c.method == method)
        assert sorted(drawn[method].get_xydata().tolist()) == points
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len(looks) == len(drawn)
    assert set(drawn["the whole page"].get_xdata()) == {every.nbytes}
    assert axes.get_xscale() == "log"
    assert_readable(figure)


def test_the_figure_stays_readable_with_many_ratios_and_with_one(pages, pool, queries):
    many = [1.0, 0.9, 0.5, 0.45, 0.25, 0.2, 0.1, 0.09, 0.05, 0.025, 0.01]
    for ratios in (many, [0.1]):
        assert_readable(plot_comparison(pf.compare(pages, pool, queries, methods=QUICK, ratios=ratios)))
    with pytest.raises(pf.InputError, match="curves that can be told apart, got 0"):
        plot_comparison(pf.compare(pages, None, queries, methods="identity"))


@pytest.mark.realdata
def test_on_late_interaction_vectors_magic_covers_unseen_demand_best(realdata):
    with pf.open_vectors(realdata / "lotte-colbertv2" / "dev.npz") as file:
        asked = file.queries()
        pool = pf.CalibrationPool.build(asked[::2], file)
        found = pf.compare(file, pool, asked[1::2], methods="magic,kmeans,ward,pool1d", ratios=[0.05], sample=40)
    error = {c.method: c.covering_error for c in found.cells}
    assert found.notes == ()
    assert error["magic"] < min(error["kmeans"], error["ward"]) < error["pool1d"]
