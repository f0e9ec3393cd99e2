"""The offline encoder: wordpieces of a page's text with their boxes, its OCR, and its workers."""

import itertools
import string
import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import pagefacets as pf
from pagefacets.data import Page, Words
from pagefacets.errors import InputError, MissingExtraError, PageError
from pagefacets.pages import ocr
from pagefacets.pages.source import open_pages
from pagefacets.pages.texts import TextContent
from pagefacets.vectors.minilm import bundled
from pagefacets.vectors.windows import windows
from pagefacets.vectors.words import OVERLAP, ROOM, WordsEncoder
from tests.pages.pdfs import Sheet, pdf, show

# Words that are one piece each.
VOCABULARY = sorted(word for word in bundled().tokenizer.get_vocab() if word.isascii() and word.isalpha())[::9]

# In this font every letter is drawn and none is told: what it writes is a picture to whoever reads the text layer.
UNTOLD = {ord(letter): "\ue000" for letter in string.printable if letter.isprintable()}


@dataclass(frozen=True, eq=False)
class Held:
    """A page of given words, on paper of nothing but a dot."""

    held: Words

    def image(self, longest):
        return Image.new("RGB", (85, 110), "white")

    def words(self):
        return self.held


@dataclass(frozen=True)
class Bad:
    place: str

    def image(self, longest):
        raise PageError(self.place, "is torn: scan it again")

    def words(self):
        return None


def page(content, id="a.pdf#0", size=(600, 800)):
    return Page(id, "a.pdf", 0, size, "", content)


def held(texts, boxes=None, **options):
    return page(Held(Words(tuple(texts), None if boxes is None else np.array(boxes, dtype=np.float32))), **options)


def encoded(*pages, **options):
    return list(WordsEncoder(**{"workers": 1, **options}).encode_pages(pages))


def unit(rows):
    return torch.nn.functional.normalize(rows, dim=1)


def test_a_page_is_the_last_hidden_states_of_its_wordpieces():
    texts = ["Capex", "rose", "to", "$1,204", "million."]
    (found,) = encoded(held(texts))
    ids = bundled().pieces(texts).ids
    (states,) = bundled().states([ids])
    assert found.n == len(ids)
    torch.testing.assert_close(found.vectors, unit(states[1:-1]), atol=1e-5, rtol=0)
    assert found.boxes is None
    assert found.grid is None


@pytest.mark.parametrize("n", [1, ROOM - 1, ROOM, ROOM + 1, 2 * ROOM - OVERLAP + 1, 700])
def test_a_page_of_any_length_loses_no_token(n):
    """Each token has the vector of the window that keeps it, as the model reads that window alone."""
    texts = [VOCABULARY[number] for number in np.random.default_rng(n).integers(0, len(VOCABULARY), n)]
    ids = bundled().pieces(texts).ids
    assert len(ids) == n
    (found,) = encoded(held(texts))
    assert found.n == n
    for window in windows(n, ROOM, OVERLAP):
        rows = bundled().states([ids[window.start : window.stop]])[0][1:-1]
        kept = unit(rows[window.first - window.start : window.last - window.start])
        torch.testing.assert_close(found.vectors[window.first : window.last], kept, atol=1e-5, rtol=0)


def test_pages_of_all_lengths_keep_their_own_rows():
    pages = [held(VOCABULARY[:n], id=f"p{n}") for n in (300, 1, 40, 0, 127, 2, 700, 5, 0)]
    together = encoded(*pages)
    assert [found.id for found in together] == [one.id for one in pages]
    for one, found in zip(pages, together, strict=True):
        (alone,) = encoded(one)
        torch.testing.assert_close(found.vectors, alone.vectors, atol=1e-5, rtol=0)


WORDS = st.lists(
    st.one_of(
        st.sampled_from(["capex", "EBITDA-margin", "$1,204.50", "antidisestablishmentarianism", "naïve"]),
        st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9).filter(str.strip),
        st.text("אבגדש", min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=12,
)


@given(WORDS, st.integers(0, 99), st.sampled_from([(600, 800), (800, 600), None]))
def test_a_piece_lies_within_its_word(texts, seed, size):
    corners = np.random.default_rng(seed).uniform(0, 1, (len(texts), 2, 2))
    boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1).astype(np.float32)
    pieces = bundled().pieces(texts)
    found = boxes_of(held(texts, boxes, size=size), pieces)
    if not pieces.ids:
        assert found.isnan().all()
        return
    own = torch.from_numpy(boxes[pieces.words])
    assert (found[:, :2] >= own[:, :2] - 1e-6).all()
    assert (found[:, 2:] <= own[:, 2:] + 1e-6).all()
    assert (found[:, :2] <= found[:, 2:] + 1e-6).all()
    assert torch.equal(found[:, [1, 3]], own[:, [1, 3]])
    width, height = size or (1, 1)
    for word, (left, top, right, bottom) in enumerate(boxes.astype(float)):
        mine = found[torch.from_numpy(pieces.words == word)]
        if len(mine) and (right - left) * width < (bottom - top) * height:
            # Written downwards or upwards, nobody knows which: each piece has the whole word.
            assert torch.equal(mine, torch.tensor([[left, top, right, bottom]]).float().expand(len(mine), 4))


def boxes_of(page, pieces):
    from pagefacets.vectors.words import _boxes

    return _boxes(page, page.words(), pieces)


def test_the_pieces_of_a_word_share_its_box_from_the_side_it_is_read():
    lying, right_to_left, upright = [0.2, 0.1, 0.7, 0.2], [0.1, 0.3, 0.5, 0.4], [0.9, 0.1, 0.95, 0.9]
    (found,) = encoded(held(["capex", "שלום", "capex"], [lying, right_to_left, upright]))
    expected = [
        [0.2, 0.1, 0.6, 0.2],
        [0.6, 0.1, 0.7, 0.2],
        [0.4, 0.3, 0.5, 0.4],
        [0.3, 0.3, 0.4, 0.4],
        [0.2, 0.3, 0.3, 0.4],
        [0.1, 0.3, 0.2, 0.4],
        upright,
        upright,
    ]
    torch.testing.assert_close(found.boxes, torch.tensor(expected), atol=1e-6, rtol=0)


def test_a_box_beyond_the_page_ends_at_its_edge():
    (found,) = encoded(held(["edge"], [[-0.1, 0.5, 1.2, 0.6]]))
    torch.testing.assert_close(found.boxes, torch.tensor([[0, 0.5, 1, 0.6]]))


@pytest.mark.parametrize("texts", [(), ("\u200d",)])
def test_a_page_without_a_word_has_the_vectors_of_the_empty_text(texts):
    boxes = np.zeros((len(texts), 4))
    (found,) = encoded(held(texts, boxes), ocr="never")
    (states,) = bundled().states([[]])
    torch.testing.assert_close(found.vectors, unit(states))
    assert found.n == 2
    assert found.boxes.isnan().all()


def test_what_the_encoder_is():
    encoder = WordsEncoder(ocr="never", workers=2)
    assert encoder.config() == {"name": "words", "ocr": "never"}
    assert encoder.id == WordsEncoder().id
    assert "/all-MiniLM-L6-v2@" in encoder.id
    assert (encoder.dim, encoder.query_prefix) == (384, "")
    # How many processes share the work changes no vector.
    assert encoder == WordsEncoder(ocr="never", workers=1)
    assert encoder != WordsEncoder()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"workers": 0}, "workers must be a whole number, at least 1, got 0"),
        ({"workers": True}, "got True"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(InputError, match=sentence):
        WordsEncoder(**options)


@pytest.mark.parametrize(
    "query", ["How many stores, net of closures?", "Übergröße naïve 東京", "x" * 300, "[SEP] a ##b"]
)
def test_the_rows_of_a_query_stand_for_its_parts(query):
    encoder = WordsEncoder()
    texts = encoder.query_tokens(query)
    assert "".join(texts) == "".join(query.split())
    assert len(texts) == len(encoder.encode_queries([query])[0])


def test_known_parts_of_a_query():
    query = "  EBITDA, 2023\u00a0capex \u200bdébâcle?"
    expected = ["E", "BIT", "DA", ",", "202", "3", "cape", "x", "dé", "bâ", "cle", "?"]
    assert WordsEncoder().query_tokens(query) == expected
    # A character that the tokenizer takes apart stands for each of its parts.
    assert set(WordsEncoder().query_tokens("한국")) == {"한", "국"}


@pytest.mark.parametrize("query", ["\u200b\u200b", "\ue000", "\ufffd \x00"])
def test_a_query_of_nothing_but_debris_is_refused(query):
    for ask in (WordsEncoder().query_tokens, lambda query: WordsEncoder().encode_queries([query])):
        with pytest.raises(InputError, match="has no words to look for: ask with at least one"):
            ask(query)


@pytest.mark.parametrize(
    ("query", "found"),
    [("capital spending on new machines", "money"), ("which animals eat grass", "zoo"), ("תקציב", "hebrew"),
     ("東京", "tokyo"), ("DIVIDENDE", "german")],
)  # fmt: skip
def test_a_question_finds_its_page(query, found):
    texts = {
        "money": "Capital expenditure rose to $12 million as the company bought machines for its plants.",
        "zoo": "The giraffe and the zebra feed on leaves and grass in the open savanna.",
        "hebrew": "הנהלה תקציב שנתי",
        "tokyo": "本 社 は 東 京 に あ り ま す",
        "german": "Der Vorstand schlägt eine höhere Dividende vor.",
    }
    encoder = WordsEncoder(workers=1)
    pages = list(encoder.encode_pages(page(TextContent(name, text), id=name) for name, text in texts.items()))
    (asked,) = encoder.encode_queries([query])
    assert pf.rank(asked, pages)[0].page == found


def test_the_bits_do_not_depend_on_threads():
    pages = [held(VOCABULARY[:n], id=str(n)) for n in (90, 300)]
    expected = encoded(*pages)
    (query,) = WordsEncoder().encode_queries(["what was the revenue?"])
    torch.set_num_threads(2)
    try:
        again = encoded(*pages)
        (asked,) = WordsEncoder().encode_queries(["what was the revenue?"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one.vectors, two.vectors) for one, two in zip(expected, again, strict=True))
    assert torch.equal(query, asked)


def test_pages_are_read_as_they_are_needed():
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield held(["word"], id=str(number))

    found = itertools.islice(WordsEncoder(workers=1).encode_pages(endless()), 6)
    assert [one.id for one in found] == list("012345")
    assert len(read) <= 8


def test_workers_give_the_same_bits_in_order_with_errors_and_warnings_in_place(tmp_path, monkeypatch):
    path = tmp_path / "a.pdf"
    sheets = [Sheet(show(" ".join(VOCABULARY[7 * number : 9 * number + 1]), 40, 700, size=4)) for number in range(40)]
    path.write_bytes(pdf(sheets))
    pages = open_pages(path)
    pages[13:13] = [page(Bad("torn#0"), id="torn#0")]
    told = {1: [], 2: []}
    first, second = (
        list(WordsEncoder(workers=workers).encode_pages(iter(pages), skipped=told[workers].append)) for workers in told
    )
    assert [one.id for one in second] == [f"a.pdf#{number}" for number in range(40)]
    for one, two in zip(first, second, strict=True):
        assert one.id == two.id
        assert torch.equal(one.vectors, two.vectors)
        assert torch.equal(one.boxes, two.boxes)
    assert [str(error) for error in told[2]] == ["torn#0: is torn: scan it again"] == [str(one) for one in told[1]]
    with pytest.raises(PageError, match=r"torn#0: is torn"):
        list(WordsEncoder(workers=2).encode_pages(iter(pages)))


SMALL = (0, 0, 280, 200)
LINES = ["MINUTES OF THE MEETING", "The board approved the budget", "of 4.2 million dollars"]
MINUTES = " ".join(LINES).split()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three pages: one with a text layer, a scan, and a scan with a stamp over it that is text."""
    scan = "".join(show(line, 20, 130 - 40 * number, size=14, font="F2") for number, line in enumerate(LINES))
    sheets = [
        Sheet(show("The plant in Ghent was closed.", 20, 100, size=14), SMALL),
        Sheet(scan, SMALL),
        Sheet(scan + show("Received 1994", 160, 170, size=14), SMALL),
    ]
    path = tmp_path_factory.mktemp("report") / "report.pdf"
    path.write_bytes(pdf(sheets, letters=UNTOLD))
    return open_pages(path)


def words_of(page, mode):
    return list(WordsEncoder(ocr=mode)._words(page).texts)


def test_a_picture_is_read_where_there_are_no_words(report):
    text, scan, stamped = report
    assert scan.words() is None
    assert words_of(text, "auto") == ["The", "plant", "in", "Ghent", "was", "closed."]
    assert words_of(scan, "auto") == MINUTES
    assert words_of(stamped, "auto") == ["Received", "1994", *MINUTES]


def test_a_picture_is_never_read(report):
    text, scan, stamped = report
    assert words_of(text, "never") == ["The", "plant", "in", "Ghent", "was", "closed."]
    assert words_of(scan, "never") == []
    assert words_of(stamped, "never") == ["Received", "1994"]


def test_a_picture_is_always_read(report):
    text, scan, stamped = report
    assert words_of(text, "always") == ["The", "plant", "in", "Ghent", "was", "closed."]
    assert words_of(scan, "always") == MINUTES
    assert sorted(words_of(stamped, "always")) == sorted(["Received", "1994", *MINUTES])


def test_a_scan_is_encoded_with_boxes_over_its_ink(report):
    (found,) = encoded(report[1])
    assert found.n == len(bundled().pieces(MINUTES).ids)
    picture = np.asarray(report[1].image(1000).convert("L")) < 128
    height, width = picture.shape
    inked = np.zeros(found.n, dtype=bool)
    for row, (left, top, right, bottom) in enumerate((found.boxes * torch.tensor([width, height] * 2)).int().tolist()):
        inked[row] = picture[top : bottom + 1, left : right + 1].any()
    assert inked.all()


@pytest.fixture
def without_ocr(monkeypatch):
    ocr._engine.cache_clear()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)


def test_ocr_that_is_not_installed_is_missed_where_it_is_needed(report, without_ocr):
    text, scan, stamped = report
    assert encoded(text)[0].n > 5
    assert encoded(scan, ocr="never")[0].n == 2
    with pytest.raises(
        MissingExtraError,
        match=r"report\.pdf#1 has no text, and .*pip install 'pagefacets\[ocr\]', or .* ocr='never'",
    ):
        encoded(scan)
    with pytest.warns(UserWarning, match=r"report\.pdf#2 has 2 words over a picture, .*pagefacets\[ocr\]"):
        (found,) = encoded(stamped)
    assert found.n == len(bundled().pieces(["Received", "1994"]).ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encoded(held(()))[0].n == 2
