"""Every recipe, run whole and offline: tiny data sets laid out as on the hub, tiny checkpoints of the real kinds."""

import json
import math

import pyarrow.parquet as pq
import pytest
import torch
from evidence.questioners import learn, make_checkpoint
from evidence.vidore_shaped import LANGUAGES, evaluation, training

import pagefacets as pf
from pagefacets.errors import InputError
from pagefacets.evidence.paper import ARTIFACTS, Place, artifact
from pagefacets.evidence.reproduce import reproduce
from pagefacets.evidence.retrievers import ASKER, DataChoice, ModelChoice
from pagefacets.interaction import maxsim_reference
from pagefacets.pages.datasets import open_dataset
from tests.checkpoints import backbones, retrievers

ONE_LANGUAGE = ("ArxivQ", "DocQ", "InfoQ", "TabF", "TATQ", "Shift", "ESG human", "ViDoSeek")
FOUR_LANGUAGES = ("ESG", "Economics", "Biomedical")
# Folders of tiny checkpoints by the model they stand in for. VisRAG runs code of its own from the hub.
SINGLE = {
    "VLM2Vec": "vlm2vec",
    "VLM2Vec-V2": "vlm2vec-v2",
    "UniME-V2": "unime-v2",
    "Jina-v4-single": "jina-v4-single",
    "Qwen3-VL-Embedding-2B": "qwen3-vl-embedding",
    "Qwen3-VL-Embedding-8B": "qwen3-vl-embedding",
}
LATE = {"ColQwen2.5": "colqwen2.5", "ColPali": "colpali", "Jina-v4": "jina-v4", "ColNomic": "colqwen2.5"}
OPTIONS = {
    "AGC": {"rows": 5, "tokens": 4},
    "MetaEmbed": {"page_tokens": "page_tokens", "query_tokens": "query_tokens"},
}

# A retriever with random weights looks at nothing in particular.
pytestmark = pytest.mark.filterwarnings("ignore:.*chosen by diversity alone:UserWarning")


@pytest.fixture(scope="module", autouse=True)
def _offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Two data sets, a training set, and a checkpoint of every kind that the paper has."""
    root = tmp_path_factory.mktemp("reproduce")
    evaluation(root / "one", pages=3)
    evaluation(root / "four", pages=2, languages=LANGUAGES, seed=50)
    training(root / "training", rows=2)
    for name in set(LATE.values()):
        retrievers.saved(name, root)
    for family in {*SINGLE.values(), "agc", "metaembed"}:
        (root / "single" / family).mkdir(parents=True)
        backbones.making(family)(root / "single" / family)
    return root


@pytest.fixture(scope="module")
def run(home):
    """One recipe with everything in the hub's stead."""
    data = [f"{name}={home / 'one'}" for name in ONE_LANGUAGE] + [f"{name}={home / 'four'}" for name in FOUR_LANGUAGES]
    models = [f"{name}={home / folder}" for name, folder in LATE.items()]
    models += [f"{name}={home / 'single' / folder / folder}" for name, folder in SINGLE.items()]
    models += [f"{name}={home / 'single' / name.lower() / name.lower()}" for name in OPTIONS]

    def made(name, *, data=data, models=models, cache=home / "cache", training=str(home / "training"), **options):
        return reproduce(name, data, models, cache, training=training, options=OPTIONS, workers=1, **options)

    return made


@pytest.fixture(scope="module")
def table1(run):
    return run("table1")


@pytest.fixture(scope="module")
def vectors(home, table1):
    """The cache of the data set in one language, read independently of the recipes."""
    (place,) = home.glob("cache/ColQwen2.5-*/one-*")
    return pf.Cache.open(place)


def ndcg5(scores, judged, ids):
    """By its definition, for judgements of 0 and 1; equal scores by descending id."""
    order = sorted(range(len(ids)), key=lambda i: (float(scores[i]), ids[i]), reverse=True)[:5]
    gain = sum(judged.get(ids[i], 0) / math.log2(rank + 2) for rank, i in enumerate(order))
    best = sum(1 / math.log2(rank + 2) for rank in range(min(5, sum(judged.values()))))
    return gain / best


def mean_ndcg5(cache, pages):
    found = [
        ndcg5(maxsim_reference(query, pages), cache.qrels[name], cache.page_ids)
        for name, query in zip(cache.query_ids, cache.queries(), strict=True)
    ]
    return 100 * sum(found) / len(found)


def ours(found, *place):
    (entry,) = [entry for entry in found.entries if entry.place == Place(*place)]
    return entry


def check(found):
    """What holds of every reproduction."""
    places = [entry.place for entry in found.entries]
    assert len(places) == len(set(places))
    assert set(found.artifact.numbers) <= set(places)
    for entry in found.entries:
        assert entry.printed == found.artifact.numbers.get(entry.place)
        assert (entry.ours is None) == (entry.why is not None)
        if entry.difference is not None:
            assert entry.difference == pytest.approx(entry.ours - entry.printed.value)
        if entry.low is not None:
            assert entry.low - 1e-9 <= entry.ours <= entry.high + 1e-9


def test_table1_is_what_the_vectors_say(table1, vectors):
    check(table1)
    assert not table1.unable
    pages = list(vectors.pages)
    full = ours(table1, "all vectors", "ColQwen2.5", "TabF", "ndcg@5")
    assert full.ours == pytest.approx(mean_ndcg5(vectors, pages), abs=1e-4)
    assert full.difference == pytest.approx(full.ours - 89.67)
    for method, row in (("kmeans", "K-Means"), ("docpruner", "DocPruner"), ("colchunk", "ColChunk")):
        facets = [pf.compressor(method, ratio=0.1).compress(page) for page in pages]
        entry = ours(table1, "r = 0.1", row, "TabF", "ndcg@5")
        assert entry.ours == pytest.approx(mean_ndcg5(vectors, facets), abs=1e-4), row
    average = ours(table1, "r = 0.1", "MAGIC", "Avg.", "recall@5")
    six = [ours(table1, "r = 0.1", "MAGIC", one, "recall@5").ours for one in table1.artifact.columns[:-1]]
    assert average.ours == pytest.approx(sum(six) / 6)


def test_the_pool_comes_from_the_training_split_and_magic_reads_it(home, table1, vectors):
    (place,) = home.glob("cache/ColQwen2.5-*/training-*")
    held = pf.Cache.open(place)
    assert len(held) == 8
    assert sorted(held.query_texts) == sorted(
        query.text for query in open_dataset(home / "training", split="train").queries
    )
    pool = pf.CalibrationPool.build(held.queries(), held.pages, seed=0)
    facets = [pf.Magic(ratio=0.1, rounding="nearest").compress(page, pool) for page in vectors.pages]
    found = ours(table1, "r = 0.1", "MAGIC", "ArxivQ", "ndcg@5")
    assert found.ours == pytest.approx(mean_ndcg5(vectors, facets), abs=1e-4)


@pytest.mark.parametrize(
    "name",
    ["table2", pytest.param("figure3", marks=pytest.mark.slow), "figure5", "figure6", "figure9", "figure10"],
)
def test_sweeps_run_whole(run, name):
    found = run(name)
    check(found)
    assert not found.unable
    assert len(found.ran) == len(found.entries)


def test_learned_runs_whole_with_checkpoints_of_ones_own(run):
    found = run("learned")
    check(found)
    assert not found.unable
    english = ours(found, "64 vectors a page", "AGC", "ESG EN", "ndcg@5")
    assert english.printed.value == 54.5


def test_single_vectors_run_but_for_the_model_that_was_left_out(run):
    found = run("single-vector")
    check(found)
    assert {place.row for places in found.unable.values() for place in places} == {"VisRAG"}
    assert found.reasons == ["about 2048 numbers a page, VisRAG: it is not among the models that were asked for"]


def test_table3_counts_what_is_kept_and_takes_encoder_and_compressor_apart(run, vectors):
    found = run("table3", pages=7, queries=3, replays=2)
    check(found)
    assert not found.unable
    assert any("7 pages, of 7 asked for, and 3 distinct queries, of 3; 2 replays" in note for note in found.notes)
    block = "ViDoRe v1 - ColQwen2.5"
    for row in ("ColQwen2.5", "DocPruner", "Light-ColPali", "MAGIC"):
        for ratio in ("r = 0.1", "r = 0.01"):
            total, encoder, compressor = (
                ours(found, block, row, ratio, f"{part}ms per page").ours for part in ("", "encoder, ", "compressor, ")
            )
            assert total == pytest.approx(encoder + compressor)
            assert ours(found, block, row, ratio, "ms per query").ours > 0
            assert (compressor == 0) == (row == "ColQwen2.5")
    size = {row: ours(found, block, row, "r = 0.01", "MB per 1,000 pages").ours for row in ("MAGIC", "DocPruner")}
    # One facet a page; the eleven vectors of the prompt and one patch.
    assert size["MAGIC"] == pytest.approx(4 * 128 / 1000)
    assert size["DocPruner"] == pytest.approx(12 * 4 * 128 / 1000)
    assert all(page.n < 50 for page in vectors.pages)


def test_table3_takes_as_many_as_there_are(run):
    found = run("table3", replays=1)
    assert any("18 pages, of 2,000 asked for, and 3 distinct queries, of 1,000" in note for note in found.notes)


def test_figure1_on_the_data_sets_own_queries(run, vectors):
    found = run("figure1", pages=100)
    check(found)
    assert not found.unable
    assert any("own queries" in note and ASKER in note for note in found.notes)
    # One share of each page's rows, averaged over the pages: each data set has the same three.
    shares = []
    for i, page in enumerate(vectors.pages):
        asked = [q for n, q in zip(vectors.query_ids, vectors.queries(), strict=True) if str(i) in vectors.qrels[n]]
        rows = torch.nn.functional.normalize(page.vectors.float(), dim=1)
        tokens = torch.nn.functional.normalize(torch.cat(asked).float(), dim=1)
        counts = torch.bincount((tokens @ rows.T).argmax(1), minlength=page.n).sort(descending=True).values
        shares.append(float(counts[: math.ceil(0.2 * page.n - 1e-9)].sum() / counts.sum()))
    top = ours(found, "(a) demand", "top 20% of rows", "all vectors", "top share")
    assert top.ours == pytest.approx(100 * sum(shares) / 3, abs=0.5)
    assert top.difference == pytest.approx(top.ours - 84)
    half, tight = (ours(found, "(b) compression", "MAGIC", r, "covering error").ours for r in ("0.5", "0.01"))
    assert half < tight
    assert 1 <= ours(found, "(b) compression", "Light-ColPali", "0.01", "effective facets").ours <= 1.01


def test_figure1_asks_a_model(home, run, tmp_path):
    pages = open_dataset(home / "one").pages[:2]
    taught = make_checkpoint(home / "taught")
    assert learn(taught, pages) < 0.05
    models = [f"ColQwen2.5={home / 'colqwen2.5'}", f"{ASKER}={taught}"]
    found = run("figure1", models=models, data=[f"ArxivQ={home / 'one'}"], pages=2)
    check(found)
    assert any("5 questions of taught about each page" in note for note in found.notes)
    asked = [json.loads(line) for line in next(home.glob("cache/asked-2-0-*.jsonl")).read_text().splitlines()]
    assert len(asked) == 10
    assert len({line["relevant"][0] for line in asked}) == 2
    assert ours(found, "(a) demand", "top 20% of rows", "all vectors", "top share").difference is None


def test_a_second_run_encodes_and_measures_nothing(home, run, table1):
    before = {path: path.stat().st_mtime_ns for path in home.joinpath("cache").rglob("*.*") if path.is_file()}
    again = run("table1")
    after = {path: path.stat().st_mtime_ns for path in home.joinpath("cache").rglob("*.*") if path.is_file()}
    shards = {path for path in before if "pages" in path.parts or "cells" in path.parts}
    assert len(shards) > 20
    assert {path: after[path] for path in shards} == {path: before[path] for path in shards}
    assert [entry.ours for entry in again.entries] == [entry.ours for entry in table1.entries]


def test_without_training_data_only_what_reads_a_pool_is_missing(run, home):
    found = run("table1", training="vidore/colpali_train_set")
    check(found)
    ((why, places),) = found.unable.items()
    assert {place.row for place in places} == {"MAGIC", "MAGIC (rN rounded up)"}
    assert "no calibration pool" in why
    assert "vidore/colpali_train_set" in why
    with pytest.raises(InputError, match="nothing of figure5 could be run: no calibration pool"):
        run("figure5", training=str(home / "nowhere"), data=[f"TabF={home / 'one'}"], models=[str(home / "colpali")])


def test_some_data_sets_make_an_average_that_is_not_compared(run, home):
    found = run("table1", data=[f"DocQ={home / 'one'}", "TabF=owner/gone"])
    check(found)
    assert ours(found, "r = 0.1", "MAGIC", "DocQ", "ndcg@5").difference is not None
    average = ours(found, "r = 0.1", "MAGIC", "Avg.", "ndcg@5")
    assert (average.difference, average.partial) == (None, "without ArxivQ, InfoQ, TabF, TATQ, Shift")
    whys = {places[0].column: why for why, places in found.unable.items()}
    assert whys["ArxivQ"] == "it is not among the data sets that were asked for"
    assert "owner/gone is no folder here" in whys["TabF"]
    assert found.reasons[0] == "ArxivQ; InfoQ; TATQ; Shift: it is not among the data sets that were asked for"


def test_data_of_ones_own_stands_beside_without_a_difference(run, home):
    found = run("learned", data=[str(home / "four")], models=[str(home / "colqwen2.5")])
    check_own = [entry for entry in found.entries if entry.place.column.startswith("four")]
    assert {entry.place.column for entry in check_own} == {"four EN", "four Multi."}
    assert all(entry.difference is None for entry in found.entries)
    assert any(note.startswith("numbers marked * are of other data") for note in found.notes)


def test_what_needs_a_grid_or_importance_says_so(tmp_path):
    pages = [{"id": f"p{i}", "text": f"revenue of page {i} rose by {i} percent in the year"} for i in range(4)]
    asked = [{"query": f"revenue of page {i}", "relevant": [f"p{i}"]} for i in range(4)]
    (tmp_path / "notes").mkdir()
    for name, rows in (("pages", pages), ("queries", asked)):
        (tmp_path / "notes" / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = reproduce("table1", [str(tmp_path / "notes")], ["words"], tmp_path / "cache", training="gone", workers=1)
    rows = {place.row: why for why, places in found.unable.items() for place in places if place.column == "notes"}
    assert "needs the patch grid" in rows["2D-Pooling"]
    assert "needs the importance" in rows["DocPruner"]
    assert "no calibration pool" in rows["MAGIC"]
    assert ours(found, "r = 0.1", "Light-ColPali", "notes", "ndcg@5").ours is not None


def test_results_are_whole_on_disk(table1, run, tmp_path):
    written = table1.save(tmp_path / "out", command="pagefacets reproduce table1")
    assert all(path.stat().st_size > 0 for path in written)
    page = (tmp_path / "out" / "table1.html").read_text()
    assert "<h3>r = 0.01: Recall@5 × 100</h3>" in page
    assert "89.02" in page
    assert "no single run can print 89.02" in page
    assert "http" not in page
    text = (tmp_path / "out" / "table1.md").read_text()
    assert "| MAGIC | ours |" in text
    assert "|  | paper |" in text
    rows = pq.read_table(tmp_path / "out" / "table1.parquet").to_pylist()
    assert len(rows) == len(table1.entries)
    assert {row["paper"] for row in rows} >= {71.04, 82.12}
    read = json.loads((tmp_path / "out" / "table1.json").read_text())
    assert len(read["entries"]) == len(rows)
    assert (tmp_path / "out" / "table1" / "report.html").is_file()
    figure = run("figure1", pages=5)
    figure.save(tmp_path / "figure1")
    assert {path.name for path in (tmp_path / "figure1").iterdir()} >= {"figure1a.png", "figure1b.png", "figure1.html"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"data": ["Nowhere=x"]}, "the paper has no data set 'Nowhere'"),
        ({"data": ["."]}, ". is neither a data set nor a folder of data sets called as the paper's"),
        ({"data": ["Nowhere"]}, "Nowhere is neither a folder nor a data set of the paper"),
        ({"models": ["Nothing=x"]}, "the paper has no model 'Nothing'"),
        ({"options": {"Nothing": {"rows": 1}}}, "the paper has no model 'Nothing'"),
        ({"pages": 0}, "pages must be a whole number, at least 1"),
        ({"cache": "no/such/folder"}, "does not exist: create it first"),
    ],
)
def test_slips_are_one_sentence(tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        reproduce("table3", **arguments)
    assert sentence in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_names_of_data_sets_and_folders_called_so(tmp_path):
    for name in ("tabfquad_test_subsampled_beir", "DocQ", "VidoreTatdqaRetrieval", "esg_reports_v2", "ESG_human"):
        evaluation(tmp_path / name, pages=1)
    (tmp_path / "unrelated").mkdir()
    choice = DataChoice.of([str(tmp_path)])
    assert set(choice.named) == {"TabF", "DocQ", "TATQ", "ESG", "ESG human"}
    choice = DataChoice.of(["vidore-v1", "VidoreShiftProjectRetrieval=/elsewhere"])
    assert len(choice.named) == 6
    assert choice.named["Shift"] == "/elsewhere"
    assert [one.place for one in DataChoice.of().of_suite("vidoseek")] == ["VLM2Vec/ViDoSeek-page-fixed"]


def test_options_reach_the_models_they_name():
    models = ModelChoice.of([], {"": {"dtype": "float32"}, "agc": {"rows": 5}})
    assert models.find("AGC").options == {"family": "agc", "dtype": "float32", "rows": 5}
    assert models.find("ColPali").options == {"importance": True, "dtype": "float32"}
    assert ModelChoice.of(["words"]).find("ColQwen2.5").options == {}
    with pytest.raises(InputError, match="no checkpoint of MetaEmbed is public"):
        ModelChoice.of().find("MetaEmbed")


def test_training_data_is_read_from_a_few_of_its_files(tmp_path):
    training(tmp_path, rows=2, shards=6)
    some = open_dataset(tmp_path, split="train", shards=3)
    assert [page.id for page in some.pages] == [f"train-{shard}-{i}.png" for shard in (0, 2, 4) for i in range(2)]
    assert len(open_dataset(tmp_path, split="train").pages) == 12
    assert [page.id for page in open_dataset(tmp_path).pages] == ["test.png"]


def test_all_of_the_paper_is_there():
    assert {name for name in ARTIFACTS if artifact(name).numbers} == set(ARTIFACTS)
