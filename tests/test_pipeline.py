"""Indexes as a user builds and changes them: documents in, hits out."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pagefacets as pf
from pagefacets import update
from pagefacets.errors import InputError, PageError, PoolMismatchError
from pagefacets.interaction import maxsim_reference
from pagefacets.pages.source import open_pages
from pagefacets.vectors import encoder as encoders
from tests.vectors.hashed import HashedEncoder, text_pages

WORDS = ("plant", "sales", "chart", "region", "cost", "income", "share", "debt", "lease", "crew", "risk", "court")
WARD = pf.compressor("ward", ratio=0.5)


@pytest.fixture(autouse=True)
def hashed(monkeypatch):
    monkeypatch.setitem(encoders.ENCODERS, "hashed", "tests.vectors.hashed:HashedEncoder")


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(12):
        write(folder, i)
    return folder


def write(folder, i, extra=""):
    chosen = np.random.default_rng(i).choice(WORDS, 6 + i % 5)
    (folder / f"p{i:02d}.txt").write_text(f"page{i} {' '.join(chosen)} {extra}")


def assert_exactly(index, folder, *, full=False, ratio=0.5):
    """The index holds what its pages give when they are encoded and compressed one by one, and nothing else."""
    pages = {page.id: page for page in text_pages(folder) if "unreadable" not in page.content.path.read_text()}
    listing = index.reader.listing
    assert sorted(listing.ids) == sorted(pages)
    assert index.verify() == []
    for place, name in enumerate(listing.ids):
        (vectors,) = HashedEncoder().encode_pages([pages[name]])
        expected = pf.compressor("ward", ratio=ratio).compress(vectors)
        found = index.reader.facets(name)
        torch.testing.assert_close(found.vectors, expected.vectors, atol=1e-3, rtol=1e-2)
        assert torch.equal(found.assignment, expected.assignment)
        assert listing.digests[place] == pages[name].digest
        if full:
            torch.testing.assert_close(index.reader.page(name).vectors.float(), vectors.vectors, atol=1e-3, rtol=1e-2)


def test_documents_to_hits(tmp_path, docs):
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), WARD, full=True)
    assert_exactly(index, docs, full=True)
    assert dataclasses.replace(index.change, seconds=0.0) == update.Change(12, 0, 0, 0, (), 0.0)
    ((best, *_),) = [pf.Index.open(tmp_path / "x.pf").search("page7", k=3)]
    assert (best.page, best.rank, best.source, best.number) == ("p07", 1, "p07.txt", 0)
    assert len(index) == 12
    assert repr(index) == f"Index({str(tmp_path / 'x.pf')!r}, pages=12, encoder='hashed')"


@given(
    st.lists(st.text(st.sampled_from("ab "), min_size=1).filter(str.strip), min_size=1, max_size=3), st.integers(1, 15)
)
def test_scores_are_maxsim_over_the_facets(tmp_path_factory, queries, k):
    folder = tmp_path_factory.getbasetemp() / "shared"
    if not folder.exists():
        folder.mkdir()
        for i in range(12):
            write(folder, i, "a b ab ba" if i % 3 == 0 else "")
        pf.Index.build(folder / "x.pf", text_pages(folder), HashedEncoder(), WARD)
    index = pf.Index.open(folder / "x.pf", HashedEncoder())
    facets = [index.reader.facets(name) for name in index.reader.listing.ids]
    for hits, query in zip(index.search_many(queries, k), HashedEncoder().encode_queries(queries), strict=True):
        scores = dict(zip(index.reader.listing.ids, maxsim_reference(query, facets).tolist(), strict=True))
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores.values(), reverse=True)[:k], abs=1e-4)
        assert all(scores[hit.page] == pytest.approx(hit.score, abs=1e-4) for hit in hits)


def test_again_nothing_is_encoded_and_nothing_written(tmp_path, docs):
    pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), WARD)
    before = {path: path.read_bytes() for path in (tmp_path / "x.pf").rglob("*") if path.is_file()}
    encoder = HashedEncoder()
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), encoder, WARD)
    assert encoder.asked == []
    assert (index.change.added, index.change.replaced, index.change.kept, index.change.removed) == (0, 0, 12, 0)
    assert {path: path.read_bytes() for path in (tmp_path / "x.pf").rglob("*") if path.is_file()} == before


def test_only_new_and_changed_pages_are_encoded_and_gone_ones_removed(tmp_path, docs):
    pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), WARD)
    write(docs, 3, "changed")
    write(docs, 12)
    (docs / "p05.txt").unlink()
    encoder = HashedEncoder()
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), encoder, WARD)
    assert encoder.asked == ["p03", "p12"]
    assert (index.change.added, index.change.replaced, index.change.kept, index.change.removed) == (1, 1, 10, 1)
    assert_exactly(index, docs)


def test_add_keeps_the_rest_and_delete_takes_what_is_named(tmp_path, docs):
    pages = text_pages(docs)
    index = pf.Index.build(tmp_path / "x.pf", pages[:5], HashedEncoder(), WARD)
    write(docs, 2, "changed")
    index = pf.Index.open(tmp_path / "x.pf", encoder := HashedEncoder())
    change = index.add(text_pages(docs)[2:8])
    assert encoder.asked == ["p02", "p05", "p06", "p07"]
    assert (change.added, change.replaced, change.kept, change.removed) == (3, 1, 2, 0)
    assert index.delete(document="p01.txt") == 1
    assert index.delete(page="p06") == 1
    for gone in ("p01", "p06", "p08", "p09", "p10", "p11"):
        (docs / f"{gone}.txt").unlink()
    assert_exactly(index, docs)
    index.compact(now=True)
    assert_exactly(index, docs)
    with pytest.raises(InputError, match=r"x\.pf has no document 'p01\.txt'"):
        index.delete(document="p01.txt")
    with pytest.raises(InputError, match=r"x\.pf has no page 'p06'"):
        index.delete(page="p06")
    with pytest.raises(InputError, match="delete takes a document or a page"):
        index.delete()


def test_a_document_that_lost_pages_loses_them_in_the_index(tmp_path, docs):
    pages = [dataclasses.replace(page, source="one.pdf", number=i) for i, page in enumerate(text_pages(docs))]
    index = pf.Index.build(tmp_path / "x.pf", pages, HashedEncoder(), WARD)
    change = index.add(pages[:7])
    assert (change.kept, change.removed) == (7, 5)
    assert index.reader.listing.documents() == {"one.pdf": 7}
    assert index.delete(document="one.pdf") == 7
    assert index.search("page1") == []


def test_a_page_that_cannot_be_read_stops_or_is_left_out(tmp_path, docs):
    (docs / "p04.txt").write_text("unreadable")
    with pytest.raises(PageError, match="p04: is marked as unreadable"):
        pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), WARD)
    told = []
    index = pf.Index.build(
        tmp_path / "x.pf", text_pages(docs), HashedEncoder(), WARD, keep_going=True, skipped=told.append
    )
    assert [error.place for error in told] == ["p04"] == [error.place for error in index.change.skipped]
    assert_exactly(index, docs)
    (docs / "p07.txt").write_text("now unreadable too")
    index.add(text_pages(docs), keep_going=True)
    assert_exactly(index, docs)
    write(docs, 4)
    write(docs, 7)
    index.add(text_pages(docs))
    assert_exactly(index, docs)


def test_a_page_whose_vectors_cannot_be_used_is_left_out_alone(tmp_path):
    pages = [pf.PageVectors(torch.eye(8), id=f"p{i}") for i in range(5)]
    pages[2] = pf.PageVectors(torch.full((3, 8), torch.nan), id="p2")
    with pytest.raises(InputError, match="p2"):
        pf.Index.build(tmp_path / "x.pf", pages, compressor=WARD)
    index = pf.Index.build(tmp_path / "x.pf", pages, compressor=WARD, keep_going=True)
    assert list(index.reader.listing.ids) == ["p0", "p1", "p3", "p4"]
    assert [error.place for error in index.change.skipped] == ["p2"]


def test_what_was_committed_stays_when_a_page_stops_the_run(tmp_path, docs, monkeypatch):
    monkeypatch.setattr(update, "PAGES", 2)
    (docs / "p07.txt").write_text("unreadable")
    with pytest.raises(PageError):
        pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), WARD)
    assert sorted(pf.Index.open(tmp_path / "x.pf").reader.listing.ids) == [f"p{i:02d}" for i in range(6)]
    write(docs, 7)
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), encoder := HashedEncoder(), WARD)
    assert encoder.asked == [f"p{i:02d}" for i in range(6, 12)]
    assert_exactly(index, docs)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"encoder": HashedEncoder(salt="b")}, "was made by hashed with salt='' and not salt='b'"),
        ({"compressor": pf.compressor("ward", ratio=0.25)}, "'ratio': 0.5"),
        ({"compressor": pf.compressor("kmeans", ratio=0.5)}, "'kmeans'"),
        ({"dtype": "int8"}, "was made by dtype='float16' and not 'int8'"),
        ({"full": True}, "was made by full=False and not True"),
    ],
)
def test_an_index_is_gone_on_with_by_the_choices_it_was_begun_with(tmp_path, docs, choices, sentence):
    pf.Index.build(tmp_path / "x.pf", text_pages(docs)[:3], HashedEncoder(), WARD)
    with pytest.raises(InputError, match=re.escape(sentence)):
        pf.Index.build(tmp_path / "x.pf", text_pages(docs), **choices)
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs))
    assert_exactly(index, docs)


def test_an_index_without_pages_binds_nobody_to_its_choices(tmp_path, docs):
    (docs / "p00.txt").write_text("unreadable")
    with pytest.raises(PageError):
        pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(salt="b"), dtype="int8", full=True)
    (docs / "p00.txt").unlink()
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), WARD)
    assert_exactly(index, docs)


def test_a_foreign_encoder_is_refused_when_an_index_is_opened(tmp_path, docs):
    pf.Index.build(tmp_path / "x.pf", text_pages(docs)[:3], HashedEncoder(), WARD)
    with pytest.raises(InputError, match=r"x\.pf was made by hashed with salt='' and not salt='z': open it with the"):
        pf.Index.open(tmp_path / "x.pf", HashedEncoder(salt="z"))
    index = pf.Index.open(tmp_path / "x.pf")
    assert index.encoder == HashedEncoder()
    with pytest.raises(InputError, match="the query has dimension 8 and the index 16: encode it with hashed"):
        index.search(torch.eye(8))


def test_an_encoder_that_has_changed_since_is_refused_at_the_first_query(tmp_path, docs, monkeypatch):
    pf.Index.build(tmp_path / "x.pf", text_pages(docs)[:3], HashedEncoder(), WARD)
    monkeypatch.setattr(HashedEncoder, "id", "hashed-2")
    index = pf.Index.open(tmp_path / "x.pf")
    assert len(index.search(torch.eye(16)[:2])) == 3
    with pytest.raises(InputError, match="was made by hashed and not by hashed-2"):
        index.search("page")


def test_a_source_that_shares_no_page_is_most_likely_a_slip(tmp_path, docs):
    pages = text_pages(docs)
    pf.Index.build(tmp_path / "x.pf", pages[:4], HashedEncoder(), WARD)
    with pytest.raises(InputError, match="holds 4 pages, none of which is in the pages given: 'pagefacets add' keeps"):
        pf.Index.build(tmp_path / "x.pf", pages[4:])
    with pytest.raises(InputError, match="the pages given holds no page that can be read"):
        pf.Index.build(tmp_path / "x.pf", [])
    with pytest.raises(InputError, match="the pages given has two pages 'p00'"):
        pf.Index.build(tmp_path / "x.pf", [*pages, pages[0]])
    assert len(pf.Index.open(tmp_path / "x.pf")) == 4


def test_filters_and_what_is_no_filter(tmp_path, docs):
    pages = [dataclasses.replace(page, source=f"{i % 2}.pdf", number=i) for i, page in enumerate(text_pages(docs))]
    index = pf.Index.build(tmp_path / "x.pf", pages, HashedEncoder(), WARD)
    everything = [hit.page for hit in index.search("page3 plant", k=12)]
    for condition, kept in (
        ("source = '1.pdf'", lambda i: i % 2 == 1),
        ("number < 4 OR id = 'p09'", lambda i: i < 4 or i == 9),
        ("source LIKE '0%' AND number BETWEEN 2 AND 8", lambda i: i % 2 == 0 and 2 <= i <= 8),
        ("number > 100", lambda i: False),
    ):
        wanted = [name for name in everything if kept(int(name[1:]))]
        assert [hit.page for hit in index.search("page3 plant", k=12, filter=condition)] == wanted
        assert [hit.page for hit in index.search("page3 plant", k=2, filter=condition)] == wanted[:2]
    for condition in ("colour = 'red'", "number <", "DROP TABLE pages", ""):
        with pytest.raises(InputError, match="is no condition over id, source and number") as refused:
            index.search("page3", filter=condition)
        assert "\n" not in str(refused.value)


def test_rescoring_ranks_candidates_by_their_full_vectors(tmp_path, docs):
    index = pf.Index.build(
        tmp_path / "x.pf", text_pages(docs), HashedEncoder(), pf.compressor("ward", budget=2), full=True
    )
    (query,) = HashedEncoder().encode_queries(["page3 sales"])
    full = {page.id: page for page in HashedEncoder().encode_pages(text_pages(docs))}
    exact = dict(zip(full, maxsim_reference(query, list(full.values())).tolist(), strict=True))
    coarse = [hit.page for hit in index.search(query, k=12)]
    for candidates in (3, 6, 12, 100):
        among = sorted(coarse[:candidates], key=exact.__getitem__, reverse=True)[:3]
        hits = index.search(query, k=3, rescore=candidates)
        assert [hit.page for hit in hits] == among
        assert [hit.score for hit in hits] == pytest.approx([exact[name] for name in among], abs=0.02)
    with pytest.raises(InputError, match="rescore must be at least k=3, the number of hits, got 2"):
        index.search(query, k=3, rescore=2)
    plain = pf.Index.build(tmp_path / "y.pf", text_pages(docs), HashedEncoder(), WARD)
    with pytest.raises(InputError, match=r"y\.pf keeps no full vectors to rescore with"):
        plain.search(query, k=3, rescore=5)


def test_refresh_moves_an_open_index_on(tmp_path, docs):
    pages = text_pages(docs)
    index = pf.Index.build(tmp_path / "x.pf", pages[:4], HashedEncoder(), WARD)
    other = pf.Index.open(tmp_path / "x.pf", HashedEncoder())
    other.add(pages[4:])
    assert [len(index), len(other)] == [4, 12]
    assert len(index.search("page9", k=20)) == 4
    assert len(index.refresh().search("page9", k=20)) == 12


def test_magic_with_a_pool_and_the_pool_lies_in_the_index(tmp_path, docs):
    pages = list(HashedEncoder().encode_pages(text_pages(docs)))
    queries = HashedEncoder().encode_queries(["plant sales", "court risk", "crew of the fleet"])
    pool = pf.CalibrationPool.build(queries, pages, size=6, dictionary=8)
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), pool=pool)
    assert index.compressor == pf.Magic(ratio=0.25)
    assert index.pool.sha256 == pool.sha256 == index.manifest.pool_sha256
    for page in pages:
        expected = pf.Magic(ratio=0.25).compress(page, pool)
        found = index.reader.facets(page.id)
        torch.testing.assert_close(found.vectors, expected.vectors, atol=1e-3, rtol=1e-2)
        torch.testing.assert_close(found.demand, expected.demand, atol=1e-3, rtol=1e-2)
    write(docs, 12)
    assert pf.Index.build(tmp_path / "x.pf", text_pages(docs)).change.added == 1
    other = pf.CalibrationPool.build(queries[:2], pages, size=4, dictionary=8)
    with pytest.raises(InputError, match="was made by pool_sha256="):
        pf.Index.build(tmp_path / "x.pf", text_pages(docs), pool=other)
    other.save(tmp_path / "x.pf" / "pool.safetensors")
    write(docs, 13)
    with pytest.raises(InputError, match="is not the pool this index was made with: put that one back"):
        pf.Index.open(tmp_path / "x.pf").add(text_pages(docs))
    with pytest.raises(InputError, match="magic needs a calibration pool: make one with 'pagefacets calibrate'"):
        pf.Index.build(tmp_path / "y.pf", text_pages(docs), HashedEncoder(), pf.Magic(ratio=0.1))
    assert not (tmp_path / "y.pf").exists()


def test_a_pool_of_another_space_is_refused(tmp_path, docs):
    rng = np.random.default_rng(0)
    foreign = pf.CalibrationPool.build([rng.standard_normal((20, 8))], [rng.standard_normal((30, 8))], size=10)
    with pytest.raises(PoolMismatchError, match="dimension 16 but the calibration pool has 8"):
        pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), pool=foreign, keep_going=True)


def test_a_cache_is_not_encoded_again(tmp_path, docs):
    pf.encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    index = pf.Index.build(tmp_path / "x.pf", tmp_path / "cache", compressor=WARD, full=True)
    assert_exactly(index, docs, full=True)
    assert index.search("page7", k=1)[0].page == "p07"
    assert pf.Index.build(tmp_path / "x.pf", tmp_path / "cache").change.kept == 12
    write(docs, 12)
    write(docs, 3, "changed")
    pf.encode(text_pages(docs), HashedEncoder(), tmp_path / "cache")
    change = index.add(str(tmp_path / "cache"))
    assert (change.added, change.replaced, change.kept) == (1, 1, 11)
    assert_exactly(index, docs, full=True)
    pf.encode(text_pages(docs), HashedEncoder(salt="b"), tmp_path / "other")
    with pytest.raises(InputError, match="was made by hashed with salt='b' and not salt=''"):
        index.add(tmp_path / "other")
    with pytest.raises(InputError, match="was made by hashed with salt='b' and not salt=''"):
        pf.Index.build(tmp_path / "y.pf", tmp_path / "other", HashedEncoder())
    with pytest.raises(PageError, match="was indexed from pages at hand, so its document is not known here"):
        index.page("p03")


@pytest.mark.parametrize("how", ["file", "opened", "list"])
def test_vectors_at_hand_are_indexed(tmp_path, docs, how):
    pages = list(HashedEncoder().encode_pages(text_pages(docs)))
    pf.save_vectors(tmp_path / "v.safetensors", pages)
    source = {"file": tmp_path / "v.safetensors", "opened": pf.open_vectors(tmp_path / "v.safetensors"), "list": pages}
    index = pf.Index.build(tmp_path / "x.pf", source[how], compressor=WARD)
    (query,) = HashedEncoder().encode_queries(["page7"])
    assert index.search(query, k=1)[0].page == "p07"
    with pytest.raises(InputError, match="built from vectors whose encoder was not named: search it by vectors"):
        index.search("page7")
    assert pf.Index.open(tmp_path / "x.pf", HashedEncoder()).search("page7", k=1)[0].page == "p07"
    named = pf.Index.build(tmp_path / "y.pf", source[how], HashedEncoder(), WARD)
    assert named.search("page7", k=1)[0].page == "p07"
    assert pf.Index.build(tmp_path / "x.pf", source[how]).change.kept == 12
    layout = named.reader.layout("p07")
    assert layout["grid"] == pages[7].grid
    pf.save_vectors(tmp_path / "f.safetensors", WARD.compress_many(pages))
    with pytest.raises(InputError, match=r"f\.safetensors already holds facets"):
        pf.Index.build(tmp_path / "z.pf", tmp_path / "f.safetensors")


def test_a_recipe_is_saved_in_the_index_and_makes_it_again(tmp_path, docs):
    (tmp_path / "recipe.toml").write_text(
        'dtype = "int8"\nfull = true\n[encoder]\nname = "hashed"\nsalt = "é"\n'
        '[compressor]\nname = "kmeans"\nbudget = 3\n'
    )
    recipe = pf.Recipe.load(tmp_path / "recipe.toml")
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), recipe=recipe)
    assert index.encoder == HashedEncoder(salt="é")
    assert index.compressor == pf.compressor("kmeans", budget=3)
    assert (index.manifest.dtype, index.manifest.full) == ("int8", True)
    index.recipe.save(tmp_path / "kept.toml")
    again = pf.Recipe.load(tmp_path / "kept.toml")
    assert again == index.recipe
    other = pf.Index.build(tmp_path / "y.pf", text_pages(docs), recipe=again)
    assert other.manifest == index.manifest
    assert [hit.score for hit in other.search("page3")] == [hit.score for hit in index.search("page3")]


def test_defaults_need_neither_network_nor_pool():
    assert pf.Recipe() == pf.Recipe(encoder={"name": "words"}, compressor={"name": "ward", "ratio": 0.25})
    assert pf.Recipe().made_compressor() == pf.compressor("ward", ratio=0.25)
    assert pf.Recipe().made_encoder().id.startswith("words-")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dtype = ", "is not TOML"),
        ("colour = 1", "a recipe has no 'colour', it has encoder, compressor, dtype, full"),
        ('dtype = "float8"', "float32, float16, int8, binary, got 'float8'"),
        ("full = 1", "full is true or false, got 1"),
        ('encoder = "words"', "the encoder of a recipe is a table with a name, got 'words'"),
        ("[compressor]\nratio = 0.5", "the compressor of a recipe is a table with a name"),
    ],
)
def test_a_recipe_that_says_nothing_of_use_is_refused(tmp_path, text, sentence):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(InputError, match=re.escape(sentence)):
        pf.Recipe.load(tmp_path / "recipe.toml")
    with pytest.raises(InputError, match="there is no recipe"):
        pf.Recipe.load(tmp_path / "none.toml")


def scans(folder, count, seed=0):
    folder.mkdir(parents=True)
    for i in range(count):
        pixels = np.random.default_rng(seed + i).integers(0, 255, (4, 3, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"s{i}.png")


def test_documents_below_an_indexed_folder_keep_their_names(tmp_path):
    scans(tmp_path / "all" / "2023", 3)
    index = pf.Index.build(tmp_path / "x.pf", tmp_path / "all", HashedEncoder(), WARD)
    before = list(index.reader.listing.sources)
    assert before == [f"2023/s{i}.png" for i in range(3)]
    Image.new("RGB", (3, 4), "red").save(tmp_path / "all" / "2023" / "s1.png")
    change = index.add(tmp_path / "all" / "2023" / "s1.png")
    assert (change.added, change.replaced) == (0, 1)
    Image.new("RGB", (3, 4), "blue").save(tmp_path / "all" / "2023" / "s9.png")
    change = index.add(tmp_path / "all" / "2023")
    assert (change.added, change.replaced, change.kept) == (1, 0, 3)
    assert sorted(index.reader.listing.sources) == [*before, "2023/s9.png"]
    assert index.page("2023/s9.png").image().getpixel((0, 0)) == (0, 0, 255)


def test_two_documents_of_one_name_do_not_take_each_others_place(tmp_path):
    scans(tmp_path / "a", 2)
    scans(tmp_path / "b", 2, seed=10)
    index = pf.Index.build(tmp_path / "x.pf", tmp_path / "a", HashedEncoder(), WARD)
    with pytest.raises(InputError, match=r"s0\.png lies in .*/a and in .*/b, and an index calls one document by one"):
        index.add(tmp_path / "b")
    assert len(index) == 2
    both = pf.Index.build(tmp_path / "y.pf", tmp_path, HashedEncoder(), WARD)
    assert sorted(both.reader.listing.sources) == ["a/s0.png", "a/s1.png", "b/s0.png", "b/s1.png"]


def test_documents_that_were_moved_are_not_encoded_again(tmp_path):
    scans(tmp_path / "a", 3)
    pf.Index.build(tmp_path / "x.pf", tmp_path / "a", HashedEncoder(), WARD)
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(PageError, match="no longer"):
        pf.Index.open(tmp_path / "x.pf").page("s1.png")
    index = pf.Index.build(tmp_path / "x.pf", tmp_path / "b", encoder := HashedEncoder(), WARD)
    assert encoder.asked == []
    assert index.change.kept == 3
    assert index.page("s1.png").size == open_pages(tmp_path / "b")[1].size
    assert index.verify() == []


def test_a_page_of_a_dataset_is_found_again(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "pages.jsonl").write_text('{"id": "a", "text": "net sales"}\n{"id": "b", "text": "crew"}\n')
    index = pf.Index.build(tmp_path / "x.pf", tmp_path / "set", HashedEncoder(), WARD)
    assert index.page("b").words().text == "crew"
    (tmp_path / "set" / "pages.jsonl").write_text('{"id": "b", "text": "fleet"}\n')
    with pytest.raises(PageError, match=r"b: is no longer in .*set as it was indexed"):
        index.page("b")


def test_a_second_dataset_does_not_take_the_place_of_the_first(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        lines = (f'{{"id": "{name} {i}", "text": "page {i}"}}\n' for i in range(3))
        (tmp_path / name / "pages.jsonl").write_text("".join(lines))
    index = pf.Index.build(tmp_path / "x.pf", tmp_path / "one", HashedEncoder(), WARD)
    assert index.add(tmp_path / "two").added == 3
    assert len(index) == 6
    (tmp_path / "two" / "pages.jsonl").write_text('{"id": "two 1", "text": "page 1"}\n')
    assert index.add(tmp_path / "two").removed == 2
    assert sorted(index.reader.listing.ids) == ["one 0", "one 1", "one 2", "two 1"]


def test_a_source_that_is_not_there_makes_no_index(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        pf.Index.build(tmp_path / "x.pf", tmp_path / "nowhere", HashedEncoder())
    assert not (tmp_path / "x.pf").exists()


def test_an_empty_index_answers_with_nothing(tmp_path, docs):
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs)[:2], HashedEncoder(), WARD)
    index.delete(page="p00")
    index.delete(page="p01")
    assert len(index) == 0
    assert index.search("page", k=3) == []
    assert index.verify() == []
    index.compact(now=True)
    assert index.add(text_pages(docs)).added == 12


@pytest.mark.parametrize("dtype", ["float32", "int8", "binary"])
def test_every_dtype_is_searched(tmp_path, docs, dtype):
    index = pf.Index.build(tmp_path / "x.pf", text_pages(docs), HashedEncoder(), pf.compressor("identity"), dtype=dtype)
    hits = index.search_many([f"page{i}" for i in range(12)], k=1)
    assert [hit.page for (hit,) in hits] == [f"p{i:02d}" for i in range(12)]
    assert index.verify() == []
