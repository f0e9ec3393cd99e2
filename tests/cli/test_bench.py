"""pagefacets bench as a user types it: the results folder, kill -9 and on, Ctrl-C, and bad input."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tests import processes
from tests.evidence.corpora import labelled


def command(*arguments):
    return [sys.executable, "-m", "pagefacets", "bench", *map(str, arguments)]


@pytest.fixture
def run(tmp_path):
    """The command as typed in an empty folder, in a process that has the library loaded."""
    numbers = itertools.count()

    def typed(*arguments):
        folder = tmp_path / f"typed-{next(numbers)}"
        folder.mkdir()
        return processes.command(folder, "bench", *arguments)

    return typed


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """A folder as labelled vectors come: one file of pages, queries and qrels."""
    return pack(tmp_path_factory.mktemp("bench") / "small", pages=60, queries=24)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """Enough for a slow method to be caught at work."""
    return pack(tmp_path_factory.mktemp("bench") / "few", pages=12, queries=6)


def pack(folder, *, pages, queries):
    folder.mkdir()
    data = labelled(pages=pages, queries=queries)
    np.savez(
        folder / "dev.npz",
        page_vectors=np.concatenate([page.vectors for page in data.pages]),
        page_offsets=np.cumsum([0, *map(len, data.pages)]),
        query_vectors=np.stack(data.queries),
        qrels=np.array([(i, j) for i in range(queries) for j in (i, i + 1)]),
    )
    return folder


def cells(folder):
    """Finished cells by name: what was measured, and when the file was written."""
    found = {}
    for path in (folder / "cells").glob("[0-9a-f]*.json"):
        one = json.loads(path.read_text())
        if "values" in one:
            found[path.name] = ({**one, "ms": None}, path.stat().st_mtime_ns)
    return found


def test_a_benchmark_prints_its_table_and_leaves_a_report(packed, run, tmp_path):
    results = tmp_path / "results"
    arguments = (packed, "--methods", "identity,magic,ward,docpruner", "--ratios", "0.5,.1", "-o", results)
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "measuring" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "Methods at every budget"
    assert lines[1].startswith("nDCG@5 × 100 by share kept (all vectors: ")
    assert [line.split()[0] for line in lines[2:5]] == ["method", "magic", "ward"]
    assert "24 judged queries on 60 pages; intervals are 95% bootstrap intervals" in done.stdout
    assert "docpruner cannot run: docpruner needs the importance of each patch" in done.stdout
    assert f"the whole report: {results / 'report.html'}" in done.stdout
    assert f"pagefacets bench {packed}" in (results / "report.html").read_text()

    plain = run(
        packed, "--methods", "identity,magic,ward,docpruner", "--ratios", "0.5,.1", "-o", results, "--json", "-q"
    )
    assert plain.stderr == ""
    found = json.loads(plain.stdout)
    assert found == json.loads((results / "report.json").read_text())
    assert [(row["label"], row["ratio"]) for row in found["rows"]] == [
        ("identity", None),
        ("magic", 0.5),
        ("magic", 0.1),
        ("ward", 0.5),
        ("ward", 0.1),
    ]
    shown = f"{100 * found['rows'][2]['measures']['ndcg@5']['mean']:.1f}"
    assert lines[3].split() == ["magic", f"{100 * found['rows'][1]['measures']['ndcg@5']['mean']:.1f}", shown]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_as_one_that_nothing_happened_to(few, run, tmp_path):
    arguments = (few, "--methods", "kmeans,light-colpali,ward,voronoi", "--ratios", "0.2,0.1", "-q", "-o")
    interrupted = subprocess.Popen(command(*arguments, tmp_path / "one"), start_new_session=True)
    deadline = time.monotonic() + 100
    while len(list((tmp_path / "one").glob("cells/[0-9a-f]*.json"))) < 4:
        assert interrupted.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(interrupted.pid, signal.SIGKILL)
    interrupted.wait()
    before = cells(tmp_path / "one")
    assert 0 < len(before) < 8
    assert not (tmp_path / "one" / "report.html").exists()

    assert run(*arguments, tmp_path / "one").returncode == 0
    assert run(*arguments, tmp_path / "two").returncode == 0
    after, undisturbed = cells(tmp_path / "one"), cells(tmp_path / "two")
    assert {name: when for name, (_, when) in before.items()}.items() <= {n: w for n, (_, w) in after.items()}.items()
    assert {name: one for name, (one, _) in after.items()} == {name: one for name, (one, _) in undisturbed.items()}
    assert len(after) == 8


@pytest.mark.slow
def test_ctrl_c_ends_quietly_and_keeps_finished_cells(few, tmp_path):
    arguments = command(few, "--methods", "kmeans,voronoi", "--ratios", "0.1", "-q", "-o", tmp_path / "results")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 100
    while not list((tmp_path / "results").glob("cells/[0-9a-f]*.json")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "pagefacets: stopped; nothing half-written was left behind\n"
    assert len(cells(tmp_path / "results")) == 1
    assert not list((tmp_path / "results" / "cells").glob(".*"))


@pytest.mark.slow
def test_documents_and_questions_are_encoded_first(run, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    about = ("ships and harbours", "wheat and bread", "violins and trumpets", "glaciers and snow")
    (docs / "pages.jsonl").write_text("".join(json.dumps({"id": t.split()[0], "text": t}) + "\n" for t in about))
    (docs / "queries.jsonl").write_text(
        "".join(json.dumps({"query": f"where are {t.split()[2]}?", "relevant": [t.split()[0]]}) + "\n" for t in about)
    )
    refused = run(docs, "-o", tmp_path / "results")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"pagefacets: {docs} is not encoded: name the encoder with --model, or run pagefacets encode first\n"
    )
    done = run(
        docs,
        "--model",
        "words",
        "--methods",
        "identity,kmeans",
        "--ratios",
        "0.5",
        "-o",
        tmp_path / "results",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["data"] == [{"name": "docs", "pages": 4, "queries": 4}]
    assert found["rows"][0]["measures"]["mrr"]["mean"] == 1
    assert (tmp_path / "results" / "caches" / "docs" / "manifest.json").is_file()


def test_sweeps_take_the_place_of_methods(packed, run, tmp_path):
    done = run(
        packed, "--sweep", "table2", "--ratios", "0.2,0.1", "--measures", "mrr@3", "-o", tmp_path / "r", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["label"] for row in found["rows"][::2]] == ["MAGIC", "w/o source", "w/o target", "w/o Lloyd"]
    assert found["measures"] == ["mrr@3"]


def test_what_cannot_be_used_is_said_in_a_sentence(packed, run, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep me")
    np.savez(tmp_path / "bare.npz", page_vectors=np.eye(4, dtype=np.float32), page_offsets=[0, 2, 4])
    results = tmp_path / "results"
    cases = [
        ((tmp_path / "bare.npz", "-o", results), "bare.npz has no labelled queries"),
        (("nowhere", "-o", results), "there is no file or folder nowhere, and no data set is called so"),
        ((packed / "dev.npz", "-o", tmp_path / "notes"), "holds other things than a benchmark's results"),
        ((packed, "--sweep", "table9", "-o", results), "there is no sweep 'table9': choose from table2"),
        ((packed, "--ratios", "half", "-o", results), "--ratios takes numbers separated by commas"),
        (("vidore-v1", "-o", results), "vidore-v1 is not encoded: name the encoder with --model"),
    ]
    for arguments, said in cases:
        done = run(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert (tmp_path / "notes" / "mine.txt").read_text() == "keep me"
