"""checks.json: true of every file of the newest version after every change, and at worst incomplete."""

import json
import random
import shutil
import zlib
from pathlib import Path

import pytest

from pagefacets.errors import FileFormatError
from pagefacets.index.reader import Reader
from pagefacets.index.writer import Writer
from tests.index.entries import build, entry, manifest


@pytest.fixture
def path(tmp_path):
    build(tmp_path / "x.pf", [entry(f"p{i}", seed=i) for i in range(6)], manifest(full=True), commits=2)
    return tmp_path / "x.pf"


def noted(path):
    return json.loads((path / "checks.json").read_text())["files"]


def behind(path):
    """The files of an index of which older versions were let go of, as the disk has them."""
    files = [file for file in (path / "pages.lance").rglob("*") if file.suffix in (".lance", ".arrow", ".manifest")]
    return {
        str(file.relative_to(path / "pages.lance")): [file.stat().st_size, zlib.crc32(file.read_bytes())]
        for file in files
    }


def spoil(file):
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 3] ^= 4
    file.write_bytes(raw)


def test_each_change_notes_the_files_of_its_version(path):
    with Writer.open(path) as writer:
        assert noted(path).items() <= behind(path).items()
        writer.put([entry("p0", seed=10), entry("p6", seed=6)])
        after_put = noted(path)
        assert after_put.items() <= behind(path).items()
        writer.delete(["p3"])
        assert sum(name.startswith("_deletions/") for name in noted(path)) == 2
        writer.move(["a.pdf"], "/docs")
        writer.compact(keep_versions=False)
    assert noted(path) == behind(path)
    assert len(noted(path)) == 2
    assert not noted(path).keys() & after_put.keys()


def test_a_later_change_does_not_make_damage_good(path):
    name = next(name for name in noted(path) if name.startswith("data/"))
    spoil(path / "pages.lance" / name)
    with Writer.open(path) as writer:
        writer.put([entry("p6", seed=6)])
    (sentence,) = Reader(path).verify()
    assert f"pages.lance/{name} has another checksum" in sentence


@pytest.mark.parametrize("how", ["removed", "of the commit before"])
def test_files_that_were_not_noted_are_read_and_noted_by_the_next_writer(path, how):
    before = (path / "checks.json").read_text()
    with Writer.open(path) as writer:
        writer.put([entry("p6", seed=6)])
    complete = noted(path)
    (path / "checks.json").unlink()
    if how == "of the commit before":
        (path / "checks.json").write_text(before)
    assert list(Reader(path).verify()) == []
    assert len(Reader(path).packed) == 7
    with Writer.open(path):
        pass
    assert noted(path) == complete


def test_damage_to_checks_json_itself_is_told_as_such_and_mended(path):
    intact, draw = (path / "checks.json").read_bytes(), random.Random(0)
    complete, found = noted(path), 0
    for _ in range(60):
        raw = bytearray(intact)
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        (path / "checks.json").write_bytes(raw)
        for sentence in Reader(path).verify():
            assert f"{path / 'checks.json'} is damaged: delete it" in sentence
            found += 1
    assert found > 50
    for raw in (b"", b"[]", b'{"files": 3}', b'{"files": {"a": [1]}, "check": 0}', intact[: len(intact) // 2]):
        (path / "checks.json").write_bytes(raw)
        (sentence,) = Reader(path).verify()
        assert "checks.json is damaged: delete it" in sentence
        with Writer.open(path):
            pass
        assert noted(path) == complete
        assert list(Reader(path).verify()) == []


def test_what_a_kill_left_beside_it_is_swept_away(path):
    left = path / ".checks.json.0123abcd.partial"
    left.write_text("{")
    Writer.create(path, Reader(path).manifest, lambda folder: None).__exit__(None, None, None)
    assert not left.exists()


def test_a_table_begun_again_is_not_held_to_the_checks_of_the_old_one(path):
    shutil.rmtree(path / "pages.lance" / "_versions")
    build(path, [entry(f"q{i}", seed=i) for i in range(3)], manifest(), commits=3)
    assert list(Reader(path).verify()) == []
    assert noted(path).items() <= behind(path).items()


def test_a_spoilt_manifest_file_is_refused_at_opening_and_an_older_version_is_not(path):
    older = Reader(path).version
    with Writer.open(path) as writer:
        writer.put([entry("p6", seed=6)])
    (name,) = (name for name in noted(path) if name.startswith("_versions/"))
    spoil(path / "pages.lance" / name)
    for opened in (Reader, Writer.open):
        with pytest.raises(FileFormatError, match=r"another checksum .* build the index again at another path") as said:
            opened(path)
        assert f"{path} is damaged: pages.lance/{name}" in str(said.value)
    assert len(Reader(path, older)) == 6


def test_deriving_the_facets_looks_at_sizes_first(path):
    (name, *_) = (name for name in noted(path) if name.startswith("data/"))
    file = Path(path, "pages.lance", name)
    size = file.stat().st_size
    with file.open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(FileFormatError, match=f"{name} has {size + 1:,} bytes and not {size:,}"):
        _ = Reader(path).packed
