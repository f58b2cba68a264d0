"""PDF through PDFium: pages are read one by one and joined into one document.

Decides which files are refused, which pages are left out, and which need OCR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import pypdfium2
import pypdfium2.raw as pdfium

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.page_text import PageText, with_lines
from features.documents.extraction.documents.paged_document import paged_document
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.documents.readers.pdf_page import read_page
from features.documents.extraction.documents.reading_order.ordering import try_reading_order
from features.documents.extraction.errors import DocumentCode, DocumentError

PARSER = f"pdf 3 pypdfium2 {version('pypdfium2')} {ocr.PARSER}"

_END_BYTES = 1 << 16
_END = re.compile(rb"startxref\s+\d+")
_FEW_CHARACTERS = 200  # a stamp or a footer on a scan has fewer, a page of text more
_MOST_NOTES = 10  # of single pages
_LARGE_PART = 0.5  # of a page
_PIXELS_A_POINT = 200 / 72


def read_pdf(content: bytes, limits: Limits, progress: Progress) -> Document:
    """Read a PDF; pages that cannot be read are noted. Raises DocumentError if no page can be read."""
    with opened(content) as pdf:
        num_pages = len(pdf)
        if num_pages > limits.max_pages:
            message = f"the PDF has {num_pages} pages; the limit is {limits.max_pages}. Split it"
            raise DocumentError(DocumentCode.TOO_MANY_PAGES, message, limits.max_pages)
        if num_pages == 0:
            raise DocumentError(DocumentCode.DAMAGED, "the PDF has no pages")
        pages = _Pages(pdf, progress)
        read = [pages.read(number) for number in range(num_pages)]
        if len(pages.unreadable) == num_pages:
            raise pages.unreadable[0]
        notes = (*_notes_of_file(content, num_pages), *pages.notes())
        return paged_document(read, limits, format_name=Format.PDF, parser=PARSER, notes=notes)


@contextmanager
def opened(content: bytes) -> Iterator[pypdfium2.PdfDocument]:
    """Open a PDF including the content of its forms. Raises DocumentError."""
    try:
        pdf = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pdfium.FPDF_ERR_PASSWORD:
            message = "the PDF is protected by a password; save it without one"
            raise DocumentError(DocumentCode.ENCRYPTED, message) from None
        if _is_cut(content):
            message = "the end of the PDF is missing: nothing says where its objects are"
            raise DocumentError(DocumentCode.TRUNCATED, message) from None
        raise DocumentError(DocumentCode.DAMAGED, f"the PDF cannot be opened: {error}") from None
    try:
        if pdf.get_formtype() != pdfium.FORMTYPE_NONE:
            pdf.init_forms()
        yield pdf
    finally:
        pdf.close()


def _is_cut(content: bytes) -> bool:
    return not _END.search(content[-_END_BYTES:])


def _notes_of_file(content: bytes, num_pages: int) -> tuple[str, ...]:
    if not _is_cut(content):
        return ()
    return (f"the end of the PDF is missing: it may have had more than the {num_pages} pages that were read",)


class _Pages:
    """Reads pages one by one, and remembers which cannot be read or put in order, and which have no text."""

    def __init__(self, pdf: pypdfium2.PdfDocument, progress: Progress) -> None:
        self._pdf = pdf
        self._progress = progress
        self._empty: list[int] = []
        self._unordered: list[int] = []
        self.unreadable: list[DocumentError] = []

    def read(self, number: int) -> PageText:
        """Return a page in reading order; an empty one if it cannot be read."""
        self._progress.page(number)
        try:
            page = read_page(self._pdf, number)
        except DocumentError as error:
            self.unreadable.append(error)
            return PageText.empty()
        page = self._with_picture(page, number)
        if (ordered := try_reading_order(page)) is None:
            self._unordered.append(number)
        page = ordered or page
        if not page.text.strip():
            self._empty.append(number)
        return page

    def notes(self) -> tuple[str, ...]:
        """Return notes of the pages that cannot be read, the first ten one by one, and of all others together."""
        notes = [error.message for error in self.unreadable[:_MOST_NOTES]]
        if (more := len(self.unreadable) - _MOST_NOTES) > 0:
            notes.append(f"{more} more pages of the PDF cannot be read")
        if self._unordered:
            notes.append(
                f"{len(self._unordered)} pages keep the file's order, the first is page {self._unordered[0] + 1}"
            )
        if self._empty:
            note = f"{len(self._empty)} of {len(self._pdf)} pages have no text, the first is page {self._empty[0] + 1}"
            notes.append(note if ocr.is_installed() else f"{note}; with the extra [ocr] pictures are read")
        return tuple(notes)

    def _with_picture(self, page: PageText, number: int) -> PageText:
        """Return a page with the text of its picture, if it is a scan with hardly any text of its own."""
        if len(page.text.strip()) >= _FEW_CHARACTERS or not ocr.is_installed():
            return page
        whole_page = self._pdf[number]
        if not _is_picture(whole_page):
            return page
        self._progress.picture()
        read = _read_picture(whole_page)
        return page if read is None else with_lines(page, read)


def _read_picture(page: pypdfium2.PdfPage) -> PageText | None:
    scale = min(_PIXELS_A_POINT, ocr.MAX_SIDE_PIXELS / max(page.get_size()))
    pixels = page.render(scale=scale).to_numpy()
    return ocr.read_picture(pixels[:, :, :3], points_per_pixel=1 / scale)


def _is_picture(page: pypdfium2.PdfPage) -> bool:
    """Tell whether a picture covers a large part of a page."""
    left, bottom, right, top = page.get_bbox()
    pictures = (picture.get_bounds() for picture in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE]))
    areas = ((min(right, x1) - max(left, x0)) * (min(top, y1) - max(bottom, y0)) for x0, y0, x1, y1 in pictures)
    return bool(max(areas, default=0) > _LARGE_PART * (right - left) * (top - bottom))
