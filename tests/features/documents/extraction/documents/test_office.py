"""Tests of Word, PowerPoint and Excel files: their text in order, with headings, tables and pages."""

from __future__ import annotations

import datetime

import pytest

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from tests.features.documents.extraction.documents.office_files import changed, sheets_file, slides_file, word_file

WORD = "word/document.xml"


def read(content: bytes) -> Document:
    return parse(content, "a", Limits())


def cells(document: Document) -> list[tuple[int, int, int, str]]:
    return [(cell.table, cell.row, cell.column, document.text[cell.start : cell.end]) for cell in document.cells]


def headings(document: Document) -> list[tuple[int, str]]:
    return [(heading.level, document.text[heading.start : heading.end]) for heading in document.headings]


def pages(document: Document) -> list[str]:
    return [document.text[page.start : page.end] for page in document.pages]


def with_body(markup: str) -> bytes:
    """Return a Word file with some markup at its end."""
    return changed(word_file(), WORD, lambda xml: xml.replace(b"<w:sectPr", markup.encode() + b"<w:sectPr", 1))


def test_a_word_file_is_read_in_its_order() -> None:
    document = read(word_file())
    assert document.text == "Company\nBill 7\nFrom\tto\nwide\nPens\t\t12.00\nRegards\nPage"
    assert cells(document) == [(0, 0, 0, "wide"), (0, 1, 0, "Pens"), (0, 1, 2, "12.00")]
    assert headings(document) == [(2, "Bill 7")]
    assert pages(document) == [document.text]
    assert (document.format, document.notes) == ("docx", ())


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (
            "<w:p><w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del></w:p>",
            "new",
        ),
        ("<w:sdt><w:sdtContent><w:p><w:r><w:t>form</w:t></w:r></w:p></w:sdtContent></w:sdt>", "form"),
        ("<w:p><w:r><w:t>a</w:t><w:br/><w:t>b</w:t><w:noBreakHyphen/><w:t>c</w:t></w:r></w:p>", "a\nb-c"),
        ("<w:p><w:r><w:txbxContent><w:p><w:r><w:t>box</w:t></w:r></w:p></w:txbxContent></w:r></w:p>", "box"),
        ("<w:p><w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom><w:r><w:t>here</w:t></w:r></w:p>", "here"),
        ("<w:p/><w:p><w:pPr><w:tabs><w:tab w:val='left'/></w:tabs></w:pPr><w:r><w:t>x</w:t></w:r></w:p>", "x"),
    ],
)
def test_text_of_a_word_file_wherever_it_stands_is_text(markup: str, text: str) -> None:
    assert read(with_body(markup)).text == f"Company\nBill 7\nFrom\tto\nwide\nPens\t\t12.00\nRegards\n{text}\nPage"


def test_embedded_files_are_noted() -> None:
    document = read(changed(word_file(), "word/embeddings/other.docx", lambda _: word_file()))
    assert document.notes == ("1 embedded files were not read, the first is word/embeddings/other.docx",)


@pytest.mark.parametrize(("mark", "num_hidden"), [("<w:vanish/>", 1), ('<w:vanish w:val="0"/>', 0), ("<w:b/>", 0)])
def test_hidden_text_of_a_word_file_is_read_and_noted(mark: str, num_hidden: int) -> None:
    document = read(
        with_body(f"<w:p><w:r><w:rPr>{mark}</w:rPr><w:t>secret</w:t></w:r><w:r><w:t> shown</w:t></w:r></w:p>")
    )
    assert "secret shown" in document.text
    assert [note[:2] for note in document.notes] == ["1 "] * num_hidden


def test_hidden_slides_are_read_and_noted() -> None:
    hidden = changed(
        slides_file(), "ppt/slides/slide2.xml", lambda xml: xml.replace(b"<p:sld ", b'<p:sld show="0" ', 1)
    )
    document = read(hidden)
    assert document.text == read(slides_file()).text
    (note,) = document.notes
    assert note.startswith("1 hidden")
    assert note.endswith("slide 2")


@pytest.mark.parametrize("state", ["hidden", "veryHidden", "visible"])
def test_hidden_sheets_are_read_and_noted(state: str) -> None:
    mark = f'<sheet name="Costs" state="{state}"'.encode()
    book = sheets_file({(0, 0): "Pens"})
    document = read(changed(book, "xl/workbook.xml", lambda xml: xml.replace(b'<sheet name="Costs"', mark)))
    assert document.text.startswith("Costs\nPens")
    assert len(document.notes) == (state != "visible")
    assert all(note.startswith("1 hidden") and note.endswith("Costs") for note in document.notes)


def test_a_slide_is_a_page() -> None:
    document = read(slides_file())
    assert pages(document) == ["Results\nof the year\nSpeak slowly.", "one\ntwo\nSum\n\t7"]
    assert headings(document) == [(1, "Results"), (2, "of the year")]
    assert cells(document) == [(0, 0, 0, "Sum"), (0, 1, 1, "7")]


def test_a_sheet_is_a_page_and_its_cells_keep_their_places() -> None:
    document = read(sheets_file({(2, 3): "Pens", (2, 5): 12.5, (9, 4): True}))
    assert pages(document) == ["Costs\nPens\t\t12.5\n\tTRUE", "Empty"]
    assert cells(document) == [(0, 2, 3, "Pens"), (0, 2, 5, "12.5"), (0, 9, 4, "TRUE")]
    assert headings(document) == [(1, "Costs"), (1, "Empty")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (1234567.1, "1234567.1"),
        (0.1 + 0.2, "0.3"),
        (123456789012345, "123456789012345"),
        (datetime.date(2026, 3, 4), "2026-03-04"),
        (datetime.datetime(2026, 3, 4, 5, 6), "2026-03-04 05:06:00"),
        (False, "FALSE"),
        ("e\u0301", "é"),
    ],
)
def test_values_of_a_sheet_are_written_plainly(value: object, text: str) -> None:
    assert cells(read(sheets_file({(0, 0): value}))) == [(0, 0, 0, text)]
