"""pagefacets index, add, delete, search, info, verify and compact, as a user types them."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import pagefacets as pf
from tests.processes import command
from tests.vectors.hashed import HashedEncoder

TEXTS = ["the plant closed in 2021", "net sales rose by four percent", "a chart of revenue", "employees by region"]
INDEX = ("index", "docs", "-o", "x.pf", "--model", "hashed")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a dataset of twenty pages, more of them, and an index with full vectors."""
    folder = tmp_path_factory.mktemp("made") / "here"
    for name, first in (("docs", 0), ("more", 20)):
        (folder / name).mkdir(parents=True)
        pages = [
            {"id": f"r{i}", "text": f"{TEXTS[i % 4]} page {i} {'more ' * (i % 9)}"} for i in range(first, first + 20)
        ]
        (folder / name / "pages.jsonl").write_text("".join(f"{json.dumps(page)}\n" for page in pages))
    done = command(folder, *INDEX, "--full", "--json")
    assert done.returncode == 0, done.stderr
    (folder / "first.json").write_text(done.stdout)
    assert "indexing" in done.stderr
    return folder


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "here")


@pytest.fixture
def run(folder):
    return lambda *arguments: command(folder, *arguments)


def told(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_index_tells_what_it_did(folder):
    facts = json.loads((folder / "first.json").read_text())
    pages = list(HashedEncoder().encode_pages(pf.open_pages(folder / "docs")))
    facets = [pf.compressor("ward", ratio=0.25).compress(page) for page in pages]
    assert (facts["pages"], facts["added"], facts["replaced"], facts["kept"], facts["removed"]) == (20, 20, 0, 0, 0)
    assert facts["vectors"] == sum(page.n for page in pages)
    assert facts["facets"] == sum(one.k for one in facets)
    assert facts["bytes"] == facts["facets"] * 16 * 2
    assert facts["method"]["name"] == "ward"
    assert facts["encoder"] == "hashed"


def test_search_answers_as_json_and_as_a_table(run):
    result = told(run("search", "x.pf", "page 7", "-k", "3", "--json"))
    assert [set(hit) for hit in result["hits"]] == [{"id", "source", "number", "score"}] * 3
    assert result["hits"][0]["id"] == "r7"
    assert result["hits"][0]["source"] == "pages.jsonl"
    scores = [hit["score"] for hit in result["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert 0 < result["took_ms"] < 1000
    done = run("search", "x.pf", "page 7", "-k", "3")
    assert done.stderr == ""
    assert [line.split()[-1] for line in done.stdout.splitlines()[2:]] == [hit["id"] for hit in result["hits"]]
    filtered = told(run("search", "x.pf", "page 7", "--filter", "id IN ('r1', 'r2')", "--json"))
    assert {hit["id"] for hit in filtered["hits"]} == {"r1", "r2"}
    rescored = told(run("search", "x.pf", "page 7", "-k", "2", "--rescore", "10", "--json"))
    assert rescored["hits"][0]["id"] == "r7"
    assert "none: no page fits" in run("search", "x.pf", "page 7", "--filter", "id = 'nobody'").stdout


def test_the_way_of_an_index(run, folder):
    again = told(run(*INDEX, "--full", "--json", "-q"))
    assert (again["added"], again["kept"]) == (0, 20)
    added = told(run("add", "x.pf", "more", "--json", "-q"))
    assert (added["added"], added["kept"], added["removed"], added["pages"]) == (20, 0, 0, 40)
    assert told(run("delete", "x.pf", "--page", "r3", "--json")) == {"removed": 1, "pages": 39, "index": "x.pf"}
    facts = told(run("info", "x.pf", "--json"))
    assert (facts["kind"], facts["pages"], facts["documents"], facts["full_vectors"]) == ("index", 39, 1, True)
    assert facts["sources"] == {"pages.jsonl": 39}
    assert facts["fewest"] < facts["facets_per_page"] < facts["most"]
    assert told(run("verify", "x.pf", "--json"))["whole"] is True
    packed = told(run("compact", "x.pf", "--now", "--json"))
    assert packed["bytes_after"] < packed["bytes_before"]
    assert told(run("verify", "x.pf", "--json"))["pages"] == 39
    shown = run("info", "x.pf").stdout
    assert "39 pages" in shown
    assert "name=ward" in shown
    assert "19 pages" not in shown
    assert "39 pages" in run("verify", "x.pf").stdout
    assert "there before" in run("add", "x.pf", "more").stdout
    assert told(run("delete", "x.pf", "pages.jsonl", "--json"))["pages"] == 0


def test_verify_says_what_is_wrong_and_exits_with_1(run, folder):
    (file,) = (folder / "x.pf" / "pages.lance" / "data").iterdir()
    file.write_bytes(file.read_bytes()[:100])
    done = run("verify", "x.pf", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert (result["whole"], result["pages"]) == (False, None)
    assert "is damaged" in result["wrong"][0]
    done = run("verify", "x.pf")
    assert (done.returncode, done.stderr) == (1, "")
    assert "is damaged" in " ".join(done.stdout.split())
    done = run("search", "x.pf", "page 7")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_recipe_goes_in_and_comes_out(run, folder):
    (folder / "recipe.toml").write_text(
        'dtype = "int8"\n[encoder]\nname = "hashed"\np = 32\n[compressor]\nname = "kmeans"\nbudget = 2\n'
    )
    facts = told(run("index", "docs", "-o", "y.pf", "--recipe", "recipe.toml", "--json", "-q"))
    assert facts["facets"] == 40
    assert facts["bytes"] == 40 * (32 + 4)
    text = run("info", "y.pf", "--recipe").stdout
    (folder / "kept.toml").write_text(text)
    assert pf.Recipe.load(folder / "kept.toml") == pf.Index.open(folder / "y.pf").recipe
    done = run("index", "docs", "-o", "z.pf", "--recipe", "recipe.toml", "--keep", "3", "--set", "encoder.p=8", "-q")
    assert done.returncode == 0, done.stderr
    index = pf.Index.open(folder / "z.pf")
    assert (index.manifest.dim, index.recipe.compressor["budget"], index.manifest.dtype) == (8, 3, "int8")


def test_a_pool_makes_magic_the_method(run, folder):
    pages = list(HashedEncoder().encode_pages(pf.open_pages(folder / "docs")))
    queries = HashedEncoder().encode_queries(["net sales", "plant closed"])
    pf.CalibrationPool.build(queries, pages, size=5, dictionary=9).save(folder / "pool.safetensors")
    facts = told(run("index", "docs", "-o", "m.pf", "--model", "hashed", "--pool", "pool.safetensors", "--json", "-q"))
    assert (facts["method"]["name"], facts["method"]["ratio"]) == ("magic", 0.25)
    arguments = ("index", "docs", "-o", "n.pf", "--model", "hashed", "--pool", "pool.safetensors", "--method", "magic")
    facts = told(run(*arguments, "--ratio", "0.5", "--set", "compressor.tau=0.03", "--json", "-q"))
    assert (facts["method"]["ratio"], facts["method"]["tau"]) == (0.5, 0.03)


def test_vectors_and_caches_are_indexed(run, folder):
    assert run("encode", "docs", "--model", "hashed", "-o", "cache", "-q").returncode == 0
    facts = told(run("index", "cache", "-o", "c.pf", "--json", "-q"))
    assert (facts["pages"], facts["encoder"]) == (20, "hashed")
    hits = [told(run("search", path, "page 7", "--json"))["hits"] for path in ("c.pf", "x.pf")]
    assert [[hit["id"] for hit in found] for found in hits] == [[hit["id"] for hit in hits[0]]] * 2
    pf.save_vectors(folder / "v.npz", [pf.PageVectors(np.eye(4, dtype=np.float32))])
    assert told(run("index", "v.npz", "-o", "v.pf", "--json", "-q"))["pages"] == 1
    done = run("search", "v.pf", "anything")
    assert done.returncode == 2
    assert "whose encoder was not named" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["index", "nowhere", "-o", "y.pf"], "nowhere"),
        (["index", "docs", "-o", "docs"], "docs holds something else than an index"),
        (["index", "docs", "-o", "no/y.pf"], "does not exist: create it first"),
        (["index", "docs", "-o", "y.pf", "--ratio", "0.1", "--keep", "3"], "pass --ratio or --keep, not both"),
        (["index", "docs", "-o", "y.pf", "--ratio", "2"], "ratio must lie in (0, 1], got 2"),
        (["index", "docs", "-o", "y.pf", "--method", "magick"], "there is no compressor 'magick'"),
        (["index", "docs", "-o", "y.pf", "--method", "magic"], "magic needs a calibration pool"),
        (["index", "docs", "-o", "y.pf", "--dtype", "float8"], "got 'float8'"),
        (["index", "docs", "-o", "y.pf", "--set", "tau=1"], "--set takes encoder.NAME=VALUE or compressor.NAME=VALUE"),
        (["index", "docs", "-o", "y.pf", "--set", "compressor.tao=1"], "ward has no option 'tao'"),
        (["index", "docs", "-o", "y.pf", "--set", "encoder.size=1"], "hashed has no option 'size'"),
        (["index", "docs", "-o", "y.pf", "--set", "compressor.ratio=0.5"], "got compressor.ratio: use --ratio"),
        (["index", "docs", "-o", "y.pf", "--pool", "none.safetensors"], "none.safetensors"),
        (["index", "docs", "-o", "y.pf", "--recipe", "none.toml"], "there is no recipe none.toml"),
        (["index", "docs", "-o", "x.pf", "--ratio", "0.5"], "choose another path, or the choices it was made with"),
        (["index", "more", "-o", "x.pf"], "'pagefacets add' keeps them beside new ones"),
        (["add", "none.pf", "docs"], "does not exist: build one with 'pagefacets index"),
        (["add", "docs", "more"], "docs holds no whole index"),
        (["search", "none.pf", "x"], "does not exist: build one with"),
        (["search", "x.pf", "x", "-k", "0"], "k must be at least 1, got 0"),
        (["search", "x.pf", "x", "--filter", "colour = 1"], "is no condition over id, source and number"),
        (["search", "x.pf", "x", "--rescore", "2"], "rescore must be at least k=5"),
        (["delete", "x.pf"], "pass a document or --page, one of them"),
        (["delete", "x.pf", "none.pdf"], "x.pf has no document 'none.pdf'"),
        (["delete", "x.pf", "--page", "r99"], "x.pf has no page 'r99'"),
        (["verify", "docs"], "docs holds no whole index"),
        (["compact", "none.pf"], "does not exist"),
        (["info", "docs"], "docs"),
    ],
)
def test_likely_slips_are_one_sentence_and_change_nothing(made, arguments, sentence):
    if arguments[0] == "index" and "y.pf" in arguments:
        arguments = [*arguments, "--model", "hashed"]
    before = lasting(made)
    done = command(made, *arguments)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert lasting(made) == before


def lasting(folder):
    """Every file, but for the lock and what is derived from others."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "write.lock")
    return {path: path.read_bytes() for path in files if path.parent.name != "packed"}


def test_an_unreadable_page_stops_or_is_left_out(run, folder):
    scans = folder / "scans"
    scans.mkdir()
    (scans / "a.png").write_bytes(b"no image")
    done = run("index", "scans", "-o", "s.pf", "--model", "hashed", "-q")
    assert done.returncode == 2
    assert "a.png" in done.stderr
    Image.new("RGB", (3, 4), "red").save(scans / "b.png")
    done = run("index", "scans", "-o", "s.pf", "--model", "hashed", "-q", "--keep-going", "--json")
    facts = told(done)
    assert done.stderr.startswith("pagefacets: left out a.png")
    assert ([skip["place"] for skip in facts["skipped"]], facts["pages"]) == (["a.png"], 1)
