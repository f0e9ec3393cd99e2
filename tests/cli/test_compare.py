"""pagefacets compare as a user types it: the table, the files, bad input, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import pagefacets as pf
from tests.processes import command


def run(*arguments, **options):
    command = [sys.executable, "-m", "pagefacets", "compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    pages = [pf.PageVectors(rng.standard_normal((n, 16), dtype=np.float32), id=f"p{n}") for n in range(20, 32)]
    pf.save_vectors(folder / "pages.safetensors", pages)
    tokens = rng.standard_normal((60, 16), dtype=np.float32)
    pf.save_vectors(folder / "queries.npz", [pf.PageVectors(tokens[i : i + 6]) for i in range(0, 60, 6)])
    pf.CalibrationPool(rng.standard_normal((40, 16), dtype=np.float32)).save(folder / "pool.safetensors")
    return folder


@pytest.fixture
def named(corpus):
    return (corpus / "pages.safetensors", "--pool", corpus / "pool.safetensors", "--vectors", corpus / "queries.npz")


def without_times(result):
    return {**result, "cells": [{**cell, "ms_per_page": None} for cell in result["cells"]]}


def test_a_comparison_on_screen_in_a_file_and_in_a_figure(corpus, named, tmp_path):
    done = run(*named, "--methods", "magic,ward,docpruner,identity", "--ratios", "0.1,.5", "-o", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert "comparing" in done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    rows = [line for line in lines if "magic" in line or "ward" in line or "identity" in line]
    assert [row[:2] for row in rows] == [
        ["1", "identity"],
        ["0.5", "magic"],
        ["ward", "13.0"],
        ["0.1", "magic"],
        ["ward", "3.0"],
    ]
    assert "means over 12 pages of 25.5 vectors, 1.6 kB; 10 queries, 60 tokens" in done.stdout
    assert "docpruner cannot run: docpruner needs the importance of each patch, which page 'p20' lacks" in done.stdout

    stored = json.loads((tmp_path / "out.json").read_text())
    with pf.open_vectors(named[0]) as pages, pf.open_vectors(named[4]) as queries:
        pool = pf.CalibrationPool.load(named[2])
        asked = [query.vectors for query in queries]
        found = pf.compare(pages, pool, asked, methods="magic,ward,docpruner,identity", ratios=(0.5, 0.1))
    assert without_times(stored) == without_times(json.loads(json.dumps(found.to_dict())))

    arguments = (
        "--methods",
        "ward,magic",
        "--pages",
        5,
        "--workers",
        2,
        "--plot",
        tmp_path / "out.png",
        "--json",
        "-q",
    )
    done = run(*named, *arguments, "--seed", 3)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    first = json.loads(done.stdout)
    assert first["pages"] == 5
    assert [cell["ratio"] for cell in first["cells"][::2]] == [0.5, 0.25, 0.1, 0.05, 0.025, 0.01]
    assert without_times(json.loads(run(*named, *arguments, "--seed", 3).stdout)) == without_times(first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.png"]


def test_the_best_of_a_column_is_bold_on_a_terminal(named):
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "40"}
    arguments = ("--methods", "ward,random", "--ratios", "0.2", "-q")
    shown = run(*named, *arguments, env=environment).stdout
    cells = json.loads(run(*named, *arguments, "--json").stdout)["cells"]
    best, worst = sorted(cells, key=lambda cell: cell["covering_error"])
    assert f"\x1b[1m{best['covering_error']:.4f}\x1b[0m" in shown
    assert f"{worst['covering_error']:.4f}" in shown
    assert f"\x1b[1m{worst['covering_error']:.4f}\x1b[0m" not in shown


def test_without_queries_it_says_whose_tokens_judge(corpus, tmp_path):
    done = run(*(corpus / "pages.safetensors", "--pool", corpus / "pool.safetensors"), "--methods", "magic", "-q")
    assert done.returncode == 0, done.stderr
    assert "note: no queries were given: demand and scores are those of the pool's 40 tokens" in done.stdout


def test_queries_inside_the_file_are_used(tmp_path):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((30, 8), dtype=np.float32)
    tokens = rng.standard_normal((4, 5, 8), dtype=np.float32)
    np.savez(tmp_path / "dev.npz", page_vectors=rows, page_offsets=np.array([0, 10, 30]), query_vectors=tokens)
    done = run(tmp_path / "dev.npz", "--methods", "ward", "--json", "-q")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["judged_by"], result["queries"], result["tokens"]) == ("queries", 4, 20)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.npz"], "missing.npz does not exist"),
        (["{pages}"], "there is nothing to judge by: pass queries"),
        (["{pages}", "--pool", "{pool}", "--ratios", "0.1;0.2"], "--ratios takes numbers separated by commas"),
        (["{pages}", "--pool", "{pool}", "--ratios", "2"], "ratio must lie in (0, 1], got 2"),
        (["{pages}", "--pool", "{pool}", "--methods", "magic,zip"], "there is no compressor 'zip'"),
        (["{pages}", "--pool", "{pool}", "--pages", "0"], "--pages must be at least 1, got 0"),
        (["{pages}", "--pool", "{pool}", "--seed", "-1", "--pages", "2"], "seed must be a whole number, at least 0"),
        (["{pages}", "--pool", "{pages}"], "not a calibration pool"),
        (["{pages}", "--pool", "{pool}", "-o", "{pages}"], "name a file that ends in .json"),
        (["{pages}", "--pool", "{pool}", "-o", "nowhere/out.json"], "does not exist: create it first"),
        (["{pages}", "--pool", "{pool}", "--plot", "out.bmp"], "end it in .pdf, .png, .svg"),
        (["{pages}", "--pool", "{pool}", "--plot", "nowhere/out.png"], "does not exist: create it first"),
        (["{pages}", "--pool", "{pool}", "--methods", "docpruner"], "no method can run on these pages"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(corpus, tmp_path, arguments, sentence):
    files = {"{pages}": str(corpus / "pages.safetensors"), "{pool}": str(corpus / "pool.safetensors")}
    before = (corpus / "pages.safetensors").read_bytes()
    done = command(tmp_path, "compare", *(files.get(argument, argument) for argument in arguments), "-q")
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []
    assert (corpus / "pages.safetensors").read_bytes() == before


def test_a_bad_row_names_file_page_and_row_and_keeps_what_was_there(corpus, tmp_path):
    rows = [np.ones((4, 16), dtype=np.float32) for _ in range(3)]
    rows[1][2, 3] = np.nan
    pf.save_vectors(tmp_path / "bad.npz", [pf.PageVectors(block, id=f"doc-{i}") for i, block in enumerate(rows)])
    (tmp_path / "out.json").write_text("what was there")
    done = command(tmp_path, "compare", "bad.npz", "--pool", corpus / "pool.safetensors", "-o", "out.json", "-q")
    assert done.returncode == 2
    assert "row 2 of page 1 ('doc-1') of bad.npz is zero, NaN or infinite" in done.stderr
    assert (tmp_path / "out.json").read_text() == "what was there"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.npz", "out.json"]


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_stops_at_once_and_leaves_nothing_behind(tmp_path, workers):
    rng = np.random.default_rng(0)
    page = pf.PageVectors(rng.standard_normal((400, 128), dtype=np.float32))
    pf.save_vectors(tmp_path / "many.safetensors", (page for _ in range(2000)))
    pf.CalibrationPool(rng.standard_normal((200, 128))).save(tmp_path / "pool.safetensors")
    (tmp_path / "out.json").write_text("what was there")
    command = [sys.executable, "-m", "pagefacets", "compare", "many.safetensors", "--pool", "pool.safetensors"]
    child = subprocess.Popen(
        [*command, "-o", "out.json", "--plot", "out.png", "--workers", workers],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(6.0)
    assert child.poll() is None
    os.killpg(child.pid, signal.SIGINT)
    printed, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert "Traceback" not in errors
    assert printed == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.safetensors", "out.json", "pool.safetensors"]
    assert (tmp_path / "out.json").read_text() == "what was there"


def test_help_has_an_example():
    done = run("--help")
    assert done.returncode == 0
    assert "Example: pagefacets compare" in " ".join(done.stdout.split())
