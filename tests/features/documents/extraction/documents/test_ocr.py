"""Tests of scanned pages with the extra [ocr]: their lines with boxes and scores."""

from __future__ import annotations

from collections.abc import Iterator

import pypdfium2
import pytest

from features.documents.extraction.documents.process.document_reader import DocumentReader
from features.documents.extraction.errors import DocumentCode, DocumentError
from lab.extraction.pdf_writer import PdfPage, Picture, Words, write_pdf

pytest.importorskip("rapidocr", reason="the extra [ocr] is not installed")
pytestmark = pytest.mark.long

WIDTH, HEIGHT = 400.0, 300.0
LINES = (Words(x=40, y=60, text="Invoice 4711", size=18), Words(x=40, y=110, text="Total 1,234.50 euro", size=14))


@pytest.fixture(scope="module")
def reader() -> Iterator[DocumentReader]:
    with DocumentReader() as made:
        yield made


def scanned(width: float = WIDTH) -> PdfPage:
    """Return a page with a picture of two lines, `width` wide."""
    printed = write_pdf([PdfPage(words=LINES, width=WIDTH, height=HEIGHT)])
    rows = pypdfium2.PdfDocument(printed)[0].render(scale=2, grayscale=True).to_numpy()
    pixels = tuple(row.tobytes() for row in rows)
    picture = Picture(x=0, y=0, width=width, height=HEIGHT * width / WIDTH, pixels=pixels)
    return PdfPage(pictures=(picture,), width=WIDTH, height=HEIGHT)


def test_a_scanned_page_is_read_line_by_line(reader: DocumentReader) -> None:
    printed = PdfPage(words=(Words(x=40, y=60, text="A page of text as any other."),), width=WIDTH, height=HEIGHT)
    document = reader.read(write_pdf([printed, scanned()]), "a.pdf")
    assert document.text == "A page of text as any other.\n\nInvoice 4711\nTotal 1,234.50 euro"
    assert document.notes == ()
    first, second = (run for run in document.runs if run.page == 1)
    assert document.text[first.start : first.end] == "Invoice 4711"
    assert document.text[second.start : second.end] == "Total 1,234.50 euro"
    assert first.ocr_score is not None
    assert 0.8 < first.ocr_score <= 1
    assert first.box is not None
    assert first.box.x0 == pytest.approx(40, abs=4)
    assert 38 < first.box.y0 < 60 < first.box.y1 < 70
    assert {run.ocr_score for run in document.runs if run.page == 0} == {None}


def test_a_small_picture_on_a_page_is_not_read(reader: DocumentReader) -> None:
    printed = PdfPage(words=(Words(x=40, y=60, text="A page of text as any other."),), width=WIDTH, height=HEIGHT)
    document = reader.read(write_pdf([printed, scanned(width=200)]), "a.pdf")
    assert document.text.strip() == "A page of text as any other."
    assert document.notes == ("1 of 2 pages have no text, the first is page 2",)


def test_a_pdf_whose_pictures_have_no_text_either_fails(reader: DocumentReader) -> None:
    with pytest.raises(DocumentError, match="the extra `ocr` has found none") as refusal:
        reader.read(write_pdf([PdfPage(width=WIDTH, height=HEIGHT)]), "a.pdf")
    assert refusal.value.code == DocumentCode.NO_TEXT
