"""The commands as a user types them: the journey, bad input, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import pagefacets as pf
from pagefacets.cli.reference import reference
from tests.processes import command


def run(*arguments, **options):
    command = [sys.executable, "-m", "pagefacets", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    pages = [pf.PageVectors(rng.standard_normal((n, 16), dtype=np.float32), id=f"p{n}") for n in range(20, 32)]
    pf.save_vectors(folder / "pages.safetensors", pages)
    queries = [pf.PageVectors(rng.standard_normal((6, 16), dtype=np.float32)) for _ in range(10)]
    pf.save_vectors(folder / "queries.npz", queries)
    return folder


def test_the_journey(corpus):
    pages, pool, facets = corpus / "pages.safetensors", corpus / "pool.safetensors", corpus / "facets.safetensors"
    done = run("calibrate", pages, "--vectors", corpus / "queries.npz", "--backbone", "toy", "-o", pool, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] == 60

    done = run("compress", pages, "--pool", pool, "--ratio", "0.1", "-o", facets, "--json", "-q", "--expect", "toy")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["vectors_after"] == sum(-(-n // 10) for n in range(20, 32))
    assert result["bytes_after"] == result["vectors_after"] * 16 * 4

    with pf.open_vectors(facets) as stored:
        magic = pf.Magic(ratio=0.1)
        tokens = pf.CalibrationPool.load(pool)
        for i, page in enumerate(pf.open_vectors(pages)):
            np.testing.assert_array_equal(stored.facets(i).vectors, magic.compress(page, tokens).vectors)
            assert stored.facets(i).id == page.id

    done = run("diagnose", pages, facets, "--vectors", corpus / "queries.npz", "--json", "--plot", corpus / "why.png")
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["covering_error"] < 1
    assert (corpus / "why.png").read_bytes().startswith(b"\x89PNG")

    for file, kind in ((pages, "pages"), (facets, "facets"), (pool, "calibration pool")):
        assert json.loads(run("info", file, "--json").stdout)["kind"] == kind
        assert kind in run("info", file).stdout


def test_options_of_the_method(corpus, tmp_path):
    out = tmp_path / "facets.parquet"
    options = ("--set", "source=uniform", "--set", "outer=2", "--set", "tau=0.03", "--keep", "3")
    done = run("compress", corpus / "pages.safetensors", *options, "-o", out, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert "vectors per page" in done.stdout
    recipe = json.loads(pf.open_vectors(out).metadata["recipe"])
    assert pf.compressor(**recipe["compressor"]) == pf.Magic(budget=3, source="uniform", outer=2, tau=0.03)


@pytest.mark.parametrize(
    ("options", "kept"), [(("--method", "identity"), 306), (("--method", "pool1d", "--set", "factor=10"), 36)]
)
def test_a_method_whose_budget_is_no_ratio(corpus, tmp_path, options, kept):
    done = run("compress", corpus / "pages.safetensors", *options, "-o", tmp_path / "out.npz", "-q", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["vectors_after"] == kept


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compress", "missing.npz", "-o", "x.npz"], "missing.npz does not exist"),
        (["compress", "{pages}", "-o", "x.npz"], "magic needs a calibration pool"),
        (["compress", "{pages}", "-o", "x.npz", "--ratio", "2"], "ratio must lie in (0, 1]"),
        (["compress", "{pages}", "-o", "x.npz", "--ratio", "0.1", "--keep", "3"], "pass --ratio or --keep, not both"),
        (["compress", "{pages}", "-o", "x.npz", "--method", "zip"], "there is no compressor 'zip'"),
        (["compress", "{pages}", "-o", "x.npz", "--set", "tau"], "--set takes NAME=VALUE"),
        (["compress", "{pages}", "-o", "x.npz", "--set", "speed=1"], "magic has no option 'speed'"),
        (["compress", "{pages}", "-o", "x.docx", "--set", "source=uniform"], "x.docx has a suffix nobody writes"),
        (["compress", "{pages}", "--pool", "{pages}", "-o", "x.npz"], "not a calibration pool"),
        (["calibrate", "{pages}", "-o", "x.safetensors"], "holds no query vectors: name a file"),
        (["calibrate", "{pages}", "--vectors", "{pages}", "--variant", "best", "-o", "x.safetensors"], "variant"),
        (["info", "{pages}x"], "does not exist"),
        (["diagnose", "{pages}", "{pages}", "--vectors", "{pages}"], "holds page vectors, not facets"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(corpus, tmp_path, arguments, sentence):
    named = [argument.replace("{pages}", str(corpus / "pages.safetensors")) for argument in arguments]
    done = command(tmp_path, *named)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_bad_row_names_file_page_and_row(corpus, tmp_path):
    rows = [np.ones((4, 8), dtype=np.float32) for _ in range(3)]
    rows[1][2, 3] = np.nan
    pf.save_vectors(tmp_path / "bad.npz", [pf.PageVectors(block, id=f"doc-{i}") for i, block in enumerate(rows)])
    arguments = ("compress", tmp_path / "bad.npz", "--set", "source=uniform", "--keep", "2", "-q")
    done = run(*arguments, "-o", tmp_path / "out.npz")
    assert done.returncode == 2
    assert "row 2 of page 1 ('doc-1') of bad.npz is zero, NaN or infinite" in done.stderr
    assert not (tmp_path / "out.npz").exists()
    assert run(*arguments, "-o", tmp_path / "out.npz", "--set", "on_bad_rows=drop").returncode == 0


@pytest.mark.parametrize(
    ("workers", "number", "status"), [("1", signal.SIGINT, 130), ("2", signal.SIGINT, 130), ("2", signal.SIGTERM, 143)]
)
def test_ctrl_c_and_sigterm_leave_nothing_behind(tmp_path, workers, number, status):
    rng = np.random.default_rng(0)
    page = pf.PageVectors(rng.standard_normal((400, 128), dtype=np.float32))
    pf.save_vectors(tmp_path / "many.safetensors", (page for _ in range(3000)))
    (tmp_path / "out.safetensors").write_bytes(b"what was there")
    command = [sys.executable, "-m", "pagefacets", "compress", "many.safetensors", "-o", "out.safetensors"]
    child = subprocess.Popen(
        [*command, "--set", "source=uniform", "--workers", workers, "-q"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    if number == signal.SIGINT:
        os.killpg(child.pid, number)
    else:
        child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == status, errors
    if status == 130:
        assert errors == "pagefacets: stopped; nothing half-written was left behind\n"
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.safetensors", "out.safetensors"]
    assert (tmp_path / "out.safetensors").read_bytes() == b"what was there"
    while processes_of(child.pid) and time.monotonic() < deadline + 60:
        time.sleep(0.1)
    assert processes_of(child.pid) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="processes are looked up in /proc")
def test_ctrl_c_and_sigterm_while_the_processes_load(corpus, tmp_path, number):
    command = [sys.executable, "-m", "pagefacets", "compress", corpus / "pages.safetensors", "-o", "out.npz"]
    child = subprocess.Popen(
        [*command, "--set", "source=uniform", "--workers", "2", "-q"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while len(processes_of(child.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(child.pid, number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == (130 if number == signal.SIGINT else 143), errors
    assert errors in ("pagefacets: stopped; nothing half-written was left behind\n", "")
    while processes_of(child.pid) and time.monotonic() < deadline + 60:
        time.sleep(0.1)
    assert processes_of(child.pid) == []
    assert list(tmp_path.iterdir()) == []


def processes_of(session):
    """Processes that are left of the session that a command started."""
    left = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            left.append(stat.parent.name)
    return left


def test_the_reference_in_the_docs_is_the_one_generated():
    page = Path(__file__).parents[2] / "docs" / "cli.md"
    assert page.read_text() == reference(), "run: python -m pagefacets.cli.reference > docs/cli.md"


def test_every_verb_has_help_with_an_example():
    for verb in ("calibrate", "compress", "diagnose", "info"):
        done = run(verb, "--help")
        assert done.returncode == 0
        assert f"Example: pagefacets {verb}" in " ".join(done.stdout.split())


def test_version():
    assert run("--version").stdout.strip() == f"pagefacets {pf.__version__}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["compress", "p.npz", "--set", "source=uniform", "-o", "p.npz"], "is read and would be written over"),
        (["compress", "p.npz", "--pool", "q.npz", "-o", "./q.npz"], "is read and would be written over"),
        (["calibrate", "p.npz", "--vectors", "q.npz", "-o", "q.npz"], "is read and would be written over"),
        (["calibrate", "p.npz", "--vectors", "q.npz", "-o", "other.safetensors"], "is no calibration pool"),
        (["compress", "p.npz", "--expect", "toy", "-o", "x.npz"], "--expect checks a pool"),
        (["compress", "p.npz", "--set", "ratio=.2", "-o", "x.npz"], "use --method, --ratio or --keep"),
        (["compress", "p.npz", "--set", "name=x", "-o", "x.npz"], "use --method, --ratio or --keep"),
        (["compress", "p.npz", "--set", "eta=abc", "-o", "x.npz"], "eta must be a number"),
        (["compress", "p.npz", "--set", "outer=2.5", "-o", "x.npz"], "outer must be a whole number"),
        (["compress", "p.npz", "--set", "source=uniform", "--device", "gpu", "-o", "x.npz"], "device must be cpu"),
        (["compress", "p.npz", "--set", "source=uniform", "-o", "/proc/x.npz"], "/proc"),
        (["compress", "p.npz", "--set", "source=uniform", "-o", "-"], "not written to standard output"),
        (["diagnose", "p.npz", "p.npz", "--plot", "why.jpg"], "why.jpg"),
    ],
)
def test_likely_slips_are_one_sentence_and_lose_nothing(tmp_path, arguments, sentence):
    rng = np.random.default_rng(0)
    for name in ("p.npz", "q.npz", "other.safetensors"):
        pages = [pf.PageVectors(rng.standard_normal((9, 8), dtype=np.float32)) for _ in range(3)]
        pf.save_vectors(tmp_path / name, pages)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = command(tmp_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
