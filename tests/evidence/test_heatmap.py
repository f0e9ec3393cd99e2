"""Pictures of evidence: which pixels change, how much, and what is drawn where there is no page."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from pagefacets.errors import InputError, PageError
from pagefacets.evidence.heatmap import FORMATS, PALETTE, Heatmap, Sheet, beside, letters_font, tinted
from pagefacets.evidence.places import Layout
from pagefacets.pages.source import open_pages

WORD, OTHER = [0.1, 0.1, 0.3, 0.2], [0.6, 0.7, 0.9, 0.8]


def pixels(image):
    return np.asarray(image).astype(int)


def colour(at):
    return [int(PALETTE[at][i : i + 2], 16) for i in (1, 3, 5)]


def lightness(picture):
    return picture @ [0.2126, 0.7152, 0.0722]


@pytest.fixture
def picture(tmp_path):
    """A page 400 x 300 with a black bar, as a document, and how it is found."""
    image = Image.new("RGB", (400, 300), "white")
    image.paste((0, 0, 0), (40, 40, 120, 50))
    image.save(tmp_path / "page.png")
    return open_pages(tmp_path / "page.png")[0]


def test_a_word_is_tinted_and_nothing_else_is():
    page = Image.new("RGB", (200, 100), "white")
    spots = Layout(boxes=[WORD]).spots(1)
    before = pixels(page)
    found = pixels(tinted(page, spots, torch.tensor([2.0])))
    np.testing.assert_allclose(found[15, 40], colour(-1), atol=60)
    assert lightness(found)[15, 40] < lightness(found)[50, 100]
    changed = (found != before).any(axis=2)
    assert changed[11:19, 21:59].all()
    changed[8:22, 18:62] = False
    assert not changed.any()
    np.testing.assert_array_equal(pixels(page), before)


def test_more_evidence_is_darker_and_text_stays_the_darkest():
    page = Image.new("RGB", (200, 100), "white")
    page.paste((0, 0, 0), (30, 13, 50, 16))
    spots = Layout(boxes=[WORD, OTHER]).spots(2)
    heavy, light = spots.row.tolist()
    weights = torch.zeros(2)
    weights[heavy], weights[light] = 1.0, 0.3
    shown = lightness(pixels(tinted(page, spots, weights)))
    assert shown[18, 25] < shown[75, 150] < 255
    assert shown[14, 40] < shown[18, 25] - 60


def test_only_shares_of_the_largest_weight_count():
    page = Image.new("RGB", (200, 100), "white")
    spots = Layout(boxes=[WORD, OTHER]).spots(2)
    weights = torch.tensor([0.2, 0.8])
    np.testing.assert_array_equal(pixels(tinted(page, spots, weights)), pixels(tinted(page, spots, 1000 * weights)))


def test_patches_are_strongest_in_the_middle_of_their_cell_and_fade():
    page = Image.new("RGB", (400, 400), "white")
    spots = Layout(grid=(8, 8)).spots(64)
    weights = torch.zeros(64)
    weights[spots.row[2 * 8 + 5]] = 1.0
    shown = lightness(pixels(tinted(page, spots, weights)))
    assert np.unravel_index(shown.argmin(), shown.shape) == pytest.approx((125, 275), abs=3)
    assert shown[125, 275] < shown[125, 255] < shown[125, 240]
    assert (shown[300:] > 254.9).all()


def test_without_evidence_the_page_is_as_it_was():
    page = Image.new("RGB", (50, 70), "teal")
    found = tinted(page, Layout(grid=(2, 2)).spots(4), torch.zeros(4))
    np.testing.assert_array_equal(pixels(found), pixels(page))
    assert found is not page
    np.testing.assert_array_equal(pixels(tinted(page, Layout().spots(3), torch.empty(0))), pixels(page))


@pytest.mark.parametrize("size", [(1, 1), (1200, 3), (3, 1200)])
def test_pages_of_odd_shapes(size):
    for layout in (Layout(grid=(3, 3)), Layout(boxes=[[0, 0, 0, 0]] * 9)):
        spots = layout.spots(9)
        assert tinted(Image.new("RGB", size), spots, torch.ones(len(spots.corners))).size == size


def test_a_small_page_is_enlarged_and_read_once(picture):
    calls = []

    def find():
        calls.append(1)
        return picture

    sheet = Sheet(Layout(), find)
    assert sheet.gone is None
    assert sheet.image.size == (600, 450)
    assert pixels(sheet.image)[67, 120].max() < 30
    assert sheet.missing is None
    assert sheet.image is sheet.image
    assert len(calls) == 1


def test_a_large_page_is_reduced(tmp_path):
    Image.new("L", (3000, 1500), 255).save(tmp_path / "large.png")
    sheet = Sheet(Layout(), lambda: open_pages(tmp_path / "large.png")[0])
    assert (sheet.image.size, sheet.image.mode) == ((1200, 600), "RGB")


def test_a_page_that_is_gone_is_a_blank_sheet_of_its_shape_that_says_why(picture):
    def gone():
        raise PageError("report.pdf#3", "has changed since it was listed: list the pages again")

    sheet = Sheet(Layout(size=(100, 200)), gone)
    assert "has changed" in sheet.gone
    assert sheet.missing == sheet.gone
    assert sheet.image.size == (600, 1200)
    shown = pixels(sheet.image)
    assert (shown[5:200, 5:595] < 200).any()
    assert (shown[600:1190, 10:590] == 255).all()

    picture.content.file.path.write_bytes(b"no longer a picture")
    unreadable = Sheet(Layout(size=(100, 200)), lambda: picture)
    assert unreadable.gone is None
    assert "changed" in unreadable.missing


@pytest.mark.parametrize(
    ("layout", "shape"),
    [(Layout(), 210 / 297), (Layout(grid=(40, 20)), 2), (Layout(grid=(40, 20), size=(3, 1)), 3)],
)
def test_a_sheet_without_a_document_has_the_likeliest_shape(layout, shape):
    sheet = Sheet(layout, None)
    assert "no picture" in sheet.missing
    assert sheet.image.width / sheet.image.height == pytest.approx(shape, rel=0.01)
    assert max(sheet.image.size) == 1200


def test_hostile_reasons_fit_on_the_sheet():
    def find():
        raise PageError("x" * 5000, "\x1b[2J\u202e" * 50 + "\ud800")

    assert Sheet(Layout(), find).image.size[1] == 1200


def test_letters_that_the_own_font_lacks_are_looked_for_in_another():
    own = ImageFont.load_default(20).getname()
    assert letters_font("plain English", 20).getname() == own
    try:
        ImageFont.truetype("DejaVuSans.ttf", 20)
    except OSError:
        pytest.skip("this system has no DejaVu Sans")
    assert letters_font("Größe в метрах", 20).getname() != own


def test_panels_stand_side_by_side_under_their_captions():
    left, right = Image.new("RGB", (300, 200), "navy"), Image.new("RGB", (300, 200), "olive")
    sheet = beside([("One", left), ("A caption that takes more than one line of this small panel", right)], "a note")
    shown = pixels(sheet)
    for image in (left, right):
        rows, columns = np.nonzero((shown == pixels(image)[0, 0]).all(axis=2))
        assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (200, 300)
    assert sheet.width < 2 * 300 + 60
    for at in (0, -1):
        assert (shown == colour(at)).all(axis=2).any()


@pytest.mark.parametrize("suffix", [*FORMATS, ".PNG"])
def test_a_picture_is_saved_by_its_suffix(tmp_path, suffix):
    target = tmp_path / f"why{suffix}"
    assert Heatmap(Image.new("RGB", (64, 48), "olive")).save(target) == target
    with Image.open(target) as again:
        assert (again.size, again.format) == ((64, 48), FORMATS[suffix.lower()])
        np.testing.assert_allclose(pixels(again.convert("RGB"))[20, 20], [128, 128, 0], atol=6)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize(("name", "message"), [("why.bmp", "end it in .png"), ("no/why.png", "does not exist")])
def test_what_cannot_be_saved(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        Heatmap(Image.new("RGB", (4, 4))).save(tmp_path / name)
    assert not list(tmp_path.iterdir())
