"""The words of a page that holds none: read from its image, each with its box."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from pagefacets.data import Words
from pagefacets.errors import PageError
from pagefacets.extras import require
from pagefacets.pages.letters import letter, stands_alone

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["LONGEST", "has_ink", "ink_outside", "joined", "read_image"]

# Pixels of the longer side of the image that is read: the most that the engine looks at.
LONGEST = 2000
# How many times as long as wide an image may be: the engine enlarges what is narrow, however long it is.
_SLIMMEST = 4
# Grey levels between paper and the faintest ink.
_CONTRAST = 32
# Ink is counted by cells: so many of them to each side of the page.
_CELLS = 128

# Scores of a line: what is no text has less than the first, a line that is read upside down less than the second.
_PLAUSIBLE, _SURE = 0.5, 0.9

_SETTINGS = {
    "Global.text_score": 0.0,
    "Global.use_cls": False,
    "Global.log_level": "critical",
    "Global.max_side_len": LONGEST,
    "Global.return_word_box": True,
    "Global.return_single_char_box": True,
    "EngineConfig.onnxruntime.intra_op_num_threads": 1,
    "EngineConfig.onnxruntime.inter_op_num_threads": 1,
}


class _Line(NamedTuple):
    """A line as the engine reads it, which takes one that is higher than wide to run downwards."""

    text: str
    box: Float[np.ndarray, " 4"]
    characters: list[tuple[str, Float[np.ndarray, " 4"]]]
    score: float

    @property
    def upright(self) -> bool:
        return bool(self.box[3] - self.box[1] > 1.5 * (self.box[2] - self.box[0]))

    @property
    def doubtful(self) -> bool:
        return self.upright and self.score < _SURE

    def holds(self, other: _Line) -> bool:
        """Whether the middle of the other line is in this one's box."""
        middle = (other.box[:2] + other.box[2:]) / 2
        return bool((middle >= self.box[:2]).all() and (middle <= self.box[2:]).all())

    def turned_back(self, height: float) -> _Line:
        """The line of an image turned clockwise as it stands in the image of that height."""

        def back(box: Float[np.ndarray, " 4"]) -> Float[np.ndarray, " 4"]:
            left, top, right, bottom = box
            return np.array([top, height - right, bottom, height - left])

        return self._replace(box=back(self.box), characters=[(one, back(box)) for one, box in self.characters])


def has_ink(image: Image) -> bool:
    """Whether anything is on the page: not so where all of it is one shade, give or take a little noise."""
    grey = np.asarray(image.convert("L"))
    return int(grey.max()) - int(grey.min()) > _CONTRAST


def ink_outside(image: Image, words: Words) -> float:
    """The share of a page's inked area that lies outside the boxes of its words; 0 for a page without ink."""
    from PIL import Image as Images

    grey = np.asarray(image.convert("L")).astype(np.int16)
    paper = int(np.bincount(grey.ravel(), minlength=256).argmax())
    inked = Images.fromarray((np.abs(grey - paper) > _CONTRAST).astype(np.uint8) * 255)
    cells = np.array(inked.resize((_CELLS, _CELLS), Images.Resampling.BOX)) > 0
    total = int(cells.sum())
    for left, top, right, bottom in [] if words.boxes is None else words.boxes * _CELLS:
        cells[int(top) : int(np.ceil(bottom)), int(left) : int(np.ceil(right))] = False
    return int(cells.sum()) / total if total else 0.0


def read_image(image: Image, place: str) -> Words:
    """The words in an image, line by line from the top; PageError names `place` where they cannot be read."""
    pixels = _widened(np.asarray(image.convert("RGB"))[:, :, ::-1])
    lines = _lines(pixels, place)
    if any(line.doubtful for line in lines):
        turned = _lines(np.rot90(pixels, -1), place)
        lines = _corrected(lines, [line.turned_back(len(pixels)) for line in turned])
    words = [word for line in lines if line.score >= _PLAUSIBLE for word in _words(*line[:3])]
    size = np.array([image.width, image.height] * 2)
    boxes = np.array([box for _, box in words]).reshape(-1, 4) / size
    return Words(tuple(text for text, _ in words), np.clip(boxes, 0, 1).astype(np.float32))


def joined(held: Words, read: Words) -> Words:
    """Words that the page holds, and those read from its image that stand elsewhere."""
    if held.boxes is None or read.boxes is None:
        return held
    centres = (read.boxes[:, None, :2] + read.boxes[:, None, 2:]) / 2
    inside = ((centres >= held.boxes[:, :2]) & (centres <= held.boxes[:, 2:])).all(axis=2).any(axis=1)
    new = np.flatnonzero(~inside)
    return Words((*held.texts, *(read.texts[i] for i in new)), np.concatenate([held.boxes, read.boxes[new]]))


def _widened(pixels: UInt8[np.ndarray, "H W 3"]) -> UInt8[np.ndarray, "H2 W2 3"]:
    """A slim image with paper beside or below it."""
    sides = np.array(pixels.shape[:2])
    beside, below = np.maximum(-(-sides.max() // _SLIMMEST) - sides, 0)[::-1]
    canvas = np.empty((sides[0] + below, sides[1] + beside, 3), dtype=np.uint8)
    canvas[:] = np.median(pixels, axis=(0, 1))
    canvas[: sides[0], : sides[1]] = pixels
    return canvas


def _lines(pixels: UInt8[np.ndarray, "H W 3"], place: str) -> list[_Line]:
    engine = _engine()
    try:
        found = engine(np.ascontiguousarray(pixels))
    except Exception as error:  # whatever the packages below raise, it is this image that they cannot take
        raise PageError(place, f"cannot be read by OCR ({error}): look at its image") from error
    texts: Sequence[str] = found.txts or ()
    each: Sequence[Any] = found.word_results or ()
    if len(each) != len(texts):
        each = [()] * len(texts)
    return (
        [
            _Line(text, _hull(corners), [(one[0], _hull(one[2])) for one in characters], score)
            for text, corners, characters, score in zip(texts, found.boxes, each, found.scores, strict=True)
        ]
        if texts
        else []
    )


def _corrected(lines: Sequence[_Line], turned: Sequence[_Line]) -> list[_Line]:
    """The lines, with those that run upwards as they were read from the turned image."""
    kept: list[_Line] = []
    for line in lines:
        same = [one for one in turned if one.upright and line.doubtful and line.holds(one)]
        better = bool(same) and np.mean([one.score for one in same]) > line.score
        kept += same if better else [line]
    return kept


@functools.cache
def _engine() -> Callable[..., Any]:
    """The engine with the models that its package brings, on one thread, without a word on the console."""
    require("onnxruntime", extra="ocr")
    return require("rapidocr", extra="ocr").RapidOCR(params=_SETTINGS)  # type: ignore[no-any-return]


def _words(
    line: str, box: Float[np.ndarray, " 4"], characters: Sequence[tuple[str, Float[np.ndarray, " 4"]]]
) -> Iterator[tuple[str, Float[np.ndarray, " 4"]]]:
    """The words of a line: what spaces part, and each character of a script without spaces."""
    if "".join(line.split()) == "".join(character for character, _ in characters):
        places = iter(box for _, box in characters)
        cells = [(character, None if character.isspace() else next(places)) for character in line]
    else:
        edges = np.linspace(box[0], box[2], len(line) + 1)
        cells = [
            (character, np.array([left, box[1], right, box[3]]))
            for character, left, right in zip(line, edges, edges[1:], strict=False)
        ]
    word: list[tuple[str, Float[np.ndarray, " 4"]]] = []
    for character, place in [*cells, (" ", None)]:
        kept = letter(character)
        alone = bool(kept) and stands_alone(kept[-1])
        if word and (kept == " " or alone or stands_alone(word[-1][0][-1])):
            yield "".join(text for text, _ in word), _union([place for _, place in word])
            word = []
        if kept and kept != " " and place is not None:
            word.append((kept, place))


def _hull(corners: object) -> Float[np.ndarray, " 4"]:
    points = np.asarray(corners, dtype=np.float64).reshape(-1, 2)
    return np.concatenate([points.min(axis=0), points.max(axis=0)])


def _union(boxes: Sequence[Float[np.ndarray, " 4"]]) -> Float[np.ndarray, " 4"]:
    many = np.stack(boxes)
    return np.concatenate([many[:, :2].min(axis=0), many[:, 2:].max(axis=0)])
