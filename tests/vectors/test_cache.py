"""The laws of a cache: it holds what its encoder makes of its source, whatever happened on the way."""

import dataclasses
import json
import os
import re
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import pagefacets as pf
from pagefacets.errors import FileFormatError, InputError, PageError
from pagefacets.pages.datasets import Dataset, Query
from pagefacets.vectors.cache import Cache, encode
from pagefacets.vectors.caching import update
from pagefacets.vectors.caching.locks import FileLock
from pagefacets.vectors.caching.manifest import PageTable, Places, ShardFile
from tests.vectors.hashed import HashedEncoder, text_pages

SIZE = 4


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(update, "PAGES_PER_SHARD", SIZE)
    monkeypatch.setattr(update, "QUERIES_PER_SHARD", 2)


@pytest.fixture
def docs(tmp_path):
    """Fourteen pages, which make three full shards and a half."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for number in range(14):
        write(folder, f"p{number:02d}", f"page {number} says {'very ' * (number % 5)}much")
    return folder


def write(folder, name, text):
    (folder / f"{name}.txt").write_text(text)


def contents(folder):
    """Every file that holds something, by its path; the locks hold nothing."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "locks"
    }


def assert_holds(cache, pages, encoder=None):
    """The cache is what the encoder makes of the pages, in their order, in float16."""
    expected = list((encoder or HashedEncoder()).encode_pages(pages))
    opened = Cache.open(cache)
    assert opened.page_ids == [page.id for page in pages]
    assert len(opened.pages) == len(opened) == len(pages)
    for found, wanted in zip(opened.pages, expected, strict=True):
        assert found.id == wanted.id
        assert found.vectors.dtype == torch.float16
        torch.testing.assert_close(found.vectors, wanted.vectors.half(), rtol=0, atol=0)


def test_a_cache_keeps_all_of_a_page(docs, tmp_path):
    pages = text_pages(docs)
    cache = encode(pages, HashedEncoder(), tmp_path / "cache", queries=["what says 3?", "very much", "page"])
    assert_holds(tmp_path / "cache", pages)
    for found, wanted in zip(cache.pages, HashedEncoder().encode_pages(pages), strict=True):
        assert found.grid == wanted.grid
        for name in ("image_mask", "importance", "boxes"):
            torch.testing.assert_close(getattr(found, name), getattr(wanted, name), equal_nan=True)
    assert cache.query_texts == ["what says 3?", "very much", "page"]
    assert cache.query_ids == ["0", "1", "2"]
    for found, wanted in zip(cache.queries(), HashedEncoder().encode_queries(cache.query_texts), strict=True):
        torch.testing.assert_close(found, wanted.half())
    table = cache.manifest.pages
    assert (table.sources[3], table.numbers[3], table.sizes[3]) == ("p03.txt", 0, (612.0, 792.5))
    assert list(table.places.digests) == [page.digest for page in pages]
    assert cache.pages.counts.tolist() == [page.n for page in cache.pages]
    assert cache.pages.sources == [page.source for page in pages]
    assert cache.pages.metadata == {"encoder": "hashed", "query_prefix": "ask: "}
    assert cache.run.encoded == 14
    assert Cache.open(tmp_path / "cache").manifest == cache.manifest


def test_a_dataset_brings_its_queries_and_qrels(docs, tmp_path):
    pages = text_pages(docs)
    asked = (Query("q-a", "what says 3?", "en"), Query("q-b", "was sagt 7?", "de"))
    qrels = {"q-a": {"p03": 2, "p04": 0}, "q-b": {"p07": 1, "p00": 1}}
    cache = encode(Dataset("sayings", pages, asked, qrels), HashedEncoder(), tmp_path / "cache")
    cache = Cache.open(cache.path)
    assert cache.query_ids == ["q-a", "q-b"]
    assert cache.qrels == qrels
    assert cache.pages.qrels.tolist() == [[0, 3], [1, 0], [1, 7]]
    assert cache.pages[3:].qrels.tolist() == [[0, 0], [1, 4]]
    assert cache.manifest.source == "sayings"
    assert cache.manifest.queries.languages == ("en", "de")


def test_a_folder_of_tables_is_a_dataset_and_a_stray_table_is_not(tmp_path):
    folder = tmp_path / "beir"
    for name, rows in {
        "corpus": [{"corpus-id": i, "text": f"page {i} says much"} for i in range(5)],
        "queries": [{"query-id": 7, "query": "what says 3?", "language": "english"}],
        "qrels": [{"query-id": 7, "corpus-id": 3, "score": 1}],
    }.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / name / "test-00000-of-00001.parquet")
    cache = encode(folder, HashedEncoder(), tmp_path / "cache", language="english")
    assert cache.page_ids == ["0", "1", "2", "3", "4"]
    assert (cache.query_ids, cache.qrels) == (["7"], {"7": {"3": 1}})
    assert encode(folder, HashedEncoder(), tmp_path / "cache").run.encoded == 0

    (tmp_path / "scans").mkdir()
    Image.new("RGB", (30, 40), "white").save(tmp_path / "scans" / "s.png")
    pf.save_vectors(tmp_path / "scans" / "stray.parquet", cache.pages)
    assert encode(tmp_path / "scans", HashedEncoder(), tmp_path / "other").page_ids == ["s.png"]


@pytest.mark.parametrize(
    ("table", "rows", "sentence"),
    [
        ("corpus", [{"corpus-id": 0, "text": 5}], "row 0 of corpus.parquet has the text 5, which is no text"),
        ("corpus", [{"corpus-id": 3, "text": "a"}] * 2, "has more than one page '3'"),
        ("corpus", [{"corpus-id": None, "text": "a"}], "row 0 of corpus.parquet has no corpus-id"),
        ("corpus", [{"id2": 0, "text": "a"}], "corpus.parquet has no column 'corpus-id'"),
        ("queries", [{"query-id": 7, "query": 5}], "row 0 of queries.parquet has the query 5, which is no text"),
        ("queries", [{"query-id": 7, "query": "a", "language": 5}], "has the language 5, which is no text"),
        ("queries", [{"query-id": 7, "query": " "}], "query '7' is ' ', which asks nothing"),
        ("queries", [{"query-id": 7, "query": None}], "row 0 of queries.parquet lacks its query-id or its query"),
        ("queries", [{"query-id": 7, "query": "a"}] * 2, "has more than one query '7'"),
        ("queries", None, "has a Parquet table 'qrels' and none of 'queries'"),
        ("qrels", [{"query-id": 7, "corpus-id": 3, "score": 0.5}], "row 0 of qrels.parquet has the score 0.5"),
        ("qrels", [{"query-id": 7, "corpus-id": 3, "score": float("nan")}], "has the score nan: write whole numbers"),
        ("qrels", [{"query-id": 7, "corpus-id": 3, "score": "high"}], "row 0 of qrels.parquet has the score 'high'"),
        ("qrels", [{"query-id": 7, "corpus-id": 3}], "qrels.parquet has no column 'score'"),
        ("qrels", [{"query-id": 70, "corpus-id": 3, "score": 1}], "name a query or a page that it does not have"),
        ("qrels", None, "has a Parquet table 'queries' and none of 'qrels'"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_sentence_and_no_cache(tmp_path, table, rows, sentence):
    folder = tmp_path / "beir"
    folder.mkdir()
    tables = {
        "corpus": [{"corpus-id": 3, "text": "page 3 says much"}],
        "queries": [{"query-id": 7, "query": "what says 3?"}],
        "qrels": [{"query-id": 7, "corpus-id": 3, "score": 1}],
        table: rows,
    }
    for name, content in tables.items():
        if content is not None:
            pq.write_table(pa.Table.from_pylist(content), folder / f"{name}.parquet")
    with pytest.raises(InputError, match=re.escape(sentence)) as raised:
        encode(folder, HashedEncoder(), tmp_path / "cache")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "cache").exists()


def test_what_reads_vectors_reads_a_cache(docs, tmp_path):
    cache = encode(text_pages(docs), HashedEncoder(p=64), tmp_path / "cache", queries=["what says 3?", "very much"])
    pages = pf.open_vectors(tmp_path / "cache")
    pool = pf.CalibrationPool.build(pages.queries(), pages, size=5)
    magic = pf.Magic(ratio=0.3)
    alone = [magic.compress(page, pool).vectors for page in cache.pages]
    for workers in (1, 2):
        together = list(magic.compress_many(pages, pool, workers=workers))
        assert [facets.id for facets in together] == cache.page_ids
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(one, other.vectors, rtol=0, atol=0)
    backwards = pages[::-1]
    assert [page.id for page in backwards] == cache.page_ids[::-1]
    assert pf.save_vectors(tmp_path / "pages.npz", pages) == 14


def test_a_second_run_encodes_nothing_and_touches_nothing(docs, tmp_path):
    first, second = HashedEncoder(), HashedEncoder()
    before = encode(text_pages(docs), first, tmp_path / "cache", queries=["much"])
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("cache/*/*") if path.parent.name != "locks"}
    manifest = (tmp_path / "cache" / "manifest.json").stat()
    after = encode(text_pages(docs), second, tmp_path / "cache", queries=["much"])
    assert len(first.asked) == 14
    assert second.asked == []
    assert (after.run.encoded, after.run.kept, after.run.queries_encoded) == (0, 14, 0)
    assert after.manifest == before.manifest
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    assert (tmp_path / "cache" / "manifest.json").stat().st_mtime_ns == manifest.st_mtime_ns


def test_only_what_changed_is_encoded_and_what_went_is_gone(docs, tmp_path):
    encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    write(docs, "p02", "another text")
    write(docs, "p02b", "a page between")
    (docs / "p05.txt").unlink()
    for name in ("p08", "p09", "p10", "p11"):
        (docs / f"{name}.txt").unlink()
    encoder = HashedEncoder()
    cache = encode(text_pages(docs), encoder, tmp_path / "cache")
    assert encoder.asked == ["p02", "p02b"]
    assert (cache.run.encoded, cache.run.kept, cache.run.dropped) == (2, 8, 5)
    assert_holds(tmp_path / "cache", text_pages(docs))
    stored = [page.id for file in (tmp_path / "cache/pages").glob("*.safetensors") for page in pf.open_vectors(file)]
    assert sorted(stored) == sorted(cache.page_ids)
    third = HashedEncoder()
    encode(text_pages(docs), third, tmp_path / "cache")
    assert third.asked == []


def test_queries_stay_until_others_are_given(docs, tmp_path):
    pages = text_pages(docs)
    encode(pages, HashedEncoder(), tmp_path / "cache", queries=["one", "two", "three"])
    assert encode(pages[:13], HashedEncoder(), tmp_path / "cache").query_texts == ["one", "two", "three"]
    cache = encode(pages, HashedEncoder(), tmp_path / "cache", queries=["one", "two", "four", "five"])
    assert cache.run.queries_encoded == 2
    for found, wanted in zip(cache.queries(), HashedEncoder().encode_queries(cache.query_texts), strict=True):
        torch.testing.assert_close(found, wanted.half())


@pytest.mark.parametrize("ahead", [0, 3, 20])
def test_a_run_that_stops_anywhere_goes_on_where_it_stopped(docs, tmp_path, ahead):
    whole = tmp_path / "whole"
    encode(text_pages(docs), HashedEncoder(), whole)
    pages = text_pages(docs)
    for stop in range(14):
        cache = tmp_path / f"cache{stop}"
        with pytest.raises(KeyboardInterrupt):
            encode(pages, Interrupted(ahead=ahead, after=stop), cache)
        with pytest.raises(InputError, match="is not finished"):
            Cache.open(cache)
        again = HashedEncoder(ahead=ahead)
        encode(pages, again, cache)
        assert again.asked == [page.id for page in pages[stop // SIZE * SIZE :]]
        assert contents(cache) == contents(whole)


class Interrupted(HashedEncoder):
    """Stops as Ctrl-C does, after so many pages."""

    def __init__(self, *, after, **options):
        super().__init__(**options)
        object.__setattr__(self, "after", after)

    def encode_pages(self, pages, *, skipped=None):
        for number, vectors in enumerate(super().encode_pages(pages, skipped=skipped)):
            if number == self.after:
                raise KeyboardInterrupt
            yield vectors


def test_shards_are_written_while_pages_come(docs, tmp_path):
    """When a page is read, all shards before the one before its own are on disk: nothing piles up in memory."""
    finished = []

    class Watched(HashedEncoder):
        def encode_pages(self, pages, *, skipped=None):
            for vectors in super().encode_pages(pages, skipped=skipped):
                finished.append(len(list((tmp_path / "cache/pages").glob("*.json"))))
                yield vectors

    encode(text_pages(docs), Watched(), tmp_path / "cache")
    assert finished == [number // SIZE for number in range(14)]


def flipped(file):
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def truncated(file):
    file.write_bytes(file.read_bytes()[:-1])


def garbled(file):
    file.with_suffix(".json").write_text('{"held": [[')


def unrecorded(file):
    file.with_suffix(".json").unlink()


@pytest.mark.parametrize("damage", [flipped, truncated, os.unlink, garbled, unrecorded])
def test_a_damaged_shard_is_noticed_and_made_again(docs, tmp_path, damage):
    cache = encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    before = contents(cache.path)
    damage(cache.path / "pages" / cache.manifest.pages.places.files[1].name)
    if damage in (truncated, os.unlink):
        with pytest.raises(FileFormatError, match="run pagefacets encode again"):
            Cache.open(cache.path)
    encoder = HashedEncoder()
    mended = encode(text_pages(docs), encoder, cache.path)
    assert encoder.asked == ["p04", "p05", "p06", "p07"]
    assert mended.run.damaged == (damage not in (garbled, unrecorded))
    assert contents(cache.path) == before


def test_a_damaged_shard_of_queries_is_made_again_from_the_texts_in_the_cache(docs, tmp_path):
    cache = encode(text_pages(docs), HashedEncoder(), tmp_path / "cache", queries=["one", "two", "three"])
    before = contents(cache.path)
    flipped(next((cache.path / "queries").glob("*.safetensors")))
    assert encode(text_pages(docs), HashedEncoder(), cache.path).run.damaged == 1
    assert contents(cache.path) == before


def test_what_a_kill_left_behind_is_cleared_away_and_nothing_else(docs, tmp_path):
    cache = encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    before = contents(cache.path)
    name = cache.manifest.pages.places.files[0].name
    for left in (f"pages/.{name}.0a1b2c3d.partial", ".manifest.json.0a1b2c3d.partial", f"pages/{'0' * 32}.safetensors"):
        (cache.path / left).write_bytes(b"half")
    (cache.path / "pages" / "notes.txt").write_text("mine")
    encode(text_pages(docs), HashedEncoder(), cache.path)
    assert contents(cache.path) == {**before, "pages/notes.txt": b"mine"}


def test_a_bad_page_stops_the_run_and_finished_shards_stay(docs, tmp_path):
    write(docs, "p09", "unreadable")
    with pytest.raises(PageError, match="p09: is marked as unreadable"):
        encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    assert len(list((tmp_path / "cache/pages").glob("*.json"))) == 2
    write(docs, "p09", "mended")
    encoder = HashedEncoder()
    encode(text_pages(docs), encoder, tmp_path / "cache")
    assert encoder.asked == [f"p{number:02d}" for number in range(8, 14)]


@pytest.mark.parametrize("ahead", [0, 5])
def test_a_bad_page_is_left_out_noted_and_tried_again(docs, tmp_path, ahead):
    good = text_pages(docs)
    bad = ["p00", "p05", "p08", "p09", "p10", "p11", "p13"]
    for name in bad:
        write(docs, name, "unreadable")
    told = []
    pages = text_pages(docs)
    cache = encode(pages, HashedEncoder(ahead=ahead), tmp_path / "cache", keep_going=True, skipped=told.append)
    assert [error.place for error in told] == bad
    assert cache.run.skipped == tuple(told)
    assert cache.manifest.skipped == tuple((name, "is marked as unreadable") for name in bad)
    assert_holds(cache.path, [page for page in pages if page.id not in bad])

    before = contents(cache.path)
    again = HashedEncoder(ahead=ahead)
    same = encode(pages, again, cache.path, keep_going=True)
    assert sorted(again.asked) == bad
    assert (same.run.encoded, len(same.run.skipped)) == (0, len(bad))
    assert contents(cache.path) == before
    with pytest.raises(PageError, match="is marked as unreadable"):
        encode(pages, HashedEncoder(), cache.path)

    for page in good:
        write(docs, page.id, f"page {int(page.id[1:])} says {'very ' * (int(page.id[1:]) % 5)}much")
    mended = encode(text_pages(docs), HashedEncoder(ahead=ahead), cache.path)
    assert mended.run.encoded == len(bad)
    assert mended.manifest.skipped == ()
    assert_holds(cache.path, good)


def test_no_page_at_all_is_no_cache(docs, tmp_path):
    for page in text_pages(docs):
        write(docs, page.id, "unreadable")
    with pytest.raises(InputError, match="none of the pages could be encoded, the first is p00: is marked"):
        encode(text_pages(docs), HashedEncoder(), tmp_path / "cache", keep_going=True)
    with pytest.raises(InputError, match="holds no page"):
        encode([], HashedEncoder(), tmp_path / "cache")


def test_another_encoder_is_refused_by_name(docs, tmp_path):
    encode(text_pages(docs), HashedEncoder(salt="a"), tmp_path / "cache")
    with pytest.raises(InputError, match="was encoded by hashed with salt='a' and not salt='b': name another folder"):
        encode(text_pages(docs), HashedEncoder(salt="b"), tmp_path / "cache")

    class Other(HashedEncoder):
        @property
        def id(self):
            return "another"

    with pytest.raises(InputError, match="was encoded by hashed and not by another"):
        encode(text_pages(docs), Other(salt="a"), tmp_path / "cache")


def test_a_slip_of_the_source_loses_nothing(docs, tmp_path):
    pages = text_pages(docs)
    encode(Dataset("mine", pages, (), {}), HashedEncoder(), tmp_path / "cache")
    before = contents(tmp_path / "cache")
    for other in (Dataset("yours", pages[:3], (), {}), Dataset("mine", pages[:0], (), {}), pages[:3]):
        with pytest.raises(InputError, match=r"would lose 11 of them|holds no page"):
            encode(other, HashedEncoder(), tmp_path / "cache")
    assert contents(tmp_path / "cache") == before
    write(docs, "q", "a new page of the same source")
    added = Dataset("yours", text_pages(docs), (), {})
    assert len(encode(added, HashedEncoder(), tmp_path / "cache")) == 15


class Faulty(HashedEncoder):
    """Breaks the promise of its name, at page p06."""

    def encode_pages(self, pages, *, skipped=None):
        for page in super().encode_pages(pages, skipped=skipped):
            if page.id != "p06":
                yield page
            elif self.salt == "stranger":
                yield pf.PageVectors(page.vectors, id="who")
            elif self.salt == "nan":
                yield pf.PageVectors(page.vectors * float("nan"), id=page.id)
            elif self.salt == "dim":
                yield pf.PageVectors(page.vectors[:, :3], id=page.id)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("silent", "left out 'p06' and did not say why"),
        ("stranger", "gave vectors of 'who', which it was not asked for"),
        ("nan", "p06: the encoder gave vectors that are not finite"),
        ("dim", "p06: the encoder gave vectors of dimension 3 and says 16"),
    ],
)
def test_an_encoder_that_breaks_its_promise_is_caught(docs, tmp_path, fault, sentence):
    with pytest.raises(InputError, match=sentence):
        encode(text_pages(docs), Faulty(salt=fault), tmp_path / "cache")
    if fault in ("nan", "dim"):
        cache = encode(text_pages(docs), Faulty(salt=fault), tmp_path / "cache", keep_going=True)
        assert "p06" not in cache.page_ids
        assert len(cache) == 13


def test_places_where_no_cache_can_be(docs, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    pages = text_pages(docs)
    for place, sentence in (
        ("file", "is a file"),
        ("full", "holds other files than a cache"),
        ("no/cache", "does not exist: create it first"),
    ):
        with pytest.raises(InputError, match=sentence):
            encode(pages, HashedEncoder(), tmp_path / place)
    encode(pages, HashedEncoder(), tmp_path / "cache")
    with pytest.raises(InputError, match="is a cache, its pages are encoded already"):
        encode(tmp_path / "cache", HashedEncoder(), tmp_path / "other")
    with pytest.raises(InputError, match=r"holds more than \.npy files"):
        pf.save_vectors(tmp_path / "cache", [pf.PageVectors(np.eye(3, dtype=np.float32))])
    with pytest.raises(InputError, match="two pages have the id 'p00'"):
        encode([*pages, pages[0]], HashedEncoder(), tmp_path / "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "docs", "file", "full"]


def test_a_manifest_that_cannot_be_used_is_one_sentence(docs, tmp_path):
    cache = encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    place = cache.path / "manifest.json"
    content = json.loads(place.read_text())
    head = '{"format": "pagefacets-cache", '
    for damaged, sentence in (
        (head, "is damaged"),
        (json.dumps({**content, "version": 2}), "has version 2 of the cache layout"),
        (json.dumps({**content, "pages": {**content["pages"], "row": [0]}}), "its column 'row' is garbled"),
        (json.dumps({**content, "pages": {**content["pages"], "shard": [9] * 14}}), "its column 'shard' is garbled"),
        (json.dumps({**content, "pages": 3}), "is damaged"),
        (json.dumps({**content, "encoder": None}), "is damaged"),
        (head + '"version": ' + "[" * 100_000, "is damaged"),
    ):
        place.write_text(damaged)
        for use in (Cache.open, pf.open_vectors, lambda path: encode(text_pages(docs), HashedEncoder(), path)):
            with pytest.raises(FileFormatError, match=sentence):
                use(cache.path)
    place.write_text(json.dumps({**content, "pages": {**content["pages"], "row": content["pages"]["row"][::-1]}}))
    with pytest.raises(FileFormatError, match="does not hold 'p13' where the manifest says so"):
        Cache.open(cache.path).pages[13]
    place.unlink()
    with pytest.raises(InputError, match="is no cache"):
        Cache.open(cache.path)


def test_a_cache_that_changed_under_a_reader_is_refused(docs, tmp_path):
    cache = encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    pages = cache.pages
    for number in range(14):
        write(docs, f"p{number:02d}", f"changed {number}")
    encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    with pytest.raises(FileFormatError, match="has changed since it was opened"):
        pages[9]


def test_a_thousand_shards_open_quickly_and_unread(docs, tmp_path):
    """Shards of the right length, but with nothing in them: whoever reads one notices."""
    cache = encode(text_pages(docs)[:1], HashedEncoder(), tmp_path / "cache")
    n, shards = 32_000, 1000
    files = tuple(ShardFile(f"{number:032x}.safetensors", 10_000_000, "0" * 32) for number in range(shards))
    for file in files:
        (cache.path / "pages" / file.name).touch()
        os.truncate(cache.path / "pages" / file.name, file.nbytes)
    numbers = tuple(range(n))
    places = Places(
        ids=tuple(f"folder/document.pdf#{number}" for number in numbers),
        digests=("0" * 32,) * n,
        vectors=(700,) * n,
        shards=tuple(number // 32 for number in numbers),
        rows=tuple(number % 32 for number in numbers),
        files=files,
    )
    table = PageTable(places, ("folder/document.pdf",) * n, numbers, ((595.0, 842.0),) * n)
    dataclasses.replace(cache.manifest, pages=table).save(cache.path)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        opened = Cache.open(cache.path)
        assert (len(opened.pages), opened.pages.rows) == (n, 700 * n)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 1
    with pytest.raises(FileFormatError):
        opened.pages[0]


def test_locks_exclude_share_and_outlive_their_file(tmp_path):
    one, two, three = (FileLock(tmp_path / "lock") for _ in range(3))
    assert one.take()
    assert not two.take()
    assert not two.take(shared=True)
    assert one.take(shared=True)
    assert two.take(shared=True)
    assert not three.take()
    one.release()
    two.release(remove=True)
    assert not (tmp_path / "lock").exists()
    assert three.take()
    assert not one.take()


VERSIONS = st.dictionaries(st.integers(0, 11), st.integers(0, 3), min_size=1)


@settings(max_examples=12)
@given(st.lists(st.tuples(VERSIONS, st.integers(0, 12)), min_size=1, max_size=5))
def test_any_history_of_edits_and_stops_ends_as_a_fresh_start_does(tmp_path_factory, history):
    """Pages come, change, go, turn bad and turn good, runs stop anywhere; in the end what is wanted is there."""
    root = tmp_path_factory.mktemp("history")
    (root / "docs").mkdir()
    write(root / "docs", "always", "there")
    sync, os.fsync = os.fsync, lambda _: None
    try:
        for state, stop in history:
            for number in range(12):
                (root / "docs" / f"p{number:02d}.txt").unlink(missing_ok=True)
            for number, version in state.items():
                write(root / "docs", f"p{number:02d}", f"version {version} of {number}" if version else "unreadable")
            pages = text_pages(root / "docs")
            try:
                encode(pages, Interrupted(after=stop, ahead=stop % 3), root / "cache", keep_going=True)
            except KeyboardInterrupt:
                encode(pages, HashedEncoder(), root / "cache", keep_going=True)
            good = [page for page in pages if page.content.path.read_text() != "unreadable"]
            assert_holds(root / "cache", good)
            bad = {page.id for page in pages} - {page.id for page in good}
            assert {place for place, _ in Cache.open(root / "cache").manifest.skipped} == bad
            idle = HashedEncoder()
            encode(pages, idle, root / "cache", keep_going=True)
            assert set(idle.asked) == bad
    finally:
        os.fsync = sync
