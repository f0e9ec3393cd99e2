"""pagefacets reproduce, as a user types it: with a hub, without one, and with folders in its stead."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from evidence.hub import Hub
from evidence.vidore_shaped import evaluation, training

from pagefacets.evidence.suites import SUITES
from tests.checkpoints import retrievers
from tests.processes import command

SIX = [task.hub for task in SUITES["vidore-v1"].tasks]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What a hub would hold: six data sets, the training set, ColQwen2.5 and its base; all tiny."""
    root = tmp_path_factory.mktemp("here")
    retrievers.saved("colqwen2.5", root)
    evaluation(root / "data", pages=2)
    for name in SIX:
        shutil.copytree(root / "data", root / "hub" / "datasets" / name)
    training(root / "hub" / "datasets" / "vidore" / "colpali_train_set", rows=1, shards=8)
    for name, place in (("colqwen2.5-v0.2", "colqwen2.5"), ("colqwen2.5-base", "colqwen2.5-base")):
        shutil.copytree(root / place, root / "hub" / "models" / "vidore" / name)
    adapter = root / "hub" / "models" / "vidore" / "colqwen2.5-v0.2" / "adapter_config.json"
    told = json.loads(adapter.read_text())
    adapter.write_text(json.dumps({**told, "base_model_name_or_path": "vidore/colqwen2.5-base"}))
    return root


def typed(folder, *arguments, **environment):
    hub = {"HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1", **environment}
    line = [sys.executable, "-m", "pagefacets", "reproduce", *map(str, arguments)]
    return subprocess.run(
        line, cwd=folder, env={**os.environ, **hub}, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.slow
def test_with_a_hub_one_command_is_all_and_without_it_again_all_is_there(folder):
    arguments = ("figure5", "--cache", "from-hub", "--workers", "1", "-q")
    with Hub(folder / "hub") as hub:
        done = typed(folder, *arguments, "-o", "results", HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.url)
    assert done.returncode == 0, done.stderr
    assert "difference" in done.stdout
    assert "82.12" in done.stdout
    assert "could not be run" not in done.stdout
    read = json.loads((folder / "results" / "figure5.json").read_text())
    assert read["ran"] == len(read["entries"]) == 24
    assert sum(entry["difference"] is not None for entry in read["entries"]) == 4
    shards = sorted(file.rpartition("/")[2] for file in hub.asked if "colpali_train_set" in file)
    assert shards == [f"train-{shard:05}-of-00008.parquet" for shard in (0, 2, 4, 6)]
    again = typed(folder, *arguments, "--json")
    assert again.returncode == 0, again.stderr
    assert [entry["ours"] for entry in json.loads(again.stdout)["entries"]] == [e["ours"] for e in read["entries"]]


@pytest.mark.slow
def test_what_could_not_be_run_is_named_and_no_failure(folder):
    done = typed(
        folder, "table1", "--data", "DocQ=data,TabF=vidore/gone", "--models", "ColQwen2.5=colqwen2.5",
        "--cache", "local", "--workers", "1", HF_HOME=str(folder / "empty"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("could not be run: ")]
    assert any("MAGIC" in line and "no calibration pool" in line for line in lines)
    assert any(line.startswith("could not be run: TabF: vidore/gone is no folder here") for line in lines)
    assert any(line.endswith("it is not among the data sets that were asked for") for line in lines)
    assert "data by ColQwen2.5" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_at_all_is_an_error(folder):
    done = typed(folder, "table2", "--cache", "nothing", "-q", HF_HOME=str(folder / "empty"))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("pagefacets: nothing of table2 could be run: vidore/colqwen2.5-v0.2 is not on this machine")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table9"], "there is no 'table9' to reproduce"),
        (["table1", "--set", "Nothing:dtype=float32"], "the paper has no model 'Nothing'"),
        (["table1", "-o", "no/where"], "does not exist: create it first"),
        (["table1", "--data", "data", "--models", "colqwen2.5", "--set", "colour=red"], "has no option 'colour'"),
    ],
)
def test_slips_are_one_sentence(folder, arguments, sentence):
    done = command(folder, "reproduce", *arguments, "--cache", "slips", "-q")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
