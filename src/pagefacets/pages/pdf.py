"""PDF files: every page with its size, its image as displayed, and the words of its text layer.

pdfium works in one thread at a time, so all that is done with it is done under one lock. The latest documents stay
open, so that reading all pages of a document opens it once; a worker process opens it for itself.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import pypdfium2
import pypdfium2.raw as pdfium

from pagefacets.data import Page, Words
from pagefacets.errors import PageError, Skipped
from pagefacets.pages.files import SourceFile, report
from pagefacets.pages.textlayer import read_words

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PdfContent", "pdf_pages"]

# A page has no pixels of its own: it is drawn at 200 dots per inch, a huge one at fewer.
_SCALE = 200 / 72
_MOST_PIXELS = 25_000_000
_LONGEST_SIDE = 16_384
_MOST_PAGES = 100_000
_KEPT_OPEN = 2

_WHY = {
    pdfium.FPDF_ERR_PASSWORD: "is encrypted: save a copy without its password (qpdf --decrypt --password=... does)",
    pdfium.FPDF_ERR_SECURITY: "is encrypted in a way that pdfium cannot read: save a copy without encryption",
}
_DAMAGED = "is no PDF, or a damaged one: open it in a viewer and save it again"

_AS_DISPLAYED, _FLATTENED = pdfium.FLAT_NORMALDISPLAY, pdfium.FLATTEN_SUCCESS
_FORMS = (pdfium.FORMTYPE_ACRO_FORM, pdfium.FORMTYPE_XFA_FOREGROUND)

_lock = threading.RLock()
_open: dict[SourceFile, pypdfium2.PdfDocument] = {}

# A form of two kinds is read by the one that pdfium knows, which needs no word about how to build another pdfium.
logging.getLogger("pypdfium2._helpers.document").addFilter(lambda record: "XFA" not in record.getMessage())

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def pdf_pages(file: SourceFile, *, skipped: Skipped | None = None) -> list[Page]:
    """The pages of a PDF; those that cannot be found in it are reported together and left out."""
    try:
        with _document(file) as document:
            sizes = [_size(document, number) for number in range(_count(document, file))]
    except PageError as error:
        report(error, skipped)
        return []
    missing = [number for number, size in enumerate(sizes) if size is None]
    if missing:
        named = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        why = f"{len(missing)} of its {len(sizes)} pages cannot be found (counted from 0: {named})"
        report(PageError(file.name, f"{why}: save it again from a viewer"), skipped)
    return [
        Page(f"{file.name}#{number}", file.name, number, size, file.digest, PdfContent(file, number))
        for number, size in enumerate(sizes)
        if size is not None
    ]


@final
@dataclass(frozen=True)
class PdfContent:
    """One page of a PDF."""

    file: SourceFile
    number: int

    def image(self, longest: int | None) -> Image:
        with self._page() as page:
            width, height = page.get_size()
            bitmap = page.render(scale=_scale(width, height, longest), rev_byteorder=True)
            try:
                picture: Image = bitmap.to_pil()
                return picture
            finally:
                bitmap.close()

    def words(self) -> Words | None:
        with self._page() as page:
            return read_words(page)

    @contextlib.contextmanager
    def _page(self) -> Iterator[pypdfium2.PdfPage]:
        with _document(self.file) as document:
            page = None
            try:
                page = document[self.number]
                # What was filled into a form becomes part of the page, so that the text layer has it, too.
                if document.formenv is not None and pdfium.FPDFPage_Flatten(page, _AS_DISPLAYED) == _FLATTENED:
                    page.close()
                    page = document[self.number]
                yield page
            except pypdfium2.PdfiumError as error:
                why = "cannot be read: open the document in a viewer and save it again"
                raise PageError(f"{self.file.name}#{self.number}", why) from error
            finally:
                if page is not None:
                    page.close()


@contextlib.contextmanager
def _document(file: SourceFile) -> Iterator[pypdfium2.PdfDocument]:
    """The open document; no other thread works with pdfium meanwhile."""
    with _lock:
        document = _open.pop(file, None)
        try:
            file.check()
        except PageError:
            if document is not None:
                document.close()
            raise
        if document is None:
            _close(keep=_KEPT_OPEN - 1)
            document = _load(file)
        _open[file] = document
        yield document


def _load(file: SourceFile) -> pypdfium2.PdfDocument:
    try:
        document = pypdfium2.PdfDocument(file.path)
    except pypdfium2.PdfiumError as error:
        raise PageError(file.name, _WHY.get(error.err_code or 0, _DAMAGED)) from error
    try:
        if document.get_formtype() in _FORMS:
            document.init_forms()
    except pypdfium2.PdfiumError as error:
        document.close()
        raise PageError(file.name, "has a damaged form: print it to a new PDF") from error
    return document


@atexit.register
def _close(keep: int = 0) -> None:
    """Close the documents used longest ago."""
    with _lock:
        while len(_open) > keep:
            _open.pop(next(iter(_open))).close()


def _count(document: pypdfium2.PdfDocument, file: SourceFile) -> int:
    count = len(document)
    if count > _MOST_PAGES:
        raise PageError(file.name, f"has {count:,} pages, more than {_MOST_PAGES:,}: split it")
    return count


def _size(document: pypdfium2.PdfDocument, number: int) -> tuple[float, float] | None:
    try:
        width, height = document.get_page_size(number)
    except pypdfium2.PdfiumError:
        return None
    return width, height


def _scale(width: float, height: float, longest: int | None) -> float:
    """Pixels per point: each side of the image is rounded up."""
    bound = _LONGEST_SIDE if longest is None else min(longest, _LONGEST_SIDE)
    side = max(width, height)
    return min(_SCALE, math.sqrt(_MOST_PIXELS / (width * height)), (bound - 0.01) / side)
