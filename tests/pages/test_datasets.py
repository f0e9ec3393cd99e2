import io
import json
import pickle
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pagefacets.errors import FileFormatError, InputError, PageError
from pagefacets.pages.datasets import Query, brings_queries, open_dataset
from pagefacets.pages.source import open_pages
from pagefacets.parallel import ordered
from tests.pages.pdfs import Sheet, pdf, show


def drawn(shade, size=(30, 20)):
    data = io.BytesIO()
    Image.new("RGB", size, (shade, shade, shade)).save(data, "PNG")
    return {"bytes": data.getvalue(), "path": f"{shade}.png"}


def write(path, rows, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path, **options)


def lines(path, *objects):
    path.write_text("".join(json.dumps(one) + "\n" for one in objects), encoding="utf-8")


CORPUS = [{"corpus-id": number, "image": drawn(10 * number), "doc-id": "d"} for number in range(7)]
QUERIES = [
    {"query-id": 0, "query": "first?", "language": "english"},
    {"query-id": 1, "query": "erste?", "language": "german"},
    {"query-id": 2, "query": "second?", "language": "english"},
]
QRELS = [
    {"query-id": 0, "corpus-id": 3, "score": 1},
    {"query-id": 0, "corpus-id": 5, "score": 2},
    {"query-id": 1, "corpus-id": 3, "score": 1},
    {"query-id": 2, "corpus-id": 6, "score": 0},
]


def vidore(folder, places, corpus=CORPUS, queries=QUERIES, qrels=QRELS):
    for rows, place in zip((corpus, queries, qrels), places, strict=True):
        if "*" in place:
            half = len(rows) // 2
            write(folder / place.replace("*", "00000-of-00002"), rows[:half])
            write(folder / place.replace("*", "00001-of-00002"), rows[half:])
        else:
            write(folder / place, rows)
    return folder


PLACES = {
    "files": ["corpus.parquet", "queries.parquet", "qrels.parquet"],
    "folders": ["corpus/test-00000-of-00001.parquet", "queries/test-00000-of-00001.parquet", "qrels/test.parquet"],
    "data": ["data/corpus-00000-of-00001.parquet", "data/queries-00000-of-00001.parquet", "data/qrels.parquet"],
    "shards": ["corpus/test-*.parquet", "queries/test-*.parquet", "qrels/test-*.parquet"],
    "converted": ["corpus/test/0000.parquet", "queries/test/0000.parquet", "qrels/test/0000.parquet"],
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_vidore_in_every_arrangement(tmp_path, places):
    dataset = open_dataset(vidore(tmp_path / "esg", places))
    assert dataset.name == "esg"
    assert [page.id for page in dataset.pages] == ["0", "1", "2", "3", "4", "5", "6"]
    assert dataset.queries == (
        Query("0", "first?", "english"),
        Query("1", "erste?", "german"),
        Query("2", "second?", "english"),
    )
    assert dataset.qrels == {"0": {"3": 1, "5": 2}, "1": {"3": 1}, "2": {"6": 0}}
    assert [page.size for page in dataset.pages] == [(30, 20)] * 7
    assert len({page.digest for page in dataset.pages}) == 7
    for page in (*dataset.pages, *reversed(dataset.pages)):
        assert page.image().getpixel((0, 0)) == (10 * int(page.id),) * 3
        assert page.words() is None
    assert [page.digest for page in open_pages(tmp_path / "esg")] == [page.digest for page in dataset.pages]


def test_the_third_vidore_calls_its_columns_otherwise(tmp_path):
    corpus = [
        {"corpus_id": row["corpus-id"], "image": row["image"], "doc_id": "d", "markdown": f"# Page {row['corpus-id']}"}
        for row in CORPUS
    ]
    queries = [{"query_id": row["query-id"], "query": row["query"], "language": "french"} for row in QUERIES]
    qrels = [
        {"query_id": row["query-id"], "corpus_id": row["corpus-id"], "score": 2, "bounding_boxes": []} for row in QRELS
    ]
    vidore(tmp_path, PLACES["folders"], corpus, queries, qrels)
    write(tmp_path / "documents_metadata" / "test-00000-of-00001.parquet", [{"doc_id": "d", "url": "x"}])
    dataset = open_dataset(tmp_path, language="French")
    assert len(dataset.queries) == 3
    assert dataset.qrels["0"] == {"3": 2, "5": 2}
    assert dataset.pages[4].words().texts == ("#", "Page", "4")
    assert dataset.pages[4].words().boxes is None
    assert dataset.pages[4].image().size == (30, 20)


def test_a_corpus_of_text_has_words_and_no_image(tmp_path):
    corpus = [{"_id": "a", "text": "some text"}, {"_id": "b", "text": None}]
    queries = [{"_id": "q", "text": "what?"}]
    vidore(tmp_path, PLACES["files"], corpus, queries, [{"query-id": "q", "corpus-id": "a", "score": 1}])
    dataset = open_dataset(tmp_path)
    assert dataset.pages[0].words().texts == ("some", "text")
    assert dataset.pages[1].words().texts == ()
    assert dataset.pages[0].size is None
    with pytest.raises(PageError, match="a: has no image in row 0"):
        dataset.pages[0].image()


def test_one_split_is_taken_of_several(tmp_path):
    vidore(tmp_path, PLACES["folders"])
    write(tmp_path / "qrels" / "train.parquet", [{"query-id": 9, "corpus-id": 9, "score": 1}])
    write(tmp_path / "corpus" / "train-00000-of-00001.parquet", CORPUS[:1])
    assert len(open_dataset(tmp_path).pages) == 7


def test_questions_and_images_in_one_table(tmp_path):
    rows = [
        {"query": "a?", "image": drawn(10), "image_filename": "x.png"},
        {"query": "b?", "image": drawn(20), "image_filename": "y.png"},
        {"query": "c?", "image": drawn(10), "image_filename": "x.png"},
        {"query": "a?", "image": drawn(20), "image_filename": "y.png"},
        {"query": None, "image": drawn(30), "image_filename": "z.png"},
    ]
    write(tmp_path / "data" / "test-00000-of-00001.parquet", rows)
    dataset = open_dataset(tmp_path)
    assert [page.id for page in dataset.pages] == ["x.png", "y.png", "z.png"]
    assert [query.text for query in dataset.queries] == ["a?", "b?", "c?"]
    assert dataset.qrels == {"0": {"x.png": 1, "y.png": 1}, "1": {"y.png": 1}, "2": {"x.png": 1}}
    assert [page.image().getpixel((0, 0))[0] for page in dataset.pages] == [10, 20, 30]


def test_queries_of_one_language(tmp_path):
    vidore(tmp_path, PLACES["files"])
    dataset = open_dataset(tmp_path, language="english")
    assert [query.id for query in dataset.queries] == ["0", "2"]
    assert dataset.qrels == {"0": {"3": 1, "5": 2}, "2": {"6": 0}}
    assert len(dataset.pages) == 7
    with pytest.raises(InputError, match="has no queries in 'finnish': they are in english, german"):
        open_dataset(tmp_path, language="finnish")
    write(tmp_path / "queries.parquet", [{"query-id": row["query-id"], "query": row["query"]} for row in QUERIES])
    assert [query.language for query in open_dataset(tmp_path).queries] == [None] * 3
    with pytest.raises(InputError, match="it does not say in which languages they are"):
        open_dataset(tmp_path, language="english")


def without(rows, column):
    return [{name: value for name, value in row.items() if name != column} for row in rows]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"corpus": without(CORPUS, "corpus-id")},
            "has no column 'corpus-id' or 'id', but image, doc-id: rename",
        ),
        ({"corpus": without(CORPUS, "image")}, "has neither a column 'image' nor a text, but corpus-id, doc-id"),
        ({"queries": without(QUERIES, "query")}, "queries.parquet has no column 'query' or 'text'"),
        ({"qrels": without(QRELS, "score")}, "qrels.parquet has no column 'score'"),
        ({"corpus": [*CORPUS, CORPUS[2]]}, "has more than one page '2'"),
        ({"queries": [*QUERIES, QUERIES[1]]}, "has more than one query '1'"),
        ({"corpus": [*CORPUS, {"corpus-id": None, "image": drawn(1)}]}, "row 7 of corpus.parquet has no corpus-id"),
        ({"queries": [*QUERIES, {"query-id": 9, "query": ""}]}, "row 3 of queries.parquet lacks its query-id or"),
        ({"qrels": [*QRELS, {"query-id": 1, "corpus-id": None, "score": 1}]}, "row 4 of qrels.parquet lacks"),
        ({"qrels": [*QRELS, {"query-id": 0, "corpus-id": 3, "score": 9}]}, "judges page '3' for query '0' twice"),
        ({"qrels": [{"query-id": 0, "corpus-id": 77, "score": 1}]}, "all judgements of .* name a query or a page"),
    ],
)
def test_faults_are_one_sentence(tmp_path, change, sentence):
    vidore(tmp_path, PLACES["files"], **change)
    with pytest.raises(InputError, match=sentence) as caught:
        open_dataset(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_judgement_that_leads_nowhere_is_kept_and_said(tmp_path):
    more = [{"query-id": 1, "corpus-id": 77, "score": 1}, {"query-id": 88, "corpus-id": 1, "score": 1}]
    vidore(tmp_path, PLACES["files"], qrels=[*QRELS, *more])
    with pytest.warns(UserWarning, match=r"2 judgements of .* \(first: query '1', page '77'\): such a page is never"):
        dataset = open_dataset(tmp_path)
    assert dataset.qrels["1"] == {"3": 1, "77": 1}
    assert "88" not in dataset.qrels


def test_the_same_judgement_twice_is_one(tmp_path):
    vidore(tmp_path, PLACES["files"], qrels=[*QRELS, QRELS[0]])
    assert open_dataset(tmp_path).qrels["0"] == {"3": 1, "5": 2}


def test_a_row_without_a_picture_is_one_bad_page(tmp_path):
    broken = [{"bytes": None, "path": "x.png"}, {"bytes": b"no picture", "path": None}, None]
    corpus = [*CORPUS, *({"corpus-id": 100 + number, "image": image} for number, image in enumerate(broken))]
    vidore(tmp_path, PLACES["files"], corpus=corpus)
    dataset = open_dataset(tmp_path)
    assert len(dataset.pages) == 10
    for page, why in zip(
        dataset.pages[7:], ["has no image", "is no image of a known kind", "has no image"], strict=True
    ):
        assert page.size is None
        with pytest.raises(PageError, match=f"{page.id}: {why}"):
            page.image()
    assert dataset.pages[6].image().size == (30, 20)


def test_digests_tell_which_rows_changed(tmp_path):
    vidore(tmp_path / "a", PLACES["files"])
    changed = [*CORPUS[:3], {**CORPUS[3], "image": drawn(99)}, *CORPUS[4:]]
    vidore(tmp_path / "b", PLACES["shards"], corpus=changed)
    before, after = (open_dataset(tmp_path / name).pages for name in "ab")
    assert [old.id for old, new in zip(before, after, strict=True) if old.digest != new.digest] == ["3"]


def test_a_table_replaced_after_listing_is_noticed(tmp_path):
    vidore(tmp_path, PLACES["files"])
    page = open_dataset(tmp_path).pages[2]
    write(tmp_path / "corpus.parquet", CORPUS[:3])
    with pytest.raises(PageError, match=r"corpus\.parquet: has changed since it was listed"):
        page.image()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-40],
        lambda data: b"x" * 500,
        lambda data: b"",
        lambda data: data[:90] + bytes(len(data) // 3) + data[90 + len(data) // 3 :],
    ],
    ids=["cut off", "no Parquet", "empty", "overwritten"],
)
def test_a_damaged_table_is_one_sentence(tmp_path, damage):
    vidore(tmp_path, PLACES["files"])
    path = tmp_path / "corpus.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises((FileFormatError, PageError), match=r"corpus\.parquet.* (damaged|empty)") as caught:
        open_dataset(tmp_path)
    assert "\n" not in str(caught.value)


def noise(seed):
    rng = np.random.default_rng(seed)
    data = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (600, 600, 3), dtype=np.uint8)).save(data, "BMP")
    return {"bytes": data.getvalue(), "path": None}


def corner(shared, page):
    return page.image().getpixel((0, 0))


def test_images_are_read_in_order_without_holding_them_all(tmp_path):
    rows = [{"corpus-id": number, "image": noise(number)} for number in range(120)]
    write(tmp_path / "corpus.parquet", rows, row_group_size=20, compression="none", use_dictionary=False)
    total = sum(len(row["image"]["bytes"]) for row in rows)
    assert total > 120e6
    wanted = [Image.open(io.BytesIO(row["image"]["bytes"])).getpixel((0, 0)) for row in rows]
    del rows
    pool = pa.default_memory_pool()
    before, peak = pool.bytes_allocated(), 0
    pages = open_pages(tmp_path)
    found = []
    for page in pages:
        found.append(corner(None, page))
        peak = max(peak, pool.bytes_allocated() - before)
    assert found == wanted
    assert peak < total / 4
    assert len(pickle.dumps(pages[-1])) < 1000
    assert list(ordered(corner, pages[::7], workers=2, shared=None)) == wanted[::7]


def test_pages_given_as_text(tmp_path):
    lines(tmp_path / "pages.jsonl", {"id": "a.jpg", "text": "some\n\ntext \ud83d"}, {"id": 2, "text": ""})
    lines(
        tmp_path / "queries.jsonl",
        {"query": "what?", "relevant": ["a.jpg"], "answer": ["x"]},
        {"id": "q", "query": "which?", "relevant": ["a.jpg", 2], "language": "en"},
    )
    dataset = open_dataset(tmp_path)
    assert [page.id for page in dataset.pages] == ["a.jpg", "2"]
    assert [page.number for page in dataset.pages] == [0, 1]
    assert dataset.queries == (Query("0", "what?"), Query("q", "which?", "en"))
    assert dataset.qrels == {"0": {"a.jpg": 1}, "q": {"a.jpg": 1, "2": 1}}
    words = dataset.pages[0].words()
    assert (words.texts, words.boxes) == (("some", "text"), None)
    assert dataset.pages[1].words().texts == ()
    with pytest.raises(PageError, match=r"a\.jpg: is given as text and has no image"):
        dataset.pages[0].image()
    assert [page.id for page in open_pages(tmp_path)] == ["a.jpg", "2"]
    assert dataset.pages[0].digest != dataset.pages[1].digest


def test_documents_beside_their_queries(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.pdf").write_bytes(pdf([Sheet(show(name, 72, 700)) for name in ("one", "two", "three")]))
    Image.new("RGB", (8, 8)).save(tmp_path / "scan.png")
    lines(
        tmp_path / "queries.jsonl",
        {"query": "two?", "document": "sub/a.pdf", "pages": [1]},
        {"query": "scanned?", "document": "scan.png", "pages": [0]},
        {"query": "ids too?", "relevant": ["sub/a.pdf#0"]},
        {"query": "nothing?"},
    )
    dataset = open_dataset(tmp_path)
    assert [page.id for page in dataset.pages] == ["scan.png", "sub/a.pdf#0", "sub/a.pdf#1", "sub/a.pdf#2"]
    assert dataset.qrels == {"0": {"sub/a.pdf#1": 1}, "1": {"scan.png": 1}, "2": {"sub/a.pdf#0": 1}}
    assert len(dataset.queries) == 4
    (tmp_path / "sub" / "a.pdf").write_bytes(b"broken")
    with pytest.raises(PageError, match=r"sub/a\.pdf"):
        open_dataset(tmp_path)
    reported = []
    with pytest.warns(UserWarning, match="2 judgements"):
        dataset = open_dataset(tmp_path, skipped=reported.append)
    assert [page.id for page in dataset.pages] == ["scan.png"]
    assert dataset.qrels["0"] == {"sub/a.pdf#1": 1}
    assert [error.place for error in reported] == ["sub/a.pdf"]


@pytest.mark.parametrize(
    ("file", "text", "sentence"),
    [
        ("pages.jsonl", '{"id": "a", "text": "x"}\n{"id": "b"', r"pages\.jsonl, line 2, is not JSON"),
        ("pages.jsonl", '{"id": "a"}', r"pages\.jsonl, line 1, is no page"),
        ("pages.jsonl", "[1, 2]", r"line 1, is a JSON list, not an object"),
        ("pages.jsonl", '{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "has more than one page 'a'"),
        ("queries.jsonl", '{"question": "x"}', r"queries\.jsonl, line 1, is no query"),
        ("queries.jsonl", '{"query": " "}', r"queries\.jsonl, line 1, is no query"),
        ("queries.jsonl", '{"query": "x", "relevant": "a"}', "does not say which pages answer it"),
        ("queries.jsonl", '{"query": "x", "relevant": ["zzz"]}', "all judgements of"),
        ("queries.jsonl", b'{"query": "\xff"}', r"queries\.jsonl is not UTF-8"),
        ("queries.jsonl", "[" * 100_000, "line 1, is not JSON"),
    ],
)
def test_faults_in_lines_are_one_sentence(tmp_path, file, text, sentence):
    lines(tmp_path / "pages.jsonl", {"id": "a", "text": "x"})
    lines(tmp_path / "queries.jsonl", {"query": "x", "relevant": ["a"]})
    (tmp_path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=sentence) as caught:
        open_dataset(tmp_path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_blank_lines_and_a_byte_order_mark_are_passed_over(tmp_path):
    (tmp_path / "pages.jsonl").write_bytes(b'\xef\xbb\xbf{"id": "a", "text": "x"}\r\n\r\n')
    assert [page.id for page in open_pages(tmp_path)] == ["a"]


def test_what_is_no_dataset_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="is no folder: give the folder of a dataset, or owner/name on the hub"):
        open_dataset(tmp_path / "missing")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"has no queries: add queries\.jsonl"):
        open_dataset(tmp_path)


def test_what_brings_queries(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert not brings_queries(tmp_path)
    assert not brings_queries(tmp_path / "a.png")
    assert not brings_queries(tmp_path / "missing")
    assert brings_queries("owner/name")
    lines(tmp_path / "queries.jsonl", {"query": "x"})
    assert brings_queries(tmp_path)
    assert brings_queries(vidore(tmp_path / "v", PLACES["data"]))


def test_a_stray_parquet_file_is_no_dataset(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    write(tmp_path / "vectors.parquet", [{"x": 1}])
    write(tmp_path / "train-00000-of-00001.parquet", [{"x": 1}])
    assert [page.id for page in open_pages(tmp_path)] == ["a.png"]


@pytest.fixture
def offline_hub(tmp_path, monkeypatch):
    """The hub's cache with one dataset in it, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    cache = tmp_path / "hub"
    home = cache / "datasets--owner--name"
    commit = "a" * 40
    vidore(home / "snapshots" / commit, PLACES["folders"])
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return home


def test_a_dataset_on_the_hub(offline_hub):
    dataset = open_dataset("owner/name")
    assert dataset.name == "owner/name"
    assert (len(dataset.pages), len(dataset.queries)) == (7, 3)
    assert dataset.pages[1].image().size == (30, 20)
    assert [page.id for page in open_pages("owner/name")] == [page.id for page in dataset.pages]
    assert len(open_dataset("owner/name@" + "a" * 40).pages) == 7


def test_without_network_the_hub_is_one_sentence(offline_hub):
    for opening in (open_dataset, open_pages):
        with pytest.raises(InputError, match="owner/other is no folder here, and the hub does not give out") as caught:
            opening("owner/other")
        assert "\n" not in str(caught.value)


def test_a_mistyped_path_does_not_lead_to_the_hub(offline_hub, tmp_path):
    (tmp_path / "reports").mkdir()
    with pytest.raises(InputError, match="there is no file or folder reports/anual"):
        open_pages("reports/anual")
    shutil.rmtree(offline_hub / "snapshots" / ("a" * 40) / "corpus")
    with pytest.raises(InputError, match="has no Parquet table of pages"):
        open_pages("owner/name")


@pytest.mark.realdata
def test_the_scans_given_as_text(realdata):
    with pytest.warns(UserWarning, match="2 judgements of mpdocvqa"):
        dataset = open_dataset(realdata / "mpdocvqa")
    assert (len(dataset.pages), len(dataset.queries)) == (740, 1879)
    assert all(page.words().texts for page in dataset.pages)
    filings = open_dataset(realdata / "filings")
    assert (len(filings.pages), len(filings.queries)) == (355, 15)
    assert filings.qrels["0"] == {"BOEING_2022_10K.pdf#61": 1}
