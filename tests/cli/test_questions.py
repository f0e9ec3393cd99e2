"""pagefacets questions as a user types it: a folder of pages, a server, a folder with a model, bad input, and kills."""

import json
import os
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
from evidence.questioners import Server, a_page, completion, make_checkpoint, questions_about, well

from pagefacets.pages.datasets import open_dataset

OFFLINE = {"HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


# Loading torch takes seconds, so one process does it and makes a child for each command.
WARM = """
import json, os, sys
import httpx, PIL.Image, torch
import pagefacets.evidence.endpoint, pagefacets.evidence.local, pagefacets.evidence.questions, pagefacets.pages.source
from pagefacets.cli.main import main
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        for stream, path in job["streams"]:
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        os.chdir(job["folder"])
        os.environ |= job["environment"]
        sys.argv = ["pagefacets", *job["arguments"]]
        main()
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def warm():
    with subprocess.Popen(
        [sys.executable, "-c", WARM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | OFFLINE
    ) as process:
        yield process
        process.stdin.close()


@pytest.fixture
def run(warm, tmp_path_factory):
    """The command in a process of its own, from a folder and with an environment."""
    streams = tmp_path_factory.mktemp("streams")

    def run(*arguments, folder=streams, **environment):
        job = {
            "arguments": ["questions", *map(str, arguments)],
            "folder": str(folder),
            "environment": environment,
            "streams": [(1, str(streams / "out")), (2, str(streams / "err"))],
        }
        warm.stdin.write(json.dumps(job) + "\n")
        warm.stdin.flush()
        status = int(warm.stdout.readline())
        return Done(status, (streams / "out").read_text(), (streams / "err").read_text())

    return run


def start(*arguments):
    """The command in a process of its own, to be killed."""
    command = [sys.executable, "-m", "pagefacets", "questions", *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, **OFFLINE}, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def folder(tmp_path):
    """Pages that their grey tells apart, one file each."""
    pages = tmp_path / "pages"
    pages.mkdir()
    for number in range(4):
        a_page(number).image(None).save(pages / f"p{number}.png")
    return pages


def test_from_a_folder_to_a_dataset(run, folder):
    output = folder / "queries.jsonl"
    with Server(well) as server:
        done = run(folder, "-o", output, "--endpoint", server.url, "--model", "vl", "--json")
        assert done.returncode == 0, done.stderr
        assert "asking" in done.stderr
        assert json.loads(done.stdout) == {
            "path": str(output),
            "model": "vl",
            "pages": 4,
            "questions": 20,
            "asked": 4,
            "skipped": [],
        }
        again = run(folder, "-o", output, "--endpoint", server.url, "--model", "vl", "-q")
        assert again.returncode == 0, again.stderr
        assert again.stderr == ""
        assert "4, 0 of them asked about now" in again.stdout
        assert len(server.requests) == 4
    dataset = open_dataset(folder)
    assert [page.id for page in dataset.pages] == ["p0.png", "p1.png", "p2.png", "p3.png"]
    assert [query.text for query in dataset.queries] == [text for page in range(4) for text in questions_about(page)]
    for query in dataset.queries:
        page = query.text.split()[-1].strip("?")
        assert dataset.qrels[query.id] == {f"p{page}.png": 1}


def test_a_model_in_a_folder_offline(run, folder, tmp_path):
    """Its weights are random, so what it writes holds no question, and that is what is said."""
    model = make_checkpoint(tmp_path / "model")
    local = ("--model", model, "--batch", "2", "--dtype", "float32", "--set", "max_new_tokens=8", "--device", "cpu")
    done = run(folder, "-o", tmp_path / "q.jsonl", *local, "--attempts", "1", "--keep-going", "-q")
    assert done.returncode == 0
    said = done.stderr.splitlines()
    assert [line.partition(":")[2].partition(", the last")[0] for line in said] == [
        f" left out p{number}.png: 0 of 5 questions after 1 attempt" for number in range(4)
    ]
    assert "model" in done.stdout
    assert (tmp_path / "q.jsonl").read_bytes() == b""


def test_pages_that_fail_are_named_and_left_out_or_stop_the_run(run, folder, tmp_path):
    (folder / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")

    def behave(request, nth):
        return (200, completion("I'm sorry.")) if request["page"] == 2 else well(request, nth)

    output = tmp_path / "q.jsonl"
    with Server(behave) as server:
        stopped = run(folder, "-o", output, "--endpoint", server.url, "-q")
        assert stopped.returncode == 2
        assert stopped.stderr.startswith("pagefacets: broken.png: ")
        done = run(folder, "-o", output, "--endpoint", server.url, "-q", "--keep-going", "--attempts", "2", "--json")
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stderr.splitlines())
    assert lines[0].startswith("pagefacets: left out broken.png: ")
    assert lines[1] == (
        'pagefacets: left out p2.png: 0 of 5 questions after 2 attempts, the last answer: "I\'m sorry."'
    )
    assert len(lines) == 2
    result = json.loads(done.stdout)
    assert (result["pages"], result["questions"]) == (3, 15)
    assert sorted(one["place"] for one in result["skipped"]) == ["broken.png", "p2.png"]


def test_a_sample_is_the_same_for_the_same_seed(run, folder, tmp_path):
    with Server(well) as server:
        drawn = []
        for name, seed in (("a", 0), ("b", 0), ("c", 1)):
            output = tmp_path / f"{name}.jsonl"
            done = run(folder, "-o", output, "--endpoint", server.url, "--pages", 2, "--seed", seed, "--count", 1, "-q")
            assert done.returncode == 0, done.stderr
            drawn.append([json.loads(line)["relevant"][0] for line in output.read_text().splitlines()])
    assert drawn[0] == drawn[1]
    assert all(len(pages) == 2 and pages == sorted(pages) for pages in drawn)
    assert len({tuple(pages) for pages in drawn}) > 1


def test_killed_while_it_runs_no_answer_is_paid_for_twice(run, tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    for number in range(16):
        a_page(number).image(None).save(pages / f"p{number:02}.png")
    output = tmp_path / "q.jsonl"

    def slowly(request, nth):
        time.sleep(0.1)
        return well(request, nth)

    def answered():
        text = output.read_bytes() if output.exists() else b""
        return {json.loads(line)["relevant"][0] for line in text.split(b"\n")[:-1] if json.loads(line)["number"] == 5}

    with Server(slowly) as server:
        arguments = (pages, "-o", output, "--endpoint", server.url, "--concurrency", "2", "-q")
        for target in (3, 8):
            known = answered()
            server.requests.clear()
            child = start(*arguments)
            deadline = time.monotonic() + 60
            while len(answered()) < target and time.monotonic() < deadline:
                time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
            child.communicate(timeout=60)
            assert not known & {f"p{page:02}.png" for page in server.pages}
        known = answered()
        assert 8 <= len(known) < 16
        with output.open("ab") as stream:
            stream.write(b'{"id": "p15.png?1", "quer')
        server.requests.clear()
        done = run(*arguments)
        assert done.returncode == 0, done.stderr
        assert len(server.requests) == 16 - len(known)
    written = [json.loads(line)["relevant"][0] for line in output.read_text().splitlines()]
    assert written == [f"p{number:02}.png" for number in range(16) for _ in range(5)]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_leaves_at_once_with_what_was_answered(folder, tmp_path, number, status):
    output = tmp_path / "q.jsonl"

    def hang_on_the_last(request, nth):
        return (lambda handler: server.released.wait(60)) if request["page"] == 3 else well(request, nth)

    with Server(hang_on_the_last) as server:
        child = start(folder, "-o", output, "--endpoint", server.url, "-q")
        deadline = time.monotonic() + 60
        while not (output.exists() and output.read_bytes().count(b"\n") == 15) and time.monotonic() < deadline:
            time.sleep(0.02)
        child.send_signal(number)
        started = time.monotonic()
        _, errors = child.communicate(timeout=60)
        assert time.monotonic() - started < 10
    assert child.returncode == status, errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pages", "q.jsonl"]
    assert output.read_bytes().count(b"\n") == 15


def test_the_key_is_read_from_the_environment_and_written_nowhere(run, folder, tmp_path):
    secret = "sk-0123456789abcdef"
    arguments = (folder, "-o", tmp_path / "q.jsonl", "--key-from", "VL_KEY", "-q")
    with Server(lambda request, nth: (401, json.dumps({"error": f"bad key {secret}"}))) as server:
        refused = run(*arguments, "--endpoint", server.url, VL_KEY=secret)
    assert {request["headers"]["Authorization"] for request in server.requests} == {f"Bearer {secret}"}
    assert refused.returncode == 2
    assert "status 401: bad key ***" in refused.stderr
    with Server(well) as server:
        done = run(*arguments, "--endpoint", server.url, VL_KEY=secret)
        missing = run(folder, "-o", tmp_path / "other.jsonl", *arguments[3:], "--endpoint", server.url, VL_KEY="")
    assert done.returncode == 0, done.stderr
    assert "the environment variable VL_KEY, named for the key, is not set" in missing.stderr
    assert secret not in done.stdout + done.stderr + refused.stdout + refused.stderr
    assert secret not in (tmp_path / "q.jsonl").read_text()


def test_fields_of_the_request_are_set_as_json(run, folder, tmp_path):
    sets = ("temperature=none", "top_p=0.9", 'stop=["x"]', "user=me")
    with Server(well) as server:
        done = run(
            folder, "-o", tmp_path / "q.jsonl", "--endpoint", server.url, "-q", *(f"--set={one}" for one in sets)
        )
    assert done.returncode == 0, done.stderr
    body = server.requests[0]["body"]
    assert "temperature" not in body
    assert (body["top_p"], body["stop"], body["user"]) == (0.9, ["x"], "me")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none", "-o", "q.jsonl"], "none"),
        (["pages", "-o", "q.json"], "name a file that ends in .jsonl"),
        (["pages", "-o", "q.jsonl", "--count", "0"], "count must lie between 1 and 100"),
        (["pages", "-o", "q.jsonl", "--pages", "0"], "--pages must be at least 1"),
        (["pages", "-o", "q.jsonl", "--endpoint", "localhost:8000"], "must be an http:// or https:// address"),
        (["pages", "-o", "q.jsonl", "--key-from", "X"], "--key-from needs --endpoint: add --endpoint"),
        (["pages", "-o", "q.jsonl", "--timeout", "9"], "--timeout needs --endpoint"),
        (["pages", "-o", "q.jsonl", "--endpoint", "http://x/v1", "--device", "cpu"], "--device is of a local model"),
        (["pages", "-o", "q.jsonl", "--set", "x"], "--set takes NAME=VALUE"),
        (["pages", "-o", "q.jsonl", "--model", "no/model"], "no/model is not on this machine"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(run, folder, tmp_path, arguments, sentence):
    done = run(*arguments, "-q", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]


def test_help_has_an_example(run):
    done = run("--help")
    assert done.returncode == 0
    assert "Example: pagefacets questions" in " ".join(done.stdout.split())
