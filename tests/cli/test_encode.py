"""pagefacets encode, and what other verbs make of a cache, as a user types them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import pagefacets as pf
from pagefacets.vectors.cache import Cache
from tests.processes import command
from tests.vectors.hashed import HashedEncoder

TEXTS = ["the plant closed in 2021", "net sales rose by four percent", "a chart of sales", "employees by region"]


@pytest.fixture
def folder(tmp_path):
    """Where the commands are typed."""
    made = tmp_path / "here"
    made.mkdir()
    return made


@pytest.fixture
def run(folder):
    return lambda *arguments: command(folder, *arguments)


@pytest.fixture
def dataset(folder):
    """Twenty pages of given text, and two questions with the pages that answer them."""
    reports = folder / "reports"
    reports.mkdir()
    pages = [{"id": f"r{i}", "text": f"{TEXTS[i % 4]} page {i} {'more ' * i}"} for i in range(20)]
    asked = [{"query": "net sales", "relevant": ["r1", "r5"]}, {"query": "employees", "relevant": ["r3"]}]
    (reports / "pages.jsonl").write_text("".join(f"{json.dumps(page)}\n" for page in pages))
    (reports / "queries.jsonl").write_text("".join(f"{json.dumps(query)}\n" for query in asked))
    return reports


@pytest.fixture
def scans(folder):
    """Five images, the third of which is cut off."""
    scans = folder / "scans"
    scans.mkdir()
    for i in range(5):
        pixels = np.random.default_rng(i).integers(0, 255, (40, 30, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(scans / f"s{i}.jpg")
    whole = (scans / "s2.jpg").read_bytes()
    (scans / "s2.jpg").write_bytes(whole[: len(whole) // 2])
    return scans


def test_from_a_dataset_to_facets(run, folder, dataset):
    done = run("encode", dataset, "--model", "hashed", "--set", "p=64", "-o", "cache", "--json", "-q")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    vectors = sum(len(page["text"].split()) + 1 for page in lines(dataset / "pages.jsonl"))
    assert result["vectors"] == vectors
    assert result["bytes"] == vectors * 64 * 2
    assert (result["pages"], result["encoded"], result["queries"], result["encoder"]) == (20, 20, 2, "hashed")

    facts = json.loads(run("info", "cache", "--json").stdout)
    assert (facts["pages"], facts["dtype"], facts["encoder"], facts["source"]) == (20, "float16", "hashed", "reports")

    done = run("calibrate", "cache", "-o", "pool.safetensors", "--json")
    assert done.returncode == 0, done.stderr
    pool = pf.CalibrationPool.load(folder / "pool.safetensors")
    assert (pool.backbone, pool.query_prefix, pool.source) == ("hashed", "ask: ", "cache")
    assert len(pool) == 2 + 2 + 2 - 1

    done = run("compress", "cache", "--pool", "pool.safetensors", "--expect", "hashed", "-o", "facets.npz", "-q")
    assert done.returncode == 0, done.stderr
    done = run("diagnose", "cache", "facets.npz", "--json", "-q")
    assert done.returncode == 0, done.stderr
    done = run(
        "compare", "cache", "--pool", "pool.safetensors", "--methods", "random", "--ratios", "0.5", "-q", "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["queries"] == 2


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_second_run_says_that_there_is_nothing_to_do(run, folder, dataset):
    arguments = ("encode", dataset, "--model", "hashed", "-o", "cache")
    done = run(*arguments)
    assert "20: 20 encoded" in done.stdout
    assert "encoding" in done.stderr
    assert "pages/s" in done.stdout
    done = run(*arguments)
    assert done.returncode == 0
    assert "20, all encoded before: there was nothing to do" in done.stdout
    assert "encoding" not in done.stderr


def test_a_bad_file_stops_or_is_left_out(run, folder, scans):
    (folder / "log.txt").write_text("net sales\n\nemployees by region\n")
    arguments = ("encode", scans, "--model", "hashed", "--queries", "log.txt", "-o", "cache", "-q")
    done = run(*arguments)
    assert done.returncode == 2
    assert "s2.jpg" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    done = run(*arguments, "--keep-going", "--json")
    assert done.returncode == 0
    assert done.stderr.startswith("pagefacets: left out s2.jpg")
    assert len(done.stderr.splitlines()) == 1
    result = json.loads(done.stdout)
    assert result["pages"] == 4
    assert [skip["place"] for skip in result["skipped"]] == ["s2.jpg"]
    cache = Cache.open(folder / "cache")
    assert cache.page_ids == ["s0.jpg", "s1.jpg", "s3.jpg", "s4.jpg"]
    assert cache.query_texts == ["net sales", "employees by region"]
    assert [place for place, _ in cache.manifest.skipped] == ["s2.jpg"]


def test_what_is_warned_of_is_one_line(run, dataset):
    with (dataset / "queries.jsonl").open("a") as stream:
        stream.write('{"query": "sales", "relevant": ["r99"]}\n')
    done = run("encode", dataset, "--model", "hashed", "-o", "cache", "-q")
    assert done.returncode == 0
    assert done.stderr.startswith("pagefacets: 1 judgements of reports name a query or a page that it does not have")
    assert len(done.stderr.splitlines()) == 1


def test_a_query_log_becomes_a_pool(run, folder, dataset):
    run("encode", dataset, "--model", "hashed", "-o", "cache", "-q")
    (folder / "log.txt").write_text("how many plants closed\nsales by region\n")
    done = run("calibrate", "cache", "--queries", "log.txt", "-o", "pool.safetensors", "--json")
    assert done.returncode == 0, done.stderr
    pool = pf.CalibrationPool.load(folder / "pool.safetensors")
    encoded = HashedEncoder().encode_queries(["how many plants closed", "sales by region"])
    expected = pf.CalibrationPool.build(encoded, Cache.open(folder / "cache").pages)
    assert pool.sha256 == expected.sha256
    assert (pool.backbone, pool.query_prefix, pool.source) == ("hashed", "ask: ", "log.txt")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["encode", "nowhere", "-o", "new"], "nowhere"),
        (["encode", "reports", "-o", "reports"], "holds other files than a cache"),
        (["encode", "reports", "-o", "log.txt"], "is a file: a cache is a folder"),
        (["encode", "reports", "-o", "no/where"], "does not exist: create it first"),
        (["encode", "reports", "-o", "/proc/cache"], "/proc"),
        (["encode", "reports", "-o", "new", "--set", "size=3"], "hashed has no option 'size': it takes salt, p"),
        (["encode", "reports", "-o", "new", "--workers", "2"], "hashed has no option 'workers'"),
        (["encode", "reports", "-o", "new", "--set", "name=x"], "got name: use --model"),
        (["encode", "reports", "-o", "new", "--set", "salt"], "--set takes NAME=VALUE"),
        (["encode", "reports", "-o", "new", "--language", "fr"], "no queries in 'fr'"),
        (["encode", "reports", "-o", "new", "--queries", "none.txt"], "there is no file of queries none.txt"),
        (["encode", "reports", "-o", "new", "--queries", "empty.txt"], "empty.txt holds no queries"),
        (["encode", "reports", "-o", "new", "--queries", "latin.txt"], "latin.txt is not UTF-8"),
        (["encode", "reports", "-o", "new", "--queries", "odd.jsonl"], "odd.jsonl, line 2, is no query"),
        (["encode", "reports", "-o", "new", "--queries", "astray.jsonl"], "page 'r99' for query '0'"),
        (["encode", "reports", "-o", "cache", "--set", "salt=b"], "with salt='' and not salt='b': name another folder"),
        (["encode", "cache", "-o", "new"], "cache is a cache"),
        (["calibrate", "cache", "-o", "pool.safetensors"], "holds no queries: pass a query log with --queries"),
        (["calibrate", "pages.npz", "--queries", "log.txt", "-o", "p.safetensors"], "--queries needs an encoder"),
        (["calibrate", "cache", "--queries", "log.txt", "--vectors", "pages.npz", "-o", "p"], "not both"),
        (["calibrate", "cache", "--queries", "log.txt", "--backbone", "x", "-o", "p"], "was encoded with 'hashed'"),
        (["compress", "cache", "--set", "source=uniform", "-o", "cache/"], "is read and would be written over"),
    ],
)
def test_likely_slips_are_one_sentence_and_lose_nothing(run, folder, dataset, arguments, sentence):
    (folder / "log.txt").write_text("net sales\n")
    (folder / "empty.txt").write_text("\n \n")
    (folder / "latin.txt").write_bytes("où\n".encode("latin-1"))
    (folder / "odd.jsonl").write_text('{"query": "net sales"}\n{"question": "x"}\n')
    (folder / "astray.jsonl").write_text('{"query": "net sales", "relevant": ["r99"]}\n')
    pf.save_vectors(folder / "pages.npz", [pf.PageVectors(np.eye(16, dtype=np.float32))])
    (folder / "text").mkdir()
    (folder / "text" / "pages.jsonl").write_text((dataset / "pages.jsonl").read_text())
    assert run("encode", "text", "--model", "hashed", "-o", "cache", "-q").returncode == 0
    if arguments[0] == "encode":
        arguments = [*arguments, "--model", "hashed", "-q"]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_whole_shards_and_one_line(tmp_path, number, status):
    folder, cache = tmp_path / "reports", tmp_path / "cache"
    folder.mkdir()
    (folder / "pages.jsonl").write_text("".join(f'{{"id": "p{i}", "text": "page {i}"}}\n' for i in range(400)))
    program = (
        "from pagefacets.vectors.encoder import ENCODERS; ENCODERS['hashed'] = 'tests.vectors.hashed:HashedEncoder'\n"
        "from pagefacets.cli.main import main; main()"
    )
    typed = [sys.executable, "-c", program, "encode", folder, "--model", "hashed", "-o", cache]
    root = Path(__file__).parents[2]
    child = subprocess.Popen([*typed, "--set", "pause=0.01"], stderr=subprocess.PIPE, text=True, cwd=root)
    deadline = time.monotonic() + 60
    while len(list(cache.glob("pages/*.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == status, errors
    assert "Traceback" not in errors
    stopped = [line for line in errors.splitlines() if line.startswith("pagefacets:")]
    assert stopped == (["pagefacets: stopped; nothing half-written was left behind"] if status == 130 else [])
    finished = len(list(cache.glob("pages/*.json")))
    assert finished == len(list(cache.glob("pages/*.safetensors")))
    assert not list(cache.glob("pages/.*"))
    done = subprocess.run([*typed, "--json", "-q"], capture_output=True, text=True, cwd=root, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["kept"], result["encoded"]) == (32 * finished, 400 - 32 * finished)
