"""Documents to try things on: the papers of a company that does not exist, written as PDFs with a text layer."""

from __future__ import annotations

import ctypes
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, final

import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from pagefacets.errors import InputError

__all__ = ["Question", "sample_questions", "write_sample"]

WIDTH, HEIGHT = 420.0, 595.0
LEFT, RIGHT, TOP, BOTTOM = 44.0, 376.0, 548.0, 60.0
# Size and distance between lines of what is written in each way.
BODY, SMALL, HEADING = (10.0, 14.5), (8.0, 11.0), (17.0, 22.0)
INK, PALE, ACCENT = (34, 38, 46), (112, 120, 132), (22, 92, 125)


@final
@dataclass(frozen=True)
class Question:
    """A question, and the page that answers it."""

    text: str
    source: str
    number: int


def sample_questions() -> list[Question]:
    """Questions about the sample documents, each with the one page that answers it."""
    return [Question(one["text"], one["file"], one["number"]) for one in _told()["question"]]


def write_sample(folder: str | Path) -> list[Path]:
    """Write the sample documents into a folder, which is made; what is there already stays as it is."""
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InputError(f"{place} is a file: name a folder for the documents")
    written = []
    for document in _told()["document"]:
        target = place / document["file"]
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{target.name}.partial")
            _save(document, partial)
            partial.replace(target)
        written.append(target)
    return written


@cache
def _told() -> dict[str, Any]:
    return tomllib.loads(files("pagefacets.pages").joinpath("sample.toml").read_text(encoding="utf-8"))


def _save(document: dict[str, Any], target: Path) -> None:
    pdf = pdfium.PdfDocument.new()
    pages = document["page"]
    for number, told in enumerate(pages, start=1):
        sheet = _Sheet(pdf)
        sheet.line(document["title"], (8.0, 8.0), PALE)
        sheet.rule()
        sheet.space(30)
        sheet.line(told["heading"], HEADING, ACCENT, bold=True)
        for paragraph in told["text"].strip().split("\n\n"):
            sheet.space(8)
            sheet.paragraph(" ".join(paragraph.split()))
        if "table" in told:
            sheet.space(18)
            sheet.table(told["table"])
        sheet.footer(f"{number} / {len(pages)}")
        sheet.close()
    pdf.save(target)
    pdf.close()


@final
class _Sheet:
    """A page that is written from top to bottom."""

    def __init__(self, pdf: pdfium.PdfDocument) -> None:
        self._pdf, self._page = pdf, pdf.new_page(WIDTH, HEIGHT)
        self._y = TOP

    def space(self, points: float) -> None:
        self._y -= points

    def line(
        self,
        text: str,
        style: tuple[float, float],
        colour: tuple[int, int, int] = INK,
        *,
        bold: bool = False,
        x: float = LEFT,
        right: bool = False,
    ) -> None:
        self._write(text, style[0], colour, x, bold=bold, right=right)
        self._y -= style[1]

    def paragraph(self, text: str) -> None:
        for line in self._wrapped(text):
            self.line(line, BODY)

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """Rows under a head; columns of figures stand against their right edge."""
        style = BODY if len(rows[0]) < 4 else SMALL
        columns = list(zip(*rows, strict=True))
        widest = [max(map(len, column)) + 2 for column in columns]
        edges = [LEFT + (RIGHT - LEFT) * sum(widest[:i]) / sum(widest) for i in range(len(columns) + 1)]
        figures = [i > 0 and all(cell[-1:].isdigit() for cell in column[1:]) for i, column in enumerate(columns)]
        for number, row in enumerate(rows):
            for i, cell in enumerate(row):
                self._write(cell, style[0], INK, edges[i + figures[i]], bold=number == 0, right=figures[i])
            self._y -= 8
            self.rule(strong=number == 0)
            self._y -= style[1] - 2

    def rule(self, *, strong: bool = True) -> None:
        box = pdfium_c.FPDFPageObj_CreateNewRect(LEFT, self._y, RIGHT - LEFT, 0.8 if strong else 0.4)
        pdfium_c.FPDFPageObj_SetFillColor(box, *((150, 160, 172) if strong else (214, 219, 226)), 255)
        pdfium_c.FPDFPath_SetDrawMode(box, pdfium_c.FPDF_FILLMODE_ALTERNATE, False)
        pdfium_c.FPDFPage_InsertObject(self._page, box)

    def footer(self, text: str) -> None:
        self._y = BOTTOM - 30
        self.line(text, SMALL, PALE, x=RIGHT, right=True)

    def close(self) -> None:
        self._page.gen_content()
        self._page.close()

    def _write(
        self, text: str, size: float, colour: tuple[int, int, int], x: float, *, bold: bool = False, right: bool = False
    ) -> None:
        if not text:
            return
        made = self._object(text, size, bold=bold)
        pdfium_c.FPDFPageObj_SetFillColor(made, *colour, 255)
        left = x - _extent(made) if right else x
        pdfium_c.FPDFPageObj_Transform(made, 1, 0, 0, 1, left, self._y)
        pdfium_c.FPDFPage_InsertObject(self._page, made)

    def _object(self, text: str, size: float, *, bold: bool) -> Any:
        font = b"Helvetica-Bold" if bold else b"Helvetica"
        made = pdfium_c.FPDFPageObj_NewTextObj(self._pdf, font, size)
        coded = (text + "\0").encode("utf-16-le")
        units = (ctypes.c_ushort * (len(coded) // 2)).from_buffer_copy(coded)
        pdfium_c.FPDFText_SetText(made, units)
        return made

    def _wrapped(self, text: str) -> Iterator[str]:
        line: list[str] = []
        for word in text.split():
            if line and self._width(" ".join([*line, word])) > RIGHT - LEFT:
                yield " ".join(line)
                line = []
            line.append(word)
        yield " ".join(line)

    def _width(self, text: str) -> float:
        made = self._object(text, BODY[0], bold=False)
        width = _extent(made)
        pdfium_c.FPDFPageObj_Destroy(made)
        return width


def _extent(made: Any) -> float:
    """Where a text that begins at 0 ends."""
    sides = [ctypes.c_float() for _ in range(4)]
    pdfium_c.FPDFPageObj_GetBounds(made, *sides)
    return sides[2].value
