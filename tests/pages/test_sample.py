"""The sample documents say what their table of contents says, on the page, where a reader would see it."""

import tomllib
from importlib.resources import files

import numpy as np
import pytest

from pagefacets.errors import InputError
from pagefacets.pages.sample import sample_questions, write_sample
from pagefacets.pages.source import open_pages


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    return folder, write_sample(folder)


@pytest.fixture(scope="module")
def told():
    return tomllib.loads(files("pagefacets.pages").joinpath("sample.toml").read_text(encoding="utf-8"))["document"]


def test_every_page_holds_its_words_and_nothing_else(written, told):
    folder, _ = written
    pages = {(page.source, page.number): page for page in open_pages(folder)}
    assert len(pages) == sum(len(document["page"]) for document in told)
    for document in told:
        for number, page in enumerate(document["page"]):
            cells = [cell for row in page.get("table", []) for cell in row]
            expected = " ".join([document["title"], page["heading"], page["text"], *cells]).split()
            expected += [str(number + 1), "/", str(len(document["page"]))]
            words = pages[document["file"], number].words()
            assert sorted(" ".join(words.texts).split()) == sorted(expected)


def test_no_word_leaves_the_page_or_covers_another(written):
    for page in open_pages(written[0]):
        boxes = page.words().boxes
        assert boxes.min() > 0.03
        assert boxes.max() < 0.97
        starts = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
        ends = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
        shared = (ends - starts).clip(0).prod(axis=2)
        np.fill_diagonal(shared, 0)
        assert (shared.sum(axis=1) < 0.2 * (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)).all(), page


def test_questions_name_pages_that_exist(written):
    pages = {(page.source, page.number) for page in open_pages(written[0])}
    questions = sample_questions()
    assert len(questions) == len({question.text for question in questions}) >= 10
    assert {(question.source, question.number) for question in questions} <= pages


def test_what_is_there_stays_and_what_is_missing_comes_back(written):
    folder, paths = written
    paths[0].write_bytes(b"mine")
    paths[1].unlink()
    assert write_sample(folder) == paths
    assert paths[0].read_bytes() == b"mine"
    assert paths[1].stat().st_size > 1000
    assert not list(folder.rglob("*.partial"))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(InputError, match="name a folder"):
        write_sample(tmp_path / "x")
