import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pypdfium2
import pytest

from pagefacets.errors import PageError
from pagefacets.pages.source import open_pages
from pagefacets.parallel import ordered
from tests.pages.pdfs import Sheet, encrypted, pdf, show, with_form


@pytest.fixture
def opened(tmp_path):
    """The pages of a PDF given as bytes."""

    def write(data, name="a.pdf"):
        path = tmp_path / name
        path.write_bytes(data)
        return open_pages(path)

    return write


def ink_box(image):
    """Left, top, right and bottom of what is not white, as shares of the image."""
    dark = np.asarray(image.convert("L")) < 128
    rows, columns = np.flatnonzero(dark.any(axis=1)), np.flatnonzero(dark.any(axis=0))
    height, width = dark.shape
    return np.array([columns[0] / width, rows[0] / height, (columns[-1] + 1) / width, (rows[-1] + 1) / height])


def test_every_page_has_its_number_size_and_the_digest_of_the_file(opened):
    first = pdf([Sheet(), Sheet(media=(0, 0, 300, 200), extra="/Rotate 90"), Sheet(media=(-10, -20, 90, 30))])
    pages = opened(first)
    assert [page.id for page in pages] == ["a.pdf#0", "a.pdf#1", "a.pdf#2"]
    assert [page.number for page in pages] == [0, 1, 2]
    assert {page.source for page in pages} == {"a.pdf"}
    assert [page.size for page in pages] == [(612, 792), (200, 300), (100, 50)]
    assert len({page.digest for page in pages}) == 1
    assert len(pages[0].digest) == 32
    assert opened(first, "b.pdf")[0].digest == pages[0].digest
    assert opened(pdf([Sheet()]), "c.pdf")[0].digest != pages[0].digest


def test_without_text_a_page_has_no_words(opened):
    blank, drawn = opened(pdf([Sheet(), Sheet("0 0 100 100 re f\n")]))
    assert blank.words() is None
    assert drawn.words() is None
    assert np.asarray(blank.image(50)).min() == 255


@pytest.mark.parametrize("rotate", [0, 90, 180, 270])
@pytest.mark.parametrize("crop", ["", "/CropBox [60 250 500 690]", "/CropBox [-100 280 2000 520]"])
@pytest.mark.parametrize("turn", ["1 0 0 1", "0 1 -1 0", "-1 0 0 -1", "0.8 0.6 -0.6 0.8"])
def test_a_box_is_where_the_ink_of_its_word_is(opened, rotate, crop, turn):
    (page,) = opened(pdf([Sheet(show("Facets", 250, 400, turn=turn), extra=f"/Rotate {rotate} {crop}")]))
    words = page.words()
    assert words.texts == ("Facets",)
    image = page.image(1600)
    tolerance = 2.5 / min(image.size)
    if turn.startswith("0.8"):
        # The box of a slanted word is made of its letters' slanted boxes: it holds the ink, with room at the corners.
        grown = words.boxes[0] + [-tolerance, -tolerance, tolerance, tolerance]
        ink = ink_box(image)
        assert (grown[:2] <= ink[:2]).all()
        assert (grown[2:] >= ink[2:]).all()
    else:
        np.testing.assert_allclose(words.boxes[0], ink_box(image), atol=tolerance)


def test_each_word_of_a_line_has_a_box_of_its_own(opened):
    content = show("one two", 100, 600) + show("three", 100, 560)
    page = opened(pdf([Sheet(content)]))[0]
    words = page.words()
    assert words.texts == ("one", "two", "three")
    image = page.image(1600)
    width, height = image.size
    for box in words.boxes:
        left, top, right, bottom = (box * [width, height, width, height]).round().astype(int)
        alone = image.crop((left - 4, top - 4, right + 4, bottom + 4))
        found = ink_box(alone) * [alone.width, alone.height, alone.width, alone.height]
        np.testing.assert_allclose(found, [4, 4, right - left + 4, bottom - top + 4], atol=2)


def test_what_lies_outside_the_crop_box_is_not_on_the_page(opened):
    content = show("inside", 100, 300) + show("above", 100, 700) + show("cut", 278, 200)
    (page,) = opened(pdf([Sheet(content, extra="/CropBox [50 50 300 500]")]))
    words = page.words()
    assert words.texts[0] == "inside"
    assert "above" not in words.text
    assert words.text != "inside cut"
    assert words.text.startswith("inside c")
    assert words.boxes.min() >= 0
    assert words.boxes.max() <= 1
    assert page.size == (250, 450)


def test_table_cells_without_spaces_come_apart(opened):
    content = "BT /F1 12 Tf 1 0 0 1 72 700 Tm (Revenue) Tj 300 0 Td (1,234) Tj 100 0 Td (......) Tj ET\n"
    assert opened(pdf([Sheet(content)]))[0].words().texts == ("Revenue", "1,234", "......")


def test_a_word_broken_by_a_line_end_is_one_word_where_the_page_shows_it(opened):
    lines = [
        "the reve-",
        "nue of long-",
        "term debt, the non-",
        "GAAP figures and fixed-",
        "price work: fixed at a price",
    ]
    content = "".join(show(line, 72, 700 - 30 * number) for number, line in enumerate(lines))
    words = opened(pdf([Sheet(content + show("a long-term view", 72, 500))]))[0].words()
    text = words.text
    assert text.startswith("the revenue of long- term debt, the non- GAAP figures and fixed- price work:")
    top = words.boxes[words.texts.index("revenue"), 1]
    assert top == pytest.approx(words.boxes[0, 1], abs=0.02)
    assert (words.boxes[:, 3] - words.boxes[:, 1]).max() < 0.04


@pytest.mark.parametrize(
    ("letters", "codes", "texts"),
    [
        ({65: "ﬁ", 66: "ﬂ", 67: "ﬃ"}, "AeldBatoCce", ("fieldflatoffice",)),
        ({65: "ffi"}, "oAce", ("office",)),
        # Drawn from left to right, these lines show what their readers read from the right.
        ({65: "ש", 66: "ל", 67: "ו", 68: "ם"}, "DCBA", ("שלום",)),
        ({65: "א", 66: "ב", 67: "ג"}, "CBA CCC AAB", ("באא", "גגג", "אבג")),
        ({65: "م", 66: "ر", 67: "ح", 68: "ب", 69: "ا"}, "EDCBA", ("مرحبا",)),
        ({65: "\ufee1", 66: "\ufefc"}, "BA", ("ملا",)),
        ({65: "漢", 66: "字", 67: "か", 68: "な", 69: "。"}, "ABCDE", ("漢", "字", "か", "な", "。")),
        ({65: "한", 66: "국", 67: "어"}, "ABC AB", ("한국어", "한국")),
        ({65: "😀", 66: "\U00020000"}, "xAx B", ("x😀x", "\U00020000")),
        ({65: "\ud83d", 66: "\ude00"}, "xAxBx", ("xxx",)),
        ({65: "\x00", 66: "\ufffd", 67: "\ue000", 68: "\u00ad", 69: "\u200b"}, "xAyBzCuDvEw", ("xyzuv", "w")),
        ({65: "\u00a0", 66: "\u2003"}, "xAyBz", ("x", "y", "z")),
        ({65: "é", 66: "ß", 67: "½", 68: "²"}, "AB CD", ("éß", "½²")),
    ],
)
def test_letters_of_all_kinds(opened, letters, codes, texts):
    words = opened(pdf([Sheet(show(codes, 72, 700, font="F2"))], letters=letters))[0].words()
    assert words.texts == texts
    assert words.text.encode("utf-8")
    assert words.boxes.shape == (len(words), 4)
    assert (words.boxes[:, 2:] > words.boxes[:, :2]).all()


def test_lines_of_han_characters_keep_to_their_line(opened):
    letters = {65: "漢", 66: "字"}
    content = "".join(show("ABABABAB", 72, 700 - 30 * line, font="F2") for line in range(3))
    words = opened(pdf([Sheet(content)], letters=letters))[0].words()
    assert len(words) == 24
    assert (words.boxes[:, 3] - words.boxes[:, 1]).max() < 30 / 792


def test_a_filled_form_is_part_of_the_page(opened):
    (page,) = opened(with_form(Sheet(), "Marguerite", (200, 600, 400, 630)))
    for _ in range(2):
        words = page.words()
        assert words.texts == ("Marguerite",)
        np.testing.assert_allclose(words.boxes[0], ink_box(page.image(1600)), atol=0.003)


def test_a_filled_form_on_a_turned_and_cropped_page(opened):
    sheet = Sheet(show("Name", 150, 650), extra="/Rotate 270 /CropBox [100 500 500 700]")
    (page,) = opened(with_form(sheet, "Marguerite", (200, 600, 400, 630)))
    words = page.words()
    assert words.texts == ("Name", "Marguerite")
    assert page.size == (200, 400)
    hull = np.concatenate([words.boxes[:, :2].min(axis=0), words.boxes[:, 2:].max(axis=0)])
    np.testing.assert_allclose(hull, ink_box(page.image(1600)), atol=0.004)


def test_a_page_is_drawn_at_200_dots_per_inch(opened):
    (page,) = opened(pdf([Sheet(media=(0, 0, 72, 144))]))
    assert page.image().size == (200, 400)
    assert page.image().mode == "RGB"


@pytest.mark.parametrize("media", [(0, 0, 612, 792), (0, 0, 1000, 1), (0, 0, 0.001, 100), (0, 0, 14400, 14400)])
@pytest.mark.parametrize("longest", [1, 7, 333])
def test_no_side_is_longer_than_asked_for(opened, media, longest):
    image = opened(pdf([Sheet(media=media)]))[0].image(longest)
    assert max(image.size) <= longest
    assert min(image.size) >= 1


@pytest.mark.parametrize("media", [(0, 0, 14400, 14400), (0, 0, 14400, 3), (0, 0, 200000, 200000)])
def test_a_huge_page_is_drawn_within_bounds(opened, media):
    width, height = opened(pdf([Sheet(media=media)]))[0].image().size
    assert width * height <= 25_100_000
    assert max(width, height) <= 16_384


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_ten_thousand_empty_pages_are_listed_at_once(opened):
    data = pdf([Sheet() for _ in range(10_000)])
    opened(pdf([Sheet()]), "warm.pdf")
    before, start = resident(), time.process_time()
    pages = opened(data)
    assert time.process_time() - start < 3
    assert resident() - before < 60e6
    assert len(pages) == 10_000
    assert pages[9_999].words() is None
    assert pages[9_999].image(20).size == (16, 20)


@pytest.mark.parametrize("count", [2_000_000_000, -1, 0])
def test_a_page_tree_that_lies_about_its_length_is_counted(opened, count):
    assert len(opened(pdf([Sheet(), Sheet()], count=count))) == 2


def test_missing_pages_are_reported_together(tmp_path):
    path = tmp_path / "holes.pdf"
    path.write_bytes(pdf([Sheet(), Sheet()], count=9))
    reported = []
    assert len(open_pages(path, skipped=reported.append)) == 2
    assert [error.place for error in reported] == ["holes.pdf"]
    assert "7 of its 9 pages" in str(reported[0])
    with pytest.raises(PageError, match=r"holes\.pdf: 7 of its 9 pages cannot be found"):
        open_pages(path)


WHOLE = pdf([Sheet(show("whole", 72, 700))])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><title>404</title>", "no PDF, or a damaged one"),
        (WHOLE[:200], "no PDF, or a damaged one"),
        (WHOLE.replace(b"/Type /Catalog", b"/Type /Catalan").replace(b"/Pages 2", b"/Pages 99"), "damaged"),
        (encrypted([Sheet(show("secret", 72, 700))], user="open", owner="sesame"), "is encrypted"),
    ],
    ids=["empty", "html", "cut off", "no pages", "encrypted"],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, data, why):
    (tmp_path / "bad.pdf").write_bytes(data)
    (tmp_path / "good.pdf").write_bytes(WHOLE)
    with pytest.raises(PageError, match=why) as caught:
        open_pages(tmp_path)
    assert caught.value.place == "bad.pdf"
    assert "\n" not in str(caught.value)
    reported = []
    assert [page.id for page in open_pages(tmp_path, skipped=reported.append)] == ["good.pdf#0"]
    assert [error.place for error in reported] == ["bad.pdf"]


def test_encryption_without_a_password_to_open_is_no_hindrance(opened):
    (page,) = opened(encrypted([Sheet(show("secret", 72, 700))], user="", owner="sesame"))
    assert page.words().texts == ("secret",)


def test_a_damaged_cross_reference_table_is_rebuilt(opened):
    data = WHOLE.replace(b"startxref\n", b"startxref\n9")
    assert opened(data)[0].words().texts == ("whole",)


def test_a_file_replaced_after_listing_is_noticed(tmp_path, opened):
    (page,) = opened(pdf([Sheet(show("before", 72, 700))]))
    assert page.words().texts == ("before",)
    (tmp_path / "a.pdf").write_bytes(pdf([Sheet(show("after, and longer", 72, 700))]))
    for read in (page.words, page.image):
        with pytest.raises(PageError, match=r"a\.pdf: has changed since it was listed"):
            read()
    (tmp_path / "a.pdf").unlink()
    with pytest.raises(PageError, match="was removed"):
        page.words()


def test_a_file_of_the_same_content_is_the_same_file(tmp_path, opened):
    (page,) = opened(WHOLE)
    os.utime(tmp_path / "a.pdf", (1, 1))
    assert page.words().texts == ("whole",)
    changed = WHOLE.replace(b"\\167\\150\\157\\154\\145", b"\\163\\150\\157\\154\\145")
    assert len(changed) == len(WHOLE)
    (tmp_path / "a.pdf").write_bytes(changed)
    os.utime(tmp_path / "a.pdf", (2, 2))
    with pytest.raises(PageError, match="has changed"):
        page.words()


def open_files():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_document_is_opened_once_and_few_stay_open(tmp_path, monkeypatch):
    for name in "abcdef":
        (tmp_path / f"{name}.pdf").write_bytes(pdf([Sheet(show(name, 72, 700)) for _ in range(5)]))
    open_pages(tmp_path)
    before = open_files()
    loads = []
    real = pypdfium2.PdfDocument
    monkeypatch.setattr(pypdfium2, "PdfDocument", lambda path: loads.append(path.name) or real(path))
    pages = open_pages(tmp_path)
    for page in pages:
        page.words()
        page.image(20)
    # Once to list it and once to read it; the last two are still open from the listing.
    assert sorted(loads) == sorted(["a.pdf", "b.pdf", "c.pdf", "d.pdf", "e.pdf", "f.pdf"] * 2)
    assert open_files() <= before


def test_a_page_travels_as_a_path(opened):
    page = opened(pdf([Sheet(show("word " * 5, 72, 700)) for _ in range(200)]))[150]
    packed = pickle.dumps(page)
    assert len(packed) < 1000
    assert pickle.loads(packed).words().texts == ("word",) * 5


def texts_of(shared, page):
    return page.words().texts, page.image(30).size


def test_worker_processes_and_threads_read_the_same(opened):
    pages = opened(pdf([Sheet(show(f"page {number}", 72, 700)) for number in range(40)]))
    expected = [(("page", str(number)), (24, 30)) for number in range(40)]
    assert list(ordered(texts_of, pages, workers=2, shared=None)) == expected
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda page: texts_of(None, page), pages)) == expected


def test_a_name_that_is_not_utf8(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.pdf")).write_bytes(WHOLE)
    (page,) = open_pages(tmp_path)
    assert page.id == "caf\\xe9.pdf#0"
    assert page.words().texts == ("whole",)


def test_the_interpreter_ends_in_silence(tmp_path):
    (tmp_path / "a.pdf").write_bytes(WHOLE)
    script = (
        "import sys; from pagefacets.pages.source import open_pages; print(open_pages(sys.argv[1])[0].words().text)"
    )
    ran = subprocess.run([sys.executable, "-c", script, tmp_path / "a.pdf"], capture_output=True, text=True, check=True)
    assert ran.stdout == "whole\n"
    assert ran.stderr == ""


@pytest.mark.realdata
def test_annual_reports_have_boxes_over_their_ink(realdata):
    pages = open_pages(realdata / "filings")
    assert len(pages) == 355
    for page in pages[::40]:
        words = page.words()
        image = np.asarray(page.image(1500).convert("L")) < 100
        height, width = image.shape
        covered = np.zeros_like(image)
        for box in words.boxes:
            left, top, right, bottom = (box * [width, height, width, height]).astype(int)
            covered[max(top - 2, 0) : bottom + 3, max(left - 2, 0) : right + 3] = True
        share = image[covered].sum() / image.sum()
        assert share > 0.5, page.id
        assert covered.mean() < 0.5
