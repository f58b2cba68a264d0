"""PDF through PDFium: pages are read one by one and joined into one document.

Decides which files and pages are refused, and which pages need OCR.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import numpy as np
import pypdfium2
import pypdfium2.raw as pdfium

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.documents.readers.pdf_page import PageText, read_page
from features.documents.extraction.documents.runs import Runs
from features.documents.extraction.errors import DocumentCode, DocumentError

PARSER = f"pdf 1 pypdfium2 {version('pypdfium2')} {ocr.PARSER}"

_BETWEEN_PAGES = "\n\n"
_END_BYTES = 1 << 16
_END = re.compile(rb"startxref\s+\d+")
_FEW_CHARACTERS = 20
_LARGE_PART = 0.5  # of a page


def read_pdf(content: bytes, limits: Limits, progress: Progress) -> Document:
    """Read a PDF. Raises DocumentError, with the page if one cannot be read."""
    with opened(content) as pdf:
        num_pages = len(pdf)
        if num_pages > limits.max_pages:
            message = f"the PDF has {num_pages} pages; the limit is {limits.max_pages}. Split it"
            raise DocumentError(DocumentCode.TOO_MANY_PAGES, message, limits.max_pages)
        if num_pages == 0:
            raise DocumentError(DocumentCode.DAMAGED, "the PDF has no pages")
        return _joined([_page(pdf, number, progress) for number in range(num_pages)], limits)


@contextmanager
def opened(content: bytes) -> Iterator[pypdfium2.PdfDocument]:
    """Open a PDF including the content of its forms. Raises DocumentError."""
    if not _END.search(content[-_END_BYTES:]):
        raise DocumentError(DocumentCode.TRUNCATED, "the end of the PDF is missing: nothing says where its objects are")
    try:
        pdf = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pdfium.FPDF_ERR_PASSWORD:
            message = "the PDF is protected by a password; save it without one"
            raise DocumentError(DocumentCode.ENCRYPTED, message) from None
        raise DocumentError(DocumentCode.DAMAGED, f"the PDF cannot be opened: {error}") from None
    try:
        if pdf.get_formtype() != pdfium.FORMTYPE_NONE:
            pdf.init_forms()
        yield pdf
    finally:
        pdf.close()


def _joined(pages: list[PageText], limits: Limits) -> Document:
    starts, start = [], 0
    for number, page in enumerate(pages):
        starts.append(start)
        start += len(page.text) + len(_BETWEEN_PAGES)
        if start > limits.max_characters:
            message = f"the text has more than {limits.max_characters} characters; split the document"
            raise DocumentError(DocumentCode.TOO_LARGE, message, number)
    counts = [len(page.spans) for page in pages]
    return Document(
        text=_BETWEEN_PAGES.join(page.text for page in pages),
        pages=tuple(
            Page(start=start, end=start + len(page.text), width=page.width, height=page.height)
            for start, page in zip(starts, pages, strict=True)
        ),
        runs=Runs(
            np.concatenate([page.spans + start for start, page in zip(starts, pages, strict=True)]),
            np.repeat(np.arange(len(pages), dtype=np.int32), counts),
            boxes=np.concatenate([page.boxes for page in pages]),
            ocr_scores=np.concatenate([page.ocr_scores for page in pages]),
        ),
        cells=(),
        headings=(),
        format=Format.PDF,
        parser=PARSER,
        notes=_notes(pages),
    )


def _notes(pages: list[PageText]) -> tuple[str, ...]:
    empty = [number for number, page in enumerate(pages, start=1) if not page.text.strip()]
    if not empty:
        return ()
    note = f"{len(empty)} of {len(pages)} pages have no text, the first is page {empty[0]}"
    return (note if ocr.is_installed() else f"{note}; with the extra [ocr] pictures are read",)


def _page(pdf: pypdfium2.PdfDocument, number: int, progress: Progress) -> PageText:
    progress.page(number)
    page = read_page(pdf, number)
    if len(page.text.strip()) >= _FEW_CHARACTERS or not ocr.is_installed():
        return page
    whole_page = pdf[number]
    if not _is_picture(whole_page):
        return page
    progress.picture()
    return ocr.read_picture(whole_page) or page


def _is_picture(page: pypdfium2.PdfPage) -> bool:
    """Tell whether a picture covers a large part of a page."""
    left, bottom, right, top = page.get_bbox()
    pictures = (picture.get_bounds() for picture in page.get_objects(filter=[pdfium.FPDF_PAGEOBJ_IMAGE]))
    areas = ((min(right, x1) - max(left, x0)) * (min(top, y1) - max(bottom, y0)) for x0, y0, x1, y1 in pictures)
    return bool(max(areas, default=0) > _LARGE_PART * (right - left) * (top - bottom))
