"""`pagefacets demo`, and a search of what it leaves behind."""

import json
import subprocess
import sys
import time

import pytest

import pagefacets as pf


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "pagefacets", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=240
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    result = run("demo", "--json", "-q", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder, json.loads(result.stdout)


def test_documents_become_a_smaller_index_that_still_answers(done):
    _, told = done
    assert told["bytes"]["facets"] < 0.3 * told["bytes"]["full"]
    assert told["first"]["full"] >= 0.7 * told["questions"]
    assert told["first"]["facets"] >= told["first"]["full"] - 1


def test_the_evidence_is_a_page_of_its_own(done):
    folder, told = done
    page = (folder / told["evidence"]).read_text()
    assert page.lower().startswith("<!doctype html>")
    assert 'src="http' not in page


def test_a_search_of_it_is_quick(done):
    folder, told = done
    found = json.loads(run("search", told["index"], "What does a cadet earn per month?", "--json", cwd=folder).stdout)
    assert found["hits"][0]["source"] == "staff/handbook.pdf"
    assert found["hits"][0]["number"] == 1
    index = pf.Index.open(folder / told["index"])
    index.search("warm up")
    fastest = min(_seconds(index) for _ in range(5))
    assert fastest < 0.1


def test_again_is_no_work_and_the_same_result(done):
    folder, told = done
    again = run("demo", "-q", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert f"{told['first']['facets']} of {told['questions']}" in again.stdout
    search = next(line for line in again.stdout.splitlines() if "search pagefacets-demo" in line)
    typed = subprocess.run(search, shell=True, cwd=folder, capture_output=True, text=True, timeout=120)
    assert "annual-report-2025.pdf" in typed.stdout, "what it tells to type next works as it stands"


def _seconds(index):
    start = time.perf_counter()
    index.search("copper pollution at the slipway", k=5)
    return time.perf_counter() - start
