"""A benchmark's numbers against the same work done by hand, what it keeps on disk, and what it refuses."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import pytrec_eval
import torch

import pagefacets as pf
from pagefacets.evidence import runner
from pagefacets.evidence.cells import Measured
from pagefacets.evidence.labelled import Labelled, open_labelled
from pagefacets.evidence.suites import SUITES, hub_ids, known
from pagefacets.evidence.sweep import PoolSpec, Sweep, budgets, figure5, figure6, figure9, setting, table2
from pagefacets.facets.registry import METHODS
from tests.evidence.corpora import DIM, labelled
from tests.vectors.hashed import HashedEncoder

QUICK = "identity,kmeans,magic,pool1d"


@pytest.fixture(scope="module")
def data():
    return labelled()


@pytest.fixture(scope="module")
def quick(data):
    return pf.benchmark(data, QUICK, [0.5, 0.1])


def by_hand(data, method, pool, asked, measure="ndcg_cut.5"):
    """Compress one page after another, score by the float64 definition, and ask pytrec_eval."""
    facets = [method.compress(page, pool) for page in data.pages]
    run = {
        data.query_ids[q]: dict(
            zip(
                data.page_ids,
                np.float32([maxsim64(data.queries[q], one.vectors) for one in facets]).tolist(),
                strict=True,
            )
        )
        for q in asked
    }
    found = pytrec_eval.RelevanceEvaluator(data.qrels, {measure}).evaluate(run)
    return [found[data.query_ids[q]][measure.replace(".", "_")] for q in asked]


def maxsim64(query, rows):
    return float((query.double() @ rows.double().T).amax(1).sum())


def numbers(report):
    """All but the times, which differ from run to run."""
    return {
        (name, one.label, one.ratio): (cell.vectors, cell.nbytes, cell.counts, *map(tuple, cell.values.values()))
        if isinstance(cell, Measured)
        else cell.why
        for (name, one), cell in report.cells.items()
    }


def test_all_vectors_score_as_pytrec_eval_scores_their_maxsim(data, quick):
    whole = quick.row("identity")
    expected = by_hand(data, pf.compressor("identity"), None, data.asked)
    assert quick.strata(whole.setting)[0].tolist() == expected
    assert whole.measures["ndcg@5"].mean == pytest.approx(np.mean(expected))
    assert whole.vectors == np.mean([len(page) for page in data.pages])
    assert whole.nbytes == whole.vectors * DIM * 4
    assert 0 < np.mean(expected) < 1


def test_a_method_without_a_pool_is_measured_on_all_queries_at_once(data, quick):
    for ratio in (0.5, 0.1):
        row = quick.row("kmeans", ratio)
        assert quick.strata(row.setting)[0].tolist() == by_hand(
            data, pf.compressor("kmeans", ratio=ratio), None, data.asked
        )
        assert row.vectors == np.mean([len(pf.compressor("kmeans", ratio=ratio).compress(p)) for p in data.pages])


def test_a_split_measures_every_query_with_the_pool_of_the_other_half(data, quick):
    even, odd = data.asked[::2], data.asked[1::2]
    for ratio in (0.5, 0.1):
        expected = {}
        for calibration, measured in ((even, odd), (odd, even)):
            pool = pf.CalibrationPool.build([data.queries[i] for i in calibration], data.pages, seed=0)
            found = by_hand(data, pf.Magic(ratio=ratio), pool, measured, "recall.5")
            expected |= dict(zip(measured, found, strict=True))
        row = quick.row("magic", ratio)
        found = quick.strata(row.setting, quick.measures[1])[0]
        assert found.tolist() == [expected[i] for i in data.asked]


def test_every_method_has_every_ratio_and_those_that_lack_something_say_what():
    report = pf.benchmark(labelled(pages=4, queries=4), "all", [0.2, 0.1])
    lacking = {one.label for one in report.unable}
    assert lacking == {"colchunk", "docpruner", "pool2d", "prune-then-merge"}
    assert {why.split(" needs ")[1].split(",")[0] for why in report.unable.values()} >= {"the patch grid"}
    assert {row.setting.label for row in report.rows} == set(METHODS) - lacking
    assert [row.setting.ratio for row in report.rows if row.setting.label == "ward"] == [0.2, 0.1]


def test_pages_that_know_their_patches_run_with_every_method():
    methods = sorted({*METHODS} - {"voronoi"})
    report = pf.benchmark(labelled(bare=False), methods, [0.2], measures="mrr")
    assert report.unable == {}
    assert [row.setting.method for row in report.rows] == methods


def test_worker_processes_find_the_same(data, quick):
    report = pf.benchmark(data, QUICK, [0.5, 0.1], workers=2)
    assert numbers(report) == numbers(quick)


def test_where_pools_come_from(data, tmp_path):
    """A pool, its file, and data to choose one from give the numbers of that pool on all queries."""
    other = labelled("other", seed=5)
    pool = pf.CalibrationPool.build(other.queries, other.pages)
    pool.save(tmp_path / "pool.safetensors")
    pages, queries = np.concatenate([p.vectors for p in other.pages]), np.stack(other.queries)
    offsets = np.cumsum([0, *map(len, other.pages)])
    np.savez(tmp_path / "other.npz", page_vectors=pages, page_offsets=offsets, query_vectors=queries)
    expected = by_hand(data, pf.Magic(ratio=0.1), pool, data.asked)
    for source in (pool, tmp_path / "pool.safetensors", tmp_path / "other.npz"):
        report = pf.benchmark(data, "magic", [0.1], pool=source)
        assert report.strata(report.rows[0].setting)[0].tolist() == expected
    none = pf.benchmark(data, "magic,ward", [0.1], pool=None)
    assert [row.setting.label for row in none.rows] == ["ward"]
    assert "needs a calibration pool" in next(iter(none.unable.values()))
    own = pf.CalibrationPool.build(data.queries, data.pages)
    assert any("100% of the pool's tokens are among the queries" in note for note in none.notes) is False
    seen = pf.benchmark(data, "magic", [0.1], pool=own)
    assert any("100% of the pool's tokens are among the queries of small" in note for note in seen.notes)


def test_pools_of_other_variants_and_sizes_are_chosen_so(data):
    one = setting("magic", 0.1, pool=PoolSpec(variant="random", size=7), label="seven at random")
    report = pf.benchmark(data, sweeps=Sweep("own", "A pool of one's own", (one,)), seed=3)
    expected = {}
    even, odd = data.asked[::2], data.asked[1::2]
    for calibration, measured in ((even, odd), (odd, even)):
        queries = [data.queries[i] for i in calibration]
        pool = pf.CalibrationPool.build(queries, data.pages, variant="random", size=7, seed=3)
        assert len(pool) == 7
        expected |= dict(zip(measured, by_hand(data, pf.Magic(ratio=0.1), pool, measured), strict=True))
    assert report.strata(one)[0].tolist() == [expected[i] for i in data.asked]
    given = pf.benchmark(data, sweeps=report.sweeps, pool=pf.CalibrationPool(data.queries[0]))
    assert "chooses its own calibration pool (variant=random, size=7" in given.unable[one]


def test_a_run_goes_on_where_it_stopped_and_another_does_not_mix_with_it(data, quick, tmp_path, monkeypatch):
    folder = tmp_path / "results"
    first = pf.benchmark(data, "identity,kmeans", [0.5], results=folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    pf.benchmark(data, QUICK, [0.5, 0.1], results=folder)
    whole = pf.benchmark(data, QUICK, [0.5, 0.1], results=folder)
    assert numbers(whole) == numbers(quick)
    assert {path: path.stat().st_mtime_ns for path in before} == before

    def never(*arguments):
        raise AssertionError("a finished cell was made again")

    with monkeypatch.context() as patched:
        patched.setattr(runner, "_work", never)
        again = pf.benchmark(data, QUICK, [0.5, 0.1], results=folder)
        assert again.to_dict() == whole.to_dict()
        for changed in (
            {"seed": 1},
            {"measures": "ndcg@3"},
            {"pool": pf.CalibrationPool(data.queries[0])},
            {"data": replace(data, qrels={"q0": {"small-3": 1}, "q1": {"small-1": 1}})},
        ):
            with pytest.raises(AssertionError, match="made again"):
                pf.benchmark(**{"data": data, "methods": "magic", "ratios": [0.5], "results": folder, **changed})
        # What reads no pool does not depend on where pools come from.
        pf.benchmark(data, "kmeans", [0.5], results=folder, pool=None)
    assert numbers(first).items() <= numbers(whole).items()


def test_a_damaged_cell_is_made_again(data, tmp_path):
    folder = tmp_path / "results"
    found = pf.benchmark(data, "kmeans", [0.5], results=folder)
    for path in (folder / "cells").iterdir():
        path.write_text(path.read_text()[:40])
    assert numbers(pf.benchmark(data, "kmeans", [0.5], results=folder)) == numbers(found)
    kept = [json.loads(path.read_text()) for path in (folder / "cells").iterdir()]
    assert sum("values" in one for one in kept) == 1


def test_a_reason_is_kept_like_a_number(data, tmp_path, monkeypatch):
    found = pf.benchmark(data, "docpruner,ward", [0.5], results=tmp_path / "results")
    monkeypatch.setattr(runner, "_work", None)
    assert pf.benchmark(data, "docpruner,ward", [0.5], results=tmp_path / "results").unable == found.unable


def test_a_method_that_fails_on_a_late_page_leaves_the_others_running(data):
    pages = [replace_page(page, bare=i < len(data.pages) - 1) for i, page in enumerate(labelled(bare=False).pages)]
    report = pf.benchmark(replace(data, pages=pages[::-1]), "pool2d,ward", [0.5])
    assert [row.setting.label for row in report.rows] == ["ward"]
    assert "pool2d needs the patch grid, which page 'small-16'" in next(iter(report.unable.values()))


def replace_page(page, *, bare):
    return pf.PageVectors(page.vectors, id=page.id) if bare else page


def test_the_average_counts_every_data_set_and_every_language_once():
    one = labelled("one", queries=9, languages=["english", "french", "english"] * 3)
    two = labelled("two", queries=5, seed=1)
    report = pf.benchmark([one, two], "kmeans", [0.2])
    assert [group.name for group in report.groups] == ["one english", "one french", "two"]
    row = report.rows[0]
    values = report.cells["one", row.setting].values["ndcg@5"]
    french = [1, 4, 7]
    parts = [
        np.delete(values, french).mean(),
        values[french].mean(),
        report.cells["two", row.setting].values["ndcg@5"].mean(),
    ]
    assert list(row.groups.values()) == pytest.approx(parts)
    assert row.measures["ndcg@5"].mean == pytest.approx(np.mean(parts))
    alone = pf.benchmark(two, "kmeans", [0.2])
    assert alone.strata(row.setting)[0].tolist() == report.strata(row.setting)[2].tolist()


def test_queries_without_judgement_are_left_out_and_said(data):
    some = labelled("some", queries=11, unjudged=3)
    report = pf.benchmark(some, "identity")
    assert len(report.strata(report.rows[0].setting)[0]) == 8
    assert "some: 3 of its queries have no judgement and are left out" in report.notes
    gone = replace(some, qrels={**some.qrels, "q0": {"nowhere": 1}})
    lost = pf.benchmark(gone, "identity")
    assert lost.strata(lost.rows[0].setting)[0][0] == 0
    assert "some: 1 judgements name pages that it does not have: they are never found" in lost.notes


def test_few_calibration_tokens_are_said(data, quick):
    assert any("there are 25 calibration tokens to choose from, so a pool of 1,000 holds" in n for n in quick.notes)


def test_a_lead_is_that_of_the_queries_own_differences(quick):
    ours, theirs = quick.row("magic", 0.1).setting, quick.row("pool1d", 0.1).setting
    found = quick.leads[ours, theirs]
    differences = quick.strata(ours)[0] - quick.strata(theirs)[0]
    assert found.difference == pytest.approx(differences.mean())
    assert found.low <= found.difference <= found.high
    assert {pair[0].label for pair in quick.leads} == {"magic"}
    assert quick.paired(theirs, ours, "ndcg@5").difference == pytest.approx(-found.difference)


def test_a_cache_keeps_its_graded_labels_and_languages(tmp_path):
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "pages.jsonl").write_text(
        "".join(json.dumps({"id": f"p{i}", "text": f"word{i} other{i} both"}) + "\n" for i in range(8))
    )
    (pages / "queries.jsonl").write_text(
        "".join(
            json.dumps({"query": f"word{i} both", "relevant": [f"p{i}"], "language": "en" if i % 2 else "fr"}) + "\n"
            for i in range(8)
        )
    )
    cache = pf.encode(pages, HashedEncoder(), tmp_path / "cache")
    opened = open_labelled(cache)
    assert (opened.name, opened.page_ids, opened.languages[:2]) == (
        "cache",
        tuple(f"p{i}" for i in range(8)),
        ("fr", "en"),
    )
    assert opened.qrels == {f"{i}": {f"p{i}": 1} for i in range(8)}
    for source in (cache, tmp_path / "cache", cache.path):
        report = pf.benchmark(source, "identity,pool2d", [0.5])
        assert report.row("identity").measures["mrr"].mean == 1
        assert [group.name for group in report.groups] == ["cache fr", "cache en"]
    # The hashed encoder gives every page a grid.
    assert report.unable == {}


def test_packed_vectors_are_found_in_their_folder_and_called_by_number(data, tmp_path):
    folder = tmp_path / "packed"
    folder.mkdir()
    arrays = {
        "page_vectors": np.concatenate([page.vectors for page in data.pages]),
        "page_offsets": np.cumsum([0, *map(len, data.pages)]),
        "query_vectors": np.stack(data.queries),
    }
    np.savez(folder / "dev.npz", **arrays, qrels=np.array([(i, i) for i in range(11)]))
    opened = open_labelled(folder)
    assert (opened.name, opened.page_ids[:2], opened.query_ids[:2]) == ("packed", ("0", "1"), ("0", "1"))
    assert opened.qrels["3"] == {"3": 1}
    assert open_labelled(folder / "dev.npz").name == "dev"
    np.savez(folder / "plain.npz", **arrays)
    with pytest.raises(pf.InputError, match=r"several files of vectors \(dev\.npz, plain\.npz\): name one"):
        open_labelled(folder)
    with pytest.raises(pf.InputError, match=r"plain\.npz has no labelled queries"):
        open_labelled(folder / "plain.npz")


def test_what_cannot_be_measured_is_refused_in_a_sentence(data, tmp_path):
    other = labelled("small", seed=2)
    wide = Labelled.of("wide", [torch.eye(5)], [torch.eye(5)], {"0": {"0": 1}})
    cases = [
        ({"data": [data, other]}, "two data sets are called 'small'"),
        ({"data": [data, wide]}, r"dimensions \[5, 12\]"),
        ({"data": []}, "there is no data"),
        ({"methods": "magick"}, "there is no compressor 'magick'"),
        ({"ratios": []}, "ratios must be a list of shares"),
        ({"ratios": [2.0]}, r"ratio must lie in \(0, 1\]"),
        ({"measures": "ndcg"}, "there is no measure 'ndcg'"),
        ({"pool": tmp_path / "none.safetensors"}, "there is no pool"),
        ({"pool": pf.CalibrationPool(torch.eye(5))}, "dimension"),
        ({"results": tmp_path / "no" / "such"}, "does not exist: create it first"),
        ({"workers": 0}, "workers must be"),
        ({"sweeps": []}, "sweeps must be one or several Sweep objects"),
    ]
    for options, said in cases:
        with pytest.raises(pf.InputError, match=said):
            pf.benchmark(**{"data": data, "methods": "magic", "ratios": [0.5], **options})
    (tmp_path / "mine.txt").write_text("notes")
    with pytest.raises(pf.InputError, match="holds other things than a benchmark's results"):
        pf.benchmark(data, "magic", [0.5], results=tmp_path)
    alone = Labelled.of("alone", [torch.eye(3)], [torch.eye(3)], {"0": {"0": 1}})
    with pytest.raises(pf.InputError, match="alone has 1 judged query, too few to split"):
        pf.benchmark(alone, "magic", [0.5])
    with pytest.raises(pf.InputError, match="no judged query"):
        Labelled.of("none", [torch.eye(3)], [torch.eye(3)], {})
    with pytest.raises(pf.InputError, match="query '0' of odd has dimension 3 and its pages have 2"):
        Labelled.of("odd", [torch.eye(2)], [torch.eye(3)], {"0": {"0": 1}})


def test_a_report_says_what_there_is_when_asked_for_what_there_is_not(data, quick):
    with pytest.raises(pf.InputError, match=r"no magic at 0.3 in this report: it ran at 0.1, 0.5"):
        quick.row("magic", 0.3)
    with pytest.raises(pf.InputError, match="there are identity, kmeans, magic, pool1d"):
        quick.row("ward")
    bare = pf.benchmark(data, "docpruner,ward", [0.5])
    with pytest.raises(pf.InputError, match="docpruner could not run: docpruner needs the importance"):
        bare.row("docpruner")


def test_the_papers_sweeps_are_lists_of_settings_that_run():
    assert [(one.label, dict(one.options)) for one in table2([0.1]).settings] == [
        ("MAGIC", {}),
        ("w/o source", {"source": "uniform"}),
        ("w/o target", {"target": "free"}),
        ("w/o Lloyd", {"readout": "transport"}),
    ]
    assert len(table2().settings) == 24
    for sweep, axis in zip((*figure5(), *figure9()), ("outer", "epsilon", "inner", "tau", "eta"), strict=True):
        assert sweep.axis == axis
        # The paper's default is among the values, and is the plain method.
        assert [one.ratio for one in sweep.settings if one.plain == "magic"] == [0.1, 0.05]
        assert len({(one.option(axis), one.ratio) for one in sweep.settings}) == len(sweep.settings)
    variants, sizes = figure6()
    assert [one.pool.variant for one in variants.settings[:4]] == ["magic", "no-visual", "no-diversity", "random"]
    assert {one.pool.size for one in sizes.settings} == {50, 100, 200, 500, 1000, 2000}
    assert len(budgets().settings) == 1 + 11 * 6


def test_settings_that_come_to_the_same_are_measured_once(data, tmp_path):
    """MAGIC with its defaults is part of every sweep of it."""
    outer = [setting("magic", 0.1, outer=n, label=f"{n} rounds") for n in (1, 5)]
    sweeps = [Sweep("a", "a", tuple(outer), "outer"), budgets("magic", [0.1])]
    report = pf.benchmark(data, sweeps=sweeps, results=tmp_path / "results")
    cells = [json.loads(path.read_text()) for path in (tmp_path / "results" / "cells").iterdir()]
    assert sum("values" in one for one in cells) == 2
    found = {label: report.strata(report.row(label).setting)[0].tolist() for label in ("1 rounds", "5 rounds", "magic")}
    assert found["5 rounds"] == found["magic"] != found["1 rounds"]


def test_a_budget_can_be_a_count(data):
    one = setting("magic", budget=3, label="three facets")
    report = pf.benchmark(data, sweeps=Sweep("fixed", "Three facets", (one,)))
    assert report.rows[0].vectors == 3
    assert one.nominal is None


def test_the_papers_data_sets_go_by_every_name_of_theirs():
    assert [task.name for task in SUITES["vidore-v1"].tasks] == ["ArxivQ", "DocQ", "InfoQ", "TabF", "TATQ", "Shift"]
    assert hub_ids("vidore-v1") == tuple(task.hub for task in SUITES["vidore-v1"].tasks)
    for name in ("docq", "VidoreDocVQARetrieval", "vidore/docvqa_test_subsampled_beir", "docvqa_test_subsampled_beir"):
        assert hub_ids(name) == ("vidore/docvqa_test_subsampled_beir",)
    assert known("mteb/docvqa_test_subsampled_beir@main").queries == 451
    assert hub_ids("reports") == ()
    assert sum(task.languages * task.queries for task in SUITES["vidore-v2"].tasks) == 4 * (57 + 58 + 160)


@pytest.mark.slow
def test_mteb_knows_the_data_sets_by_these_names():
    mteb = pytest.importorskip("mteb")
    for suite in SUITES.values():
        for task in suite.tasks:
            if task.mteb is not None:
                path = mteb.get_task(task.mteb).metadata.dataset["path"]
                assert path.lower() in task.names


def test_a_data_set_of_another_size_than_described_is_said(data):
    odd = replace(data, name="DocQ")
    assert odd.notes == ("DocQ: it should have 500 pages and 451 queries, by its description",)


@pytest.mark.slow
@pytest.mark.realdata
def test_magic_keeps_what_it_should_of_colbertv2(realdata):
    """Pool from 25 queries, measured on the other 25, both ways."""
    path = realdata / "lotte-colbertv2"
    if not path.exists():
        pytest.skip(f"no labelled vectors at {path}")
    report = pf.benchmark(path, "identity,magic", [0.1, 0.05, 0.025, 0.01])
    assert 100 * report.whole.measures["ndcg@5"].mean == pytest.approx(94.9, abs=0.1)
    found = [100 * report.row("magic", ratio).measures["ndcg@5"].mean for ratio in (0.1, 0.05, 0.025, 0.01)]
    assert found == pytest.approx([93.2, 88.5, 84.7, 78.1], abs=1)


def test_times_are_taken_and_shared_by_equal_sizes(quick, data):
    kmeans, magic = quick.row("kmeans", 0.1), quick.row("magic", 0.1)
    assert kmeans.query_ms == magic.query_ms > 0
    assert magic.ms > 0
    assert quick.machines == (runner.machine(),)
    assert f"{os.cpu_count()} cores" in quick.machines[0]
