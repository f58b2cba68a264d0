"""Tests of the text in a prompt, and of mapping its positions back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.readers.pdf import read_pdf
from lab.extraction.pages import make_pdf
from lab.extraction.pdf_writer import PdfPage, Words, write_pdf

TABLE = [("Item", "Price"), ("Pens", "12.00"), ("Paper and ink", "7.50")]


def read(*words: Words) -> Document:
    return parse(write_pdf([PdfPage(words=words)]), "a.pdf", Limits())


def table() -> Document:
    """Return a page that is drawn column by column."""
    left = [Words(x=50, y=100 + 14 * row, text=cells[0]) for row, cells in enumerate(TABLE)]
    right = [Words(x=300, y=100 + 14 * row, text=cells[1]) for row, cells in enumerate(TABLE)]
    return read(*left, *right)


def test_cells_of_a_row_stand_in_one_line() -> None:
    assert layout(table()).text.splitlines() == ["Item    Price", "Pens    12.00", "Paper and ink    7.50"]


def test_pages_without_columns_stay_as_they_are() -> None:
    document = read(Words(x=50, y=100, text="Dear all,"), Words(x=90, y=120, text="we are glad."))
    assert layout(document).text == document.text == "Dear all,\nwe are glad."


def test_indents_are_kept_on_pages_with_columns() -> None:
    document = read(
        Words(x=50, y=100, text="a"),
        Words(x=200, y=100, text="1"),
        Words(x=62, y=115, text="b"),
        Words(x=200, y=115, text="2"),
    )
    assert layout(document).text == "a    1\n  b    2"


def test_a_span_of_the_prompt_leads_back_to_the_text() -> None:
    document, shown = table(), layout(table())
    start = shown.text.index("Pens")
    first, last = (document.text.index(word) for word in ("Pens", "12.00"))
    assert shown.to_document(start, start + 4) == (first, first + 4)
    assert shown.pieces(start, start + 13) == [(first, last + 5)]
    assert shown.to_document(start, start + 13) == (first, last + 5)
    assert shown.to_document(start + 5, start + 6) == (last, last)
    words = shown.text.index("Paper")
    paper = document.text.index("Paper")
    assert shown.pieces(words, words + 13) == [(paper, paper + 13)]


def test_a_format_without_pages_is_shown_as_it_is() -> None:
    document = parse(b"<table><tr><td>a<td>b</table>", "a.html", Limits())
    shown = layout(document)
    assert shown.text == "a\tb"
    assert shown.to_document(1, 3) == (1, 3)


def test_an_empty_document_is_shown_empty() -> None:
    shown = layout(read_pdf(write_pdf([PdfPage()]), Limits(), Progress()))
    assert (shown.text, shown.to_document(0, 0), shown.pieces(0, 0)) == ("", (0, 0), [])


MADE = parse(make_pdf(3, seed=5), "a.pdf", Limits())
SHOWN = layout(MADE)


@given(st.integers(0, len(SHOWN.text)), st.integers(0, 200))
def test_pieces_hold_the_words_of_a_span_in_their_order(start: int, length: int) -> None:
    found = " ".join(MADE.text[low:high] for low, high in SHOWN.pieces(start, start + length))
    assert found.split() == SHOWN.text[start : start + length].split()


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_word_of_a_page_is_shown_once(number: int) -> None:
    page, parts = MADE.pages[number], SHOWN.text.split("\n\n")
    assert sorted(parts[number].split()) == sorted(MADE.text[page.start : page.end].split())
