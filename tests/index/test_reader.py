"""Readers and writers of one index: versions, order, what is derived, and what a second writer is told."""

import os
import shutil
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import pagefacets as pf
from pagefacets.answers.search import search
from pagefacets.errors import FileFormatError, InputError
from pagefacets.index import reader as reader_module
from pagefacets.index.reader import Reader, disk_bytes, is_index
from pagefacets.index.writer import Writer
from tests.index.entries import build, entry, manifest


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.pf"


def pages(count, start=0, **options):
    return [entry(f"p{i:03d}", seed=i, k=1 + i % 4, number=i, **options) for i in range(start, start + count)]


def held(reader):
    """Every page of an index and its facets, by its own ways of reading them."""
    packed, listing = reader.packed, reader.listing
    alone = {name: reader.facets(name).vectors for name in listing.ids}
    for place, name in enumerate(listing.ids):
        start, stop = packed.offsets[place : place + 2].tolist()
        assert torch.equal(packed.rows[start:stop], alone[name])
    return alone


def assert_holds(reader, entries):
    found = held(reader)
    assert sorted(found) == sorted(one.id for one in entries)
    assert len(reader) == len(entries)
    for one in entries:
        torch.testing.assert_close(found[one.id], one.facets.vectors, rtol=1e-3, atol=1e-4)


def test_what_was_put_is_there(path):
    entries = pages(10)
    reader = build(path, entries, manifest(full=True), commits=3)
    assert_holds(reader, entries)
    for place, one in enumerate(entries):
        listing = reader.listing
        assert listing.place(one.id) == place
        assert (listing.ids[place], listing.sources[place], listing.numbers[place]) == (one.id, "a.pdf", one.number)
        assert listing.sizes[place] == one.size
        assert (listing.n[place], listing.k[place]) == (12, one.facets.k)
        back = reader.page(one.id)
        torch.testing.assert_close(back.vectors.float(), one.vectors.vectors, atol=1e-3, rtol=1e-3)
        assert back.grid == one.vectors.grid
        layout = reader.layout(one.id)
        assert layout["grid"] == one.vectors.grid
        np.testing.assert_array_equal(layout["image_mask"], one.vectors.image_mask)
        np.testing.assert_allclose(layout["boxes"], one.vectors.boxes, atol=1e-3)
        facets = reader.facets(one.id)
        assert torch.equal(facets.assignment, one.facets.assignment)
        torch.testing.assert_close(facets.demand, one.facets.demand, atol=1e-3, rtol=1e-2)
        assert facets.method == "ward"
    assert listing.place("nobody") is None
    assert listing.documents() == {"a.pdf": 10}


def test_a_page_put_again_takes_the_place_of_the_old_one(path):
    first = pages(6)
    build(path, first)
    changed = [entry("p002", seed=99, k=4, digest="d1"), entry("new", seed=100)]
    with Writer.open(path) as writer:
        writer.put(changed)
        assert writer.held["p002"].digest == "d1"
    assert_holds(Reader(path), [first[0], first[1], *first[3:], *changed])


def test_pages_are_taken_by_place_when_others_were_deleted(path):
    entries = pages(9)
    build(path, entries, manifest(full=True), commits=3)
    with Writer.open(path) as writer:
        assert writer.delete(["p001", "p004", "nobody"]) == 2
        assert writer.delete(["nobody"]) == 0
    reader = Reader(path)
    left = [one for one in entries if one.id not in ("p001", "p004")]
    assert_holds(reader, left)
    places = [5, 0, 3, 3]
    taken = reader.vectors(places)
    assert [page.id for page in taken] == [reader.listing.ids[place] for place in places]
    with pytest.raises(InputError, match=r"has no page 'p001': 'pagefacets info x\.pf' lists documents"):
        reader.facets("p001")


def test_compact_keeps_the_pages_and_lets_go_of_bytes(path):
    entries = pages(40)
    build(path, entries, commits=20)
    with Writer.open(path) as writer:
        writer.delete([one.id for one in entries[:30]])
    before = disk_bytes(path)
    with Writer.open(path) as writer:
        writer.compact(keep_versions=False)
    assert disk_bytes(path) < before / 2
    assert len(list((path / "pages.lance" / "data").iterdir())) == 1
    assert_holds(Reader(path), entries[30:])
    assert list(Reader(path).verify()) == []


def test_many_small_commits_are_joined(path, monkeypatch):
    from pagefacets.index import writer as writer_module

    monkeypatch.setattr(writer_module, "_PIECES", 4)
    entries = pages(12)
    with Writer.create(path, manifest(), lambda folder: None) as writer:
        for one in entries:
            writer.put([one])
            writer.tidy()
    assert len(Reader(path).table.get_fragments()) <= 5
    assert_holds(Reader(path), entries)


@pytest.mark.parametrize("opened", ["untouched", "used"])
def test_a_reader_stays_at_its_version_while_others_write(path, opened):
    entries = pages(8)
    build(path, entries, manifest(full=True))
    reader = Reader(path)
    if opened == "used":
        held(reader)
    assert reader.latest() is reader
    with Writer.open(path) as writer:
        writer.put([entry("p000", seed=50, digest="d1"), *pages(3, start=20)])
        writer.delete(["p005"])
        writer.compact()
    assert_holds(reader, entries)
    assert reader.page("p005") is not None
    assert list(reader.verify()) == []
    assert int(reader.matching("number >= 0").numel()) == 8
    newest = reader.latest()
    assert newest.version > reader.version
    assert sorted(newest.listing.ids) == sorted({*(f"p{i:03d}" for i in (0, 1, 2, 3, 4, 6, 7, 20, 21, 22))})


def test_a_reader_answers_while_a_writer_adds(path):
    """Answers of one opened index are the same before, during and after twenty commits."""
    build(path, pages(30))
    reader = Reader(path)
    query = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    expected = search([query], reader, 10)
    wrong, done = [], threading.Event()

    def ask():
        while not done.is_set():
            if search([query], reader, 10) != expected or search([query], reader.latest(), 10) == []:
                wrong.append(1)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with Writer.open(path) as writer:
            for i in range(20):
                writer.put(pages(2, start=100 + 2 * i))
    finally:
        done.set()
        asking.join()
    assert not wrong
    assert search([query], reader, 10) == expected
    assert len(reader.latest()) == 70


def test_a_version_that_was_let_go_of_says_so(path):
    build(path, pages(4))
    reader = Reader(path)
    assert len(reader.listing) == 4
    with Writer.open(path) as writer:
        writer.put([entry("p000", seed=9)])
        writer.compact(keep_versions=False)
    with pytest.raises(FileFormatError, match="was compacted more than 1 hour after this version was opened") as said:
        reader.facets("p001")
    assert "\n" not in str(said.value)
    assert len(held(reader.latest())) == 4


def test_opening_reads_no_facets(path):
    build(path, pages(5))
    reader = Reader(path)
    assert len(reader) == 5
    assert len(reader.listing) == 5
    assert not (path / "packed").exists()
    assert len(reader.packed) == 5
    assert len(list((path / "packed").iterdir())) == 1


@pytest.mark.parametrize("how", ["removed", "truncated", "empty", "of another history"])
def test_what_is_derived_is_made_again(path, how, tmp_path):
    entries = pages(7)
    build(path, entries)
    held(Reader(path))
    (file,) = (path / "packed").iterdir()
    if how == "removed":
        shutil.rmtree(path / "packed")
    elif how == "truncated":
        os.truncate(file, 10)
    elif how == "empty":
        file.write_bytes(b"")
    else:
        shutil.rmtree(path)
        others = [entry(one.id, seed=1000 + one.number, k=one.facets.k, number=one.number) for one in entries]
        reader = build(path, others)
        (path / "packed").mkdir()
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"\1" * int(sum(reader.listing.k)) * 32)
        entries = others
    assert_holds(Reader(path), entries)


def test_what_was_derived_for_old_versions_goes_after_an_hour(path):
    build(path, pages(3))
    held(Reader(path))
    (old,) = (path / "packed").iterdir()
    with Writer.open(path) as writer:
        writer.put(pages(1, start=5))
    held(Reader(path))
    assert old.exists()
    os.utime(old, (1, 1))
    with Writer.open(path) as writer:
        writer.put(pages(1, start=6))
    held(Reader(path))
    assert not old.exists()
    assert reader_module.GRACE == timedelta(hours=1)


def test_a_folder_that_cannot_be_written_is_read(path):
    """Run by a user who may only read, which root is once it has given up that power."""
    entries = pages(4)
    build(path, entries, manifest(full=True))
    program = (
        "import sys; from pathlib import Path; from pagefacets.index.reader import Reader;"
        "from pagefacets.index.writer import Writer; from pagefacets.errors import InputError\n"
        "reader = Reader(Path(sys.argv[1])); print(len(reader.packed), int(reader.packed.rows.shape[0]))\n"
        "assert not list(reader.verify())\n"
        "try: Writer.open(Path(sys.argv[1]))\n"
        "except InputError as error: print(error)"
    )
    for folder in (path, *path.rglob("*")):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    command = [sys.executable, "-c", program, path]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may write anywhere, and there is no setpriv to take that power away")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    for folder in (path, *path.rglob("*")):
        folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[0] == f"4 {sum(one.facets.k for one in entries)}"
    assert "cannot be written (Permission denied)" in told[1]
    assert not (path / "packed").exists()


def test_two_threads_derive_once(path):
    build(path, pages(20))
    reader = Reader(path)
    got = []
    threads = [threading.Thread(target=lambda: got.append(reader.packed)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in got}) == 1


def test_a_second_writer_is_told_so(path):
    build(path, pages(2))
    with Writer.open(path), pytest.raises(InputError, match="is being written by another process: wait until it is"):
        Writer.open(path)
    with Writer.open(path) as writer:
        assert len(writer.held) == 2


@pytest.mark.parametrize("left", ["empty folder", "lock", "no manifest", "data only", "pool cut short"])
def test_an_index_that_was_killed_before_its_first_commit_is_begun_again(path, left):
    path.mkdir()
    assert not is_index(path)
    if left == "lock":
        (path / "write.lock").touch()
    if left == "no manifest":
        (path / "pages.lance" / "_versions").mkdir(parents=True)
        (path / "pages.lance" / "_versions" / ".tmp1").touch()
    if left == "data only":
        (path / "pages.lance" / "data").mkdir(parents=True)
        (path / "pages.lance" / "data" / "x.lance").write_bytes(b"x")
    if left == "pool cut short":
        (path / ".pool.safetensors.1234.partial").write_bytes(b"x")
    assert not is_index(path)
    assert_holds(build(path, pages(3)), pages(3))


def test_what_is_no_index_is_not_written_over(path, tmp_path):
    path.mkdir()
    (path / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else than an index: choose another path"):
        build(path, pages(1))
    (path / "thesis.txt").rename(tmp_path / "thesis.txt")
    (path / "pages.lance").mkdir()
    (path / "pages.lance" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is no table of an index"):
        build(path, pages(1))
    with pytest.raises(InputError, match="is a file: choose another path for the index"):
        build(tmp_path / "thesis.txt", pages(1))
    with pytest.raises(InputError, match="no does not exist: create it first"):
        build(tmp_path / "no" / "x.pf", pages(1))


def test_ids_and_documents_of_any_name(path):
    names = ["it's", 'a "b"', "c\\d", "x'; DROP TABLE pages; --", "é\u4e2d", "", "%_", "\n"]
    entries = [entry(name, seed=i, source=f"{name}.pdf") for i, name in enumerate(names)]
    build(path, entries)
    with Writer.open(path) as writer:
        writer.put([entry(name, seed=50 + i, source=f"{name}.pdf") for i, name in enumerate(names)])
        writer.move([f"{names[0]}.pdf", f"{names[3]}.pdf"], "/it's/moved")
        assert writer.delete([names[1]]) == 1
    reader = Reader(path)
    assert sorted(reader.listing.ids) == sorted(set(names) - {names[1]})
    place = reader.listing.place(names[3])
    assert reader.listing.roots[place] == "/it's/moved"
    assert list(reader.verify()) == []


def test_pf_open_of_a_relative_path(path, monkeypatch):
    build(path, pages(2))
    monkeypatch.chdir(path.parent)
    index = pf.Index.open("x.pf")
    monkeypatch.chdir("/")
    assert len(index.search(torch.eye(16)[:1])) == 2
