import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from PIL import Image

from pagefacets.errors import InputError, PageError
from pagefacets.pages.folders import natural
from pagefacets.pages.source import open_pages
from tests.pages.pdfs import Sheet, pdf, show


def draw(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".pdf":
            path.write_bytes(pdf([Sheet(show(path.stem, 72, 700)), Sheet()]))
        else:
            Image.new("RGB", (20, 30)).save(path)


def ids(source, **options):
    return [page.id for page in open_pages(source, **options)]


def test_documents_come_in_natural_order(tmp_path):
    draw(tmp_path, "page10.png", "page9.png", "Page1.png", "b/2.png", "b/10.pdf", "a.png", "c.png", "07.png", "7.png")
    assert ids(tmp_path) == [
        "07.png",
        "7.png",
        "a.png",
        "b/2.png",
        "b/10.pdf#0",
        "b/10.pdf#1",
        "c.png",
        "Page1.png",
        "page9.png",
        "page10.png",
    ]


@pytest.mark.parametrize(
    "names",
    [["a", "B", "c"], ["1", "2", "10"], ["", "x"], ["x", "x1", "x1y", "x2", "x10"], ["A", "a"], ["file 2", "file 10"]],
)
def test_natural_order(names):
    assert sorted(set(names), key=natural) == names


def test_one_file_is_called_by_its_name(tmp_path):
    draw(tmp_path, "deep/in/a.pdf", "deep/in/b.png")
    assert ids(tmp_path / "deep/in/a.pdf") == ["a.pdf#0", "a.pdf#1"]
    assert ids(str(tmp_path / "deep/in/b.png")) == ["b.png"]
    assert ids(tmp_path / "deep") == ["in/a.pdf#0", "in/a.pdf#1", "in/b.png"]


def test_what_is_hidden_or_of_another_kind_is_passed_over(tmp_path):
    draw(tmp_path, "a.png", ".hidden.png", ".git/b.png", "sub/.DS_Store.png")
    (tmp_path / "notes.txt").write_text("no page")
    (tmp_path / "archive.zip").write_bytes(b"PK")
    assert ids(tmp_path) == ["a.png"]


@pytest.mark.parametrize("there", [[], ["notes.txt", "table.xlsx"], [".hidden.png"]])
def test_a_folder_without_pages_is_one_sentence(tmp_path, there):
    for name in there:
        (tmp_path / name).write_text("x")
    with pytest.raises(InputError, match=r"holds no document that pages are read from: put some of \.pdf, \.png"):
        open_pages(tmp_path)


def test_a_file_of_another_kind_is_one_sentence(tmp_path):
    (tmp_path / "notes.docx").write_text("x")
    with pytest.raises(InputError, match=r"notes\.docx is of no kind that pages are read from: give one of \.pdf"):
        open_pages(tmp_path / "notes.docx")


@pytest.mark.parametrize("name", ["missing", "missing/folder/a", "a b.pdf"])
def test_a_missing_path_is_one_sentence(tmp_path, name):
    with pytest.raises(InputError, match=r"there is no file or folder .*: check the path"):
        open_pages(tmp_path / name, skipped=pytest.fail)


def test_names_that_differ_in_case_alone(tmp_path):
    draw(tmp_path, "a.png", "A.png", "a.PNG")
    if len(list(tmp_path.iterdir())) < 3:
        pytest.skip("this file system does not tell A from a")
    assert ids(tmp_path) == ["A.png", "a.PNG", "a.png"]


def test_links_lead_to_every_folder_once(tmp_path):
    real = tmp_path / "real"
    draw(tmp_path, "outside/x.png", "real/z/a.png")
    (real / "z" / "up").symlink_to(real)
    (real / "self").symlink_to(real / "self")
    (real / "again").symlink_to(real / "z")
    (real / "out").symlink_to(tmp_path / "outside")
    (real / "out too").symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / "back").symlink_to(real)
    assert ids(real) == ["out/x.png", "z/a.png"]


def test_a_linked_file_is_read(tmp_path):
    draw(tmp_path, "there/a.png")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "b.png").symlink_to(tmp_path / "there" / "a.png")
    (page,) = open_pages(tmp_path / "here")
    assert page.id == "b.png"
    assert page.image().size == (20, 30)


@pytest.mark.parametrize("kind", ["broken link", "link to itself", "pipe", "empty"])
def test_one_bad_file_stops_or_is_passed_over(tmp_path, kind):
    draw(tmp_path, "a.png", "c.pdf")
    bad = tmp_path / "b.pdf"
    if kind == "broken link":
        bad.symlink_to(tmp_path / "gone.pdf")
    elif kind == "link to itself":
        bad.symlink_to(bad)
    elif kind == "pipe":
        os.mkfifo(bad)
    else:
        bad.touch()
    for source in (tmp_path, bad):
        with pytest.raises(PageError) as caught:
            open_pages(source)
        assert caught.value.place == "b.pdf"
        assert "\n" not in str(caught.value)
    reported = []
    assert ids(tmp_path, skipped=reported.append) == ["a.png", "c.pdf#0", "c.pdf#1"]
    assert [error.place for error in reported] == ["b.pdf"]


@contextlib.contextmanager
def as_nobody():
    """As a user to whom permissions apply; root may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_is_one_sentence():
    # pytest's own folders are closed to other users.
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        draw(folder, "a.png", "closed.png", "shut/b.png")
        (folder / "closed.png").chmod(0)
        (folder / "shut").chmod(0)
        reported = []
        with as_nobody():
            assert ids(folder, skipped=reported.append) == ["a.png"]
            with pytest.raises(
                PageError, match=r"cannot be (read|listed) \(Permission denied\): check its permissions"
            ):
                open_pages(folder)
        assert sorted(error.place for error in reported) == ["closed.png", "shut"]
    finally:
        (folder / "shut").chmod(0o755)
        shutil.rmtree(folder)


def test_names_that_are_not_utf8_or_have_odd_letters(tmp_path):
    draw(tmp_path, "a\nb.png", "漢字.png", "a#1.png", "a b%20.png")
    here = os.fsencode(tmp_path)
    shutil.copy(tmp_path / "漢字.png", here + b"/caf\xe9.png")
    found = ids(tmp_path)
    assert sorted(found) == sorted(["a\nb.png", "漢字.png", "a#1.png", "a b%20.png", "caf\\xe9.png"])
    assert all(page.image().size == (20, 30) for page in open_pages(tmp_path))
    shutil.copy(here + b"/caf\xe9.png", tmp_path / "caf\\xe9.png")
    with pytest.raises(PageError, match="is the name of two files once it is written as text"):
        open_pages(tmp_path)
    reported = []
    assert len(ids(tmp_path, skipped=reported.append)) == 5
    assert len(reported) == 1


def test_ids_are_unique_and_stable(tmp_path):
    draw(tmp_path, "a.pdf", "b/a.pdf", "b/a.png", "c.png")
    first, second = open_pages(tmp_path), open_pages(tmp_path)
    assert len({page.id for page in first}) == len(first) == 6
    assert [(page.id, page.digest) for page in first] == [(page.id, page.digest) for page in second]
    shutil.copytree(tmp_path, tmp_path.parent / "copy")
    assert [(page.id, page.digest) for page in open_pages(tmp_path.parent / "copy")] == [
        (page.id, page.digest) for page in first
    ]


def test_a_thousand_documents_are_listed_quickly(tmp_path):
    whole = pdf([Sheet(show("text", 72, 700)) for _ in range(3)])
    for number in range(1000):
        (tmp_path / f"{number}.pdf").write_bytes(whole)
    start = time.process_time()
    pages = open_pages(tmp_path)
    assert time.process_time() - start < 5
    assert len(pages) == 3000
    assert pages[-1].id == "999.pdf#2"
