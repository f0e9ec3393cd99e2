"""Files that mean harm or came to it, as a user meets them: a folder, encoded by the offline encoder."""

import io
import time

import numpy as np
import pytest
import torch
from PIL import Image

import pagefacets as pf
from pagefacets.errors import PageError
from pagefacets.pages.source import open_pages
from pagefacets.vectors.cache import encode
from pagefacets.vectors.words import WordsEncoder
from tests.pages.pdfs import Sheet, encrypted, pdf, show
from tests.pages.test_images import png_of_zeros
from tests.pages.test_pdf import resident
from tests.processes import command

GOOD = pdf([Sheet(show("the revenue of the year", 72, 700))])


def cut_off(share=0.5):
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (80, 60, 3), dtype=np.uint8)).save(data, "JPEG")
    return data.getvalue()[: int(share * len(data.getvalue()))]


HOSTILE = {
    "0-bytes.pdf": (b"", "is empty (0 bytes)"),
    "bomb.png": (png_of_zeros(30_000, 30_000), "has 30000 x 30000 pixels"),
    "cut-off.jpg": (cut_off(), "is damaged or cut off"),
    "locked.pdf": (encrypted([Sheet(show("secret", 72, 700))], user="open", owner="sesame"), "is encrypted"),
    "not-a.pdf": (b"<!DOCTYPE html>", "is no PDF, or a damaged one"),
}


@pytest.fixture
def folder(tmp_path):
    """Everything above, with whole documents before, among and after it."""
    made = tmp_path / "inbox"
    made.mkdir()
    for name, (data, _) in HOSTILE.items():
        (made / name).write_bytes(data)
    for name in ("00.pdf", "image.pdf", "zz.pdf"):
        (made / name).write_bytes(GOOD)
    return made


def test_a_folder_of_bad_files_gives_its_good_pages(folder, tmp_path):
    told = []
    cache = encode(folder, WordsEncoder(workers=1), tmp_path / "cache", keep_going=True, skipped=told.append)
    assert cache.page_ids == ["00.pdf#0", "image.pdf#0", "zz.pdf#0"]
    assert sorted(error.place for error in told) == sorted(HOSTILE)
    for error in told:
        assert HOSTILE[error.place][1] in error.why
        assert "\n" not in str(error)
    first, *others = (page.vectors for page in cache.pages)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", HOSTILE)
def test_one_bad_file_stops_the_run_with_a_sentence(tmp_path, name):
    source = tmp_path / "inbox"
    source.mkdir()
    (source / "00.pdf").write_bytes(GOOD)
    data, why = HOSTILE[name]
    (source / name).write_bytes(data)
    with pytest.raises(PageError) as caught:
        encode(source, WordsEncoder(workers=1), tmp_path / "cache")
    assert caught.value.place == name
    assert why in caught.value.why


def test_on_the_command_line(folder):
    ran = command(folder.parent, "encode", "inbox", "-o", "cache", "--keep-going", "--json", "-q")
    assert ran.returncode == 0
    assert ran.stderr.count("left out") == len(HOSTILE)
    ran = command(folder.parent, "encode", "inbox", "-o", "other", "-q")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert len(ran.stderr.strip().splitlines()) == 1
    ran = command(folder.parent, "encode", "inbox", "-o", "other", "--set", "ocr=sometimes")
    assert ran.returncode == 2
    assert "ocr must be one of 'auto', 'never', 'always', got 'sometimes'" in ran.stderr


def test_a_pdf_of_ten_thousand_empty_pages_costs_little_a_page(tmp_path):
    (tmp_path / "bomb.pdf").write_bytes(pdf([Sheet() for _ in range(10_000)]))
    pages = open_pages(tmp_path / "bomb.pdf")
    assert len(pages) == 10_000
    encoder = WordsEncoder(workers=1)
    list(encoder.encode_pages(pages[:8]))
    before, start = resident(), time.process_time()
    found = list(encoder.encode_pages([*pages[:50], *pages[-50:]]))
    assert (time.process_time() - start) / 100 < 0.05
    assert resident() - before < 100e6
    assert found[-1].id == "bomb.pdf#9999"
    assert {one.n for one in found} == {2}
    assert all(one.boxes.isnan().all() for one in found)


def test_an_image_of_30000_by_3000_pixels_is_encoded(tmp_path):
    (tmp_path / "long.png").write_bytes(png_of_zeros(30_000, 3_000))
    (found,) = WordsEncoder(workers=1).encode_pages(open_pages(tmp_path))
    # Black all over: nothing is written on it.
    assert found.n == 2


def test_a_slim_strip_takes_no_more_than_a_page(tmp_path):
    """The engine enlarges the shorter side of an image to hundreds of pixels, however long the other then is."""
    strip = Image.new("RGB", (2000, 3), "white")
    strip.putpixel((0, 0), (0, 0, 0))
    strip.save(tmp_path / "strip.png")
    start = time.process_time()
    (found,) = WordsEncoder(workers=1, ocr="always").encode_pages(open_pages(tmp_path))
    assert torch.isfinite(found.vectors).all()
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    ("letters", "codes", "query"),
    [
        ({65: "ש", 66: "ל", 67: "ו", 68: "ם", 69: "ע"}, "DCBA DBCE", "שלום"),
        ({65: "م", 66: "ر", 67: "ح", 68: "ب", 69: "ا"}, "EDCBA ABC", "مرحبا"),
        ({65: "東", 66: "京", 67: "の", 68: "本", 69: "社"}, "ABCDE", "東京"),
        ({65: "한", 66: "국", 67: "어"}, "ABC AB", "한국어"),
    ],
    ids=["hebrew", "arabic", "japanese", "korean"],
)
def test_any_script_is_found_where_it_stands(tmp_path, letters, codes, query):
    sheets = [Sheet(show(codes, 72, 700, font="F2")), Sheet(show("the revenue of the year", 72, 700))]
    (tmp_path / "a.pdf").write_bytes(pdf(sheets, letters=letters))
    pages, encoder = open_pages(tmp_path / "a.pdf"), WordsEncoder(workers=1)
    found = list(encoder.encode_pages(pages))
    (asked,) = encoder.encode_queries([query])
    assert pf.rank(asked, found)[0].page == "a.pdf#0"
    words = pages[0].words()
    hull = np.concatenate([words.boxes[:, :2].min(axis=0), words.boxes[:, 2:].max(axis=0)])
    boxes = found[0].boxes.numpy()
    assert (boxes[:, :2] >= hull[:2] - 1e-6).all()
    assert (boxes[:, 2:] <= hull[2:] + 1e-6).all()
    # The first piece stands at the side of its word from which it is read.
    side = 2 if query[0] in "שم" else 0
    assert boxes[0, side] == pytest.approx(words.boxes[0, side], abs=1e-6)
    assert boxes[0, 2] - boxes[0, 0] <= words.boxes[0, 2] - words.boxes[0, 0] + 1e-6
