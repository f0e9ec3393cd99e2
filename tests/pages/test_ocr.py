"""Words read from a picture: by the real engine, against the text layer of the page that was drawn."""

import sys

import numpy as np
import pytest
from PIL import Image, ImageDraw

from pagefacets.data import Words
from pagefacets.errors import MissingExtraError
from pagefacets.pages import ocr
from pagefacets.pages.ocr import LONGEST, has_ink, ink_outside, joined, read_image
from pagefacets.pages.source import open_pages
from tests.pages.pdfs import Sheet, pdf, show

SIZE = 14
LINES = [
    "Annual Report 2023",
    "Net sales rose by 14.5 percent to $1,204 million.",
    "The plant in Ghent was closed in March.",
    "Contact: investors@example.com",
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """A page of four lines."""
    path = tmp_path_factory.mktemp("ocr") / "report.pdf"
    content = "".join(show(line, 20, 160 - 45 * number, size=SIZE) for number, line in enumerate(LINES))
    path.write_bytes(pdf([Sheet(content, (0, 0, 380, 200))]))
    (page,) = open_pages(path)
    return page


@pytest.fixture(scope="module")
def drawn(printed):
    """The page as its text layer has it and as it is read."""
    return printed.words(), read_image(printed.image(LONGEST), printed.id)


@pytest.mark.parametrize("turn", [Image.Transpose.ROTATE_90, Image.Transpose.ROTATE_270])
def test_a_page_that_was_scanned_sideways_is_read(printed, turn):
    read = read_image(printed.image(LONGEST).transpose(turn), printed.id)
    assert sorted(read.texts) == sorted(printed.words().texts)


def test_a_page_is_read_word_by_word_in_order(drawn):
    held, read = drawn
    assert held.text == " ".join(LINES)
    assert read.texts == held.texts


def test_each_box_is_where_its_word_is(drawn):
    held, read = drawn
    assert read.boxes.dtype == np.float32
    # A line's height holds every letter; a word's sides are told to half a letter or so.
    np.testing.assert_allclose(read.boxes[:, [0, 2]], held.boxes[:, [0, 2]], atol=0.5 * SIZE / 380)
    np.testing.assert_allclose(read.boxes[:, [1, 3]], held.boxes[:, [1, 3]], atol=0.5 * SIZE / 200)
    centres = (read.boxes[:, :2] + read.boxes[:, 2:]) / 2
    assert (centres > held.boxes[:, :2]).all()
    assert (centres < held.boxes[:, 2:]).all()


@pytest.mark.parametrize(("turn", "y"), [("0 -1 1 0", 180), ("0 1 -1 0", 20)])
def test_a_line_that_runs_downwards_or_upwards_is_read(tmp_path, turn, y):
    path = tmp_path / "side.pdf"
    content = show("CONFIDENTIAL COPY", 90, y, size=SIZE, turn=turn) + show("Minutes", 120, 150, size=SIZE)
    path.write_bytes(pdf([Sheet(content, (0, 0, 200, 200))]))
    (page,) = open_pages(path)
    held, read = page.words(), read_image(page.image(LONGEST), page.id)
    assert sorted(read.texts) == sorted(held.texts)
    order = [read.texts.index(text) for text in held.texts]
    np.testing.assert_allclose(read.boxes[order], held.boxes, atol=0.5 * SIZE / 200)


def test_each_han_character_is_a_word():
    """Drawn stroke by stroke, for no font of a machine has to know them."""
    frame, rungs = [(0, 0), (9, 0), (9, 10), (0, 10), (0, 0)], [(0, 0, 10, 0), (1, 5, 9, 5), (0, 10, 10, 10)]
    strokes = {
        "王": [*([(a, b), (c, d)] for a, b, c, d in rungs), [(5, 0), (5, 10)]],
        "田": [frame, [(0, 5), (9, 5)], [(4.5, 0), (4.5, 10)]],
        "中": [[(1, 2), (9, 2), (9, 6.5), (1, 6.5), (1, 2)], [(5, 0), (5, 10)]],
    }
    picture = Image.new("RGB", (400, 180), "white")
    for place, lines in enumerate(strokes.values()):
        for line in lines:
            points = [(50 + 100 * place + 8 * x, 50 + 8 * y) for x, y in line]
            ImageDraw.Draw(picture).line(points, fill="black", width=8, joint="curve")
    read = read_image(picture, "strokes")
    assert read.texts == ("王", "田", "中")
    for place, (left, top, right, bottom) in enumerate(read.boxes):
        assert 50 + 100 * place < (left + right) / 2 * 400 < 130 + 100 * place
        assert 50 < (top + bottom) / 2 * 180 < 130


@pytest.mark.parametrize("size", [(1, 1), (1, 2000), (2000, 1), (31, 17)])
def test_a_picture_of_any_shape_without_words_has_none(size):
    for shade in ("white", "black"):
        read = read_image(Image.new("RGB", size, shade), "blank")
        assert len(read) == 0
        assert read.boxes.shape == (0, 4)


def test_reading_says_nothing_on_the_console(capfd):
    read_image(Image.new("RGB", (64, 64), "white"), "blank")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("package", ["rapidocr", "onnxruntime"])
def test_a_package_that_is_missing_is_one_sentence(monkeypatch, package):
    ocr._engine.cache_clear()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"'{package}', which is not installed: .*pagefacets\[ocr\]"):
        read_image(Image.new("RGB", (64, 64), "white"), "blank")


def spotted(size, *spots, paper="white", ink="black"):
    picture = Image.new("RGB", size, paper)
    for spot in spots:
        ImageDraw.Draw(picture).rectangle(spot, fill=ink)
    return picture


def test_ink_is_what_differs_from_the_paper():
    assert not has_ink(spotted((50, 50)))
    assert not has_ink(spotted((50, 50), paper="black"))
    assert has_ink(spotted((50, 50), (3, 3, 3, 3)))
    assert has_ink(spotted((50, 50), (3, 3, 3, 3), paper="black", ink="white"))
    noise = np.random.default_rng(0).integers(228, 250, (40, 40, 3), dtype=np.uint8)
    assert not has_ink(Image.fromarray(noise))


@pytest.mark.parametrize(("paper", "ink"), [("white", "black"), ("black", "white"), ("#dddddd", "#888888")])
def test_the_share_of_ink_outside_the_words(paper, ink):
    left, right = (0, 0, 127, 127), (256, 0, 383, 127)
    picture = spotted((512, 512), left, right, paper=paper, ink=ink)
    boxes = {
        "left": [0, 0, 0.25, 0.25],
        "right": [0.5, 0, 0.75, 0.25],
        "nowhere": [0.5, 0.5, 1, 1],
        "half": [0, 0, 0.25, 0.125],
    }

    def share(*names):
        held = np.array([boxes[name] for name in names], dtype=np.float32).reshape(-1, 4)
        return ink_outside(picture, Words(("word",) * len(names), held))

    assert share() == 1
    assert share("nowhere") == 1
    assert share("left") == share("right") == pytest.approx(0.5)
    assert share("half") == pytest.approx(0.75)
    assert share("left", "right", "nowhere") == 0
    assert ink_outside(picture, Words(("word",))) == 1
    assert ink_outside(Image.new("RGB", (30, 30), paper), Words(())) == 0


def test_words_read_where_others_are_held_are_left_out():
    held = Words(("held",), np.array([[0.1, 0.1, 0.3, 0.2]], dtype=np.float32))
    boxes = np.array([[0.12, 0.1, 0.32, 0.21], [0.28, 0.1, 0.6, 0.2], [0.1, 0.5, 0.3, 0.6]], dtype=np.float32)
    both = joined(held, Words(("hold", "beside", "below"), boxes))
    assert both.texts == ("held", "beside", "below")
    np.testing.assert_array_equal(both.boxes, np.concatenate([held.boxes, boxes[1:]]))
    nothing = Words((), np.empty((0, 4), dtype=np.float32))
    assert joined(held, nothing).texts == ("held",)
    assert joined(Words(("given",)), Words(("read",), boxes[:1])).texts == ("given",)


@pytest.mark.slow
@pytest.mark.realdata
def test_scans_are_read_with_boxes_over_their_ink(realdata):
    for page in open_pages(realdata / "mpdocvqa" / "images")[:12:4]:
        image = page.image(LONGEST)
        read = read_image(image, page.id)
        assert len(read) > 20, page.id
        assert ink_outside(image, read) < 0.7, page.id
