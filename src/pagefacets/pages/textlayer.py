"""The text layer of a PDF page as words, each with the box that its ink fills on the page as displayed.

Words come in the order in which the page writes them. Spaces and line ends part words; so does a gap wider than a line
is high, which is how tables and columns come apart. Han characters and kana are words one by one. A word broken at the
end of a line is one word where the page shows that it is one, and keeps the box of its beginning.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from ctypes import byref, c_double
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import pypdfium2.raw as pdfium
from jaxtyping import Bool, Float

from pagefacets.data import Words
from pagefacets.pages.letters import letter, stands_alone

if TYPE_CHECKING:
    from pypdfium2 import PdfPage, PdfTextPage

__all__ = ["read_words"]

Box: TypeAlias = tuple[float, float, float, float]

# What pdfium puts in the place of a hyphen that ends a line.
_LINE_HYPHEN = "\x02"
_HIGH, _LOW, _SURROGATES_END, _CODES_END = 0xD800, 0xDC00, 0xE000, 0x110000
_WORDS = re.compile(r"[\w'’-]+")


class _Glyph(NamedTuple):
    """The character at `place` of the layer; `opens` where a space or a line's end came before it."""

    place: int
    text: str
    opens: bool
    ends_line: bool


class _Word(NamedTuple):
    text: str
    box: Box
    broken: bool


def read_words(page: PdfPage) -> Words | None:
    """The words within the page's crop box, or None where it has none."""
    crop: Box = page.get_bbox()
    layer = page.get_textpage()
    try:
        words = _mended(_words(layer, crop))
    finally:
        layer.close()
    if not words:
        return None
    boxes = _displayed(np.array([word.box for word in words]), crop, page.get_rotation())
    return Words(tuple(word.text for word in words), boxes)


def _words(layer: PdfTextPage, crop: Box) -> list[_Word]:
    glyphs = list(_glyphs(layer))
    if not glyphs:
        return []
    boxes = _ink(layer, glyphs)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    within = ((centres >= crop[:2]) & (centres <= crop[2:])).all(axis=1)
    alone = np.array([stands_alone(glyph.text[-1]) for glyph in glyphs])
    starts = np.array([glyph.opens for glyph in glyphs]) | ~within | alone
    starts[1:] |= alone[:-1] | ~within[:-1] | _apart(layer, glyphs, boxes)
    starts[0] = True
    firsts = np.flatnonzero(starts)
    hulls = np.hstack([np.minimum.reduceat(boxes[:, :2], firsts), np.maximum.reduceat(boxes[:, 2:], firsts)])
    words = []
    for (first, end), box in zip(itertools.pairwise([*firsts.tolist(), len(glyphs)]), hulls.tolist(), strict=True):
        if within[first]:
            broken = glyphs[end - 1].ends_line and end - first > 1
            words.append(_Word("".join(glyph.text for glyph in glyphs[first:end]), tuple(box), broken))
    return words


def _glyphs(layer: PdfTextPage) -> Iterator[_Glyph]:
    opens = True
    for index, character in _characters(layer):
        if character == _LINE_HYPHEN and pdfium.FPDFText_IsHyphen(layer, index) == 1:
            yield _Glyph(index, "-", opens, ends_line=True)
            opens = True
            continue
        kept = letter(character)
        if kept == " ":
            opens = True
        elif kept:
            yield _Glyph(index, kept, opens, ends_line=False)
            opens = False


def _characters(layer: PdfTextPage) -> Iterator[tuple[int, str]]:
    """Index and character; the two halves of a character beyond U+FFFF come as one, a half without its other never."""
    code_at, raw = pdfium.FPDFText_GetUnicode, layer.raw
    high = 0
    for index in range(layer.count_chars()):
        code = code_at(raw, index)
        if _HIGH <= code < _LOW:
            high = code
            continue
        if _LOW <= code < _SURROGATES_END:
            if high:
                yield index, chr(0x10000 + ((high - _HIGH) << 10) + code - _LOW)
        elif code < _CODES_END:
            yield index, chr(code)
        high = 0


def _ink(layer: PdfTextPage, glyphs: list[_Glyph]) -> Float[np.ndarray, "G 4"]:
    """The box of each character's ink, or of its place on the line where it leaves none."""
    box_of, raw = pdfium.FPDFText_GetCharBox, layer.raw
    left, right, bottom, top = c_double(), c_double(), c_double(), c_double()
    sides = byref(left), byref(right), byref(bottom), byref(top)
    boxes = []
    for glyph in glyphs:
        box_of(raw, glyph.place, *sides)
        inked = left.value < right.value and bottom.value < top.value
        boxes.append((left.value, bottom.value, right.value, top.value) if inked else _place(layer, glyph))
    return np.array(boxes)


def _place(layer: PdfTextPage, glyph: _Glyph) -> Box:
    rectangle = pdfium.FS_RECTF()
    pdfium.FPDFText_GetLooseCharBox(layer.raw, glyph.place, byref(rectangle))
    x, y = sorted((rectangle.left, rectangle.right)), sorted((rectangle.bottom, rectangle.top))
    return x[0], y[0], x[1], y[1]


def _apart(layer: PdfTextPage, glyphs: list[_Glyph], boxes: Float[np.ndarray, "G 4"]) -> Bool[np.ndarray, " H"]:
    """Whether the gap before each character but the first is wider than the line is high."""
    before, after = boxes[:-1], boxes[1:]
    gaps = np.maximum(after[:, :2] - before[:, 2:], before[:, :2] - after[:, 2:]).max(axis=1)
    sides = (boxes[:, 2:] - boxes[:, :2]).max(axis=1)
    wide: Bool[np.ndarray, " H"] = gaps > np.maximum(sides[:-1], sides[1:])
    # The ink of a full stop says little about the line: the places of the two letters decide.
    for at in np.flatnonzero(wide).tolist():
        places = np.array([_place(layer, glyphs[at]), _place(layer, glyphs[at + 1])])
        wide[at] = gaps[at] > (places[:, 2:] - places[:, :2]).max()
    return wide


def _mended(words: list[_Word]) -> list[_Word]:
    """Words that a line's end broke, made whole where that is what the page means.

    A hyphen at the end of a line is the printer's or the writer's own. It is dropped where the whole word stands
    elsewhere on the page. It stays where the page also has the word with its hyphen, or both halves as words, or where
    the second half is no plain lower-case word.
    """
    if not any(word.broken for word in words):
        return words
    known = Counter(found.lower() for word in words for found in _WORDS.findall(word.text))
    kept: list[_Word] = []
    for word in words:
        head = kept[-1] if kept else None
        if head is not None and head.broken and _one_word(head.text[:-1], word.text, known):
            kept[-1] = _Word(head.text[:-1] + word.text, head.box, word.broken)
        else:
            kept.append(word)
    return kept


def _one_word(head: str, tail: str, known: Counter[str]) -> bool:
    start, end = _WORDS.findall(head), _WORDS.match(tail)
    if not start or end is None:
        return False
    first, second = start[-1].lower(), end[0].rstrip("-")
    if not (first.isalpha() and second.isalpha() and second.islower()):
        return False
    if first + second in known:
        return True
    # The half at hand is one occurrence of the second; the first is written with its hyphen, which is another word.
    return f"{first}-{second}" not in known and not (first in known and known[second] > 1)


def _displayed(boxes: Float[np.ndarray, "W 4"], crop: Box, rotation: int) -> Float[np.ndarray, "W 4"]:
    """The boxes in [0, 1] from the top left of the page as displayed: cropped, then turned clockwise."""
    left, bottom, right, top = crop
    x = (boxes[:, [0, 2]] - left) / (right - left)
    y = (top - boxes[:, [3, 1]]) / (top - bottom)
    turned = {0: (x, y), 90: (1 - y[:, ::-1], x), 180: (1 - x[:, ::-1], 1 - y[:, ::-1]), 270: (y, 1 - x[:, ::-1])}
    x, y = turned[rotation]
    return np.clip(np.stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1]], axis=1), 0, 1).astype(np.float32)
