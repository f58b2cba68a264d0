"""Tests of PDFs: their text, and the position of each word on the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.page_text import PageText
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.readers import ocr
from features.documents.extraction.documents.readers.pdf import opened
from features.documents.extraction.documents.runs import Box
from features.documents.extraction.errors import DocumentCode, DocumentError
from lab.extraction.pages import make_pdf
from lab.extraction.pdf_writer import PdfPage, Picture, Words, frame, pdf_objects, write_pdf
from tests.features.documents.extraction.documents import builders


def read(content: bytes, **limits: Any) -> Document:
    return parse(content, "a.pdf", Limits(**limits))


def page(*lines: str, **form: Any) -> PdfPage:
    return PdfPage(words=tuple(Words(x=50, y=100 + 12 * n, text=line) for n, line in enumerate(lines)), **form)


def words(document: Document) -> list[tuple[str, int]]:
    return [(document.text[run.start : run.end], run.page) for run in document.runs]


def box_of(document: Document, word: str) -> Box:
    (box,) = (run.box for run in document.runs if document.text[run.start : run.end] == word)
    assert box is not None
    return box


def test_every_word_of_every_page_is_a_run() -> None:
    document = read(write_pdf([page("Total 1,234.50", "in euro"), page("Größe")]))
    assert document.text == "Total 1,234.50\nin euro\n\nGröße"
    assert [document.text[page.start : page.end] for page in document.pages] == ["Total 1,234.50\nin euro", "Größe"]
    assert words(document) == [("Total", 0), ("1,234.50", 0), ("in", 0), ("euro", 0), ("Größe", 1)]


def test_a_box_surrounds_its_word_from_the_top_left_of_the_page() -> None:
    document = read(write_pdf([PdfPage(words=(Words(x=50, y=100, text="Total 7", size=20),))]))
    first, second = (run.box for run in document.runs)
    assert first is not None
    assert second is not None
    assert first.x0 == pytest.approx(50, abs=1)
    assert first.y0 < 88
    assert 100 < first.y1 < 110
    assert 90 < first.x1 < second.x0 < second.x1 < 130


@pytest.mark.parametrize(
    ("rotation", "corner"),
    [(0, (50, 100)), (90, (842 - 100, 50)), (180, (595 - 50, 842 - 100)), (270, (100, 595 - 50))],
)
def test_boxes_turn_with_their_page(rotation: int, corner: tuple[float, float]) -> None:
    document = read(write_pdf([PdfPage(words=(Words(x=50, y=100, text="x"),), rotation=rotation)]))
    box, shown = box_of(document, "x"), document.pages[0]
    assert (shown.width, shown.height) == ((595, 842) if rotation % 180 == 0 else (842, 595))
    assert box.x0 < box.x1
    assert box.y0 < box.y1
    assert box.x0 - 5 <= corner[0] <= box.x1 + 5
    assert box.y0 - 5 <= corner[1] <= box.y1 + 5


def test_a_word_that_runs_upward_has_a_tall_box() -> None:
    document = read(write_pdf([PdfPage(words=(Words(x=50, y=200, text="upward", turn=90),))]))
    box = box_of(document, "upward")
    assert box.y1 - box.y0 > 2 * (box.x1 - box.x0)
    assert box.y1 == pytest.approx(200, abs=2)


def test_a_box_starts_at_the_corner_of_the_part_that_is_shown() -> None:
    objects = pdf_objects([page("x")])
    objects[3] = objects[3].replace(b"/Rotate", b"/CropBox [40 30 400 800] /Rotate")
    document = read(frame(objects))
    assert (document.pages[0].width, document.pages[0].height) == (360, 770)
    assert box_of(document, "x").x0 == pytest.approx(10, abs=1)
    assert box_of(document, "x").y1 == pytest.approx(60, abs=4)


def test_words_that_a_line_end_divides_are_whole_and_names_keep_their_hyphen() -> None:
    document = read(write_pdf([page("an exam-", "ple of A-", "44 and Mar-", "Apr 2024-", "07")]))
    assert document.text == "an example of A-44 and Mar-Apr 2024-\n07"
    assert " ".join(word for word, _ in words(document)) == "an exam ple of A 44 and Mar Apr 2024- 07"
    assert box_of(document, "exam").y1 < box_of(document, "ple").y1


def test_signs_of_several_characters_and_beyond_the_first_plane_keep_the_places_of_others() -> None:
    content = builders.with_characters([page("ab cd x", "end")], {"a": "\U0001f600", "b": "ffi", "c": "e\u0301"})
    document = read(content)
    assert document.text == "\U0001f600ffi éd x\nend"
    assert [word for word, _ in words(document)] == ["\U0001f600ffi", "éd", "x", "end"]
    assert box_of(document, "x").x0 < box_of(document, "x").x1 < 110
    assert box_of(document, "end").x0 == pytest.approx(50, abs=1)


def test_a_sign_without_a_character_is_shown_as_one() -> None:
    assert read(builders.with_characters([page("abc")], {"b": "\x00"})).text == "a\ufffdc"


@pytest.mark.parametrize("has_look", [True, False])
def test_what_is_filled_in_is_text(has_look: bool) -> None:
    document = read(builders.with_field("Miller", has_look=has_look))
    assert document.text.strip() == "Miller"
    box = box_of(document, "Miller")
    assert 95 < box.x0 < box.x1 < 205
    assert 75 < box.y0 < box.y1 < 110


def test_pages_without_text_are_noted() -> None:
    document = read(write_pdf([page("a"), PdfPage(), PdfPage()]))
    assert len(document.notes) == 1
    assert document.notes[0].startswith("2 of 3 pages have no text, the first is page 2")
    assert len(document.pages) == 3


def test_made_pages_are_read_whole() -> None:
    document = read(make_pdf(6, seed=3))
    assert len(document.pages) == 6
    assert document.notes == ()
    assert document.text.count("Total") == 2
    assert all(
        document.text[run.start : run.end].split() == [document.text[run.start : run.end]] for run in document.runs
    )


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (write_pdf([page("a")])[:-30], DocumentCode.TRUNCATED),
        (write_pdf([page("a")])[:200], DocumentCode.TRUNCATED),
        (b"%PDF-1.7\nstartxref\n9\n%%EOF", DocumentCode.DAMAGED),
        (write_pdf([]), DocumentCode.DAMAGED),
        (builders.with_password([page("a")], b"secret"), DocumentCode.ENCRYPTED),
    ],
)
def test_a_broken_pdf_says_what_is_wrong(content: bytes, code: DocumentCode) -> None:
    with pytest.raises(DocumentError) as refusal:
        read(content)
    assert refusal.value.code == code


def test_a_pdf_that_asks_for_no_password_is_read_though_it_is_protected() -> None:
    with opened(builders.with_password([PdfPage()], b"")) as pdf:
        assert len(pdf) == 1


@pytest.mark.parametrize("pages", [[PdfPage()], [PdfPage()] * 3, [page(" ")]], ids=["one", "three", "blank"])
def test_a_pdf_without_any_text_fails_and_names_what_reads_pictures(pages: list[PdfPage]) -> None:
    with pytest.raises(DocumentError, match="extra `ocr`") as refusal:
        read(write_pdf(pages))
    assert (refusal.value.code, refusal.value.page) == (DocumentCode.NO_TEXT, None)


def test_a_pdf_without_its_end_is_read_and_noted_if_its_pages_are_there() -> None:
    whole = write_pdf([page("a"), page("b")])
    document = read(whole[: whole.index(b"startxref")])
    assert document.text == "a\n\nb"
    (note,) = document.notes
    assert "end" in note
    assert "2 pages" in note
    assert read(write_pdf([page("a")])).notes == ()


def broken(*numbers: int, num_pages: int) -> bytes:
    objects = pdf_objects([page(f"text {number}") for number in range(num_pages)])
    for number in numbers:
        objects[3 + 2 * number] = b"null"
    return frame(objects)


def test_a_page_that_cannot_be_read_is_noted_and_the_others_are_read() -> None:
    document = read(broken(1, num_pages=3))
    assert document.text == "text 0\n\n\n\ntext 2"
    assert [document.text[page.start : page.end] for page in document.pages] == ["text 0", "", "text 2"]
    assert words(document)[-1] == ("2", 2)
    (note,) = document.notes
    assert "page 2 " in note
    assert (document.pages[1].width, document.pages[1].height) == (None, None)


def test_of_many_pages_that_cannot_be_read_the_first_are_named_and_the_others_counted() -> None:
    document = read(broken(*range(1, 15), num_pages=15))
    assert len(document.notes) == 11
    assert document.notes[-1].startswith("4 more pages")


def test_a_pdf_of_which_no_page_can_be_read_is_damaged() -> None:
    with pytest.raises(DocumentError) as refusal:
        read(broken(0, 1, num_pages=2))
    assert (refusal.value.code, refusal.value.page) == (DocumentCode.DAMAGED, 0)


def picture_of(*lines: tuple[str, Box]) -> PageText:
    """Return what OCR reads."""
    ends = np.cumsum([len(text) + 1 for text, _ in lines]) - 1
    return PageText(
        text="\n".join(text for text, _ in lines),
        width=595,
        height=842,
        spans=np.stack([ends - [len(text) for text, _ in lines], ends], 1),
        boxes=np.array([(box.x0, box.y0, box.x1, box.y1) for _, box in lines], np.float32),
        ocr_scores=np.full(len(lines), 0.9, np.float32),
    )


@pytest.mark.parametrize("turn", [0, 90])
def test_a_scan_with_a_stamp_is_read_by_ocr_beside_the_stamp(monkeypatch: pytest.MonkeyPatch, turn: int) -> None:
    stamp = Words(x=300, y=700, text="RECEIVED 2026-03-04, ACCOUNTS PAYABLE", turn=turn)
    lines = [
        ("Invoice 4711", Box(x0=50, y0=80, x1=150, y1=95)),
        ("Total 7.00 euro", Box(x0=50, y0=120, x1=170, y1=135)),
    ]
    if not turn:
        lines.append(("RECElVED 2O26-O3-04, ACC0UNTS", Box(x0=298, y0=690, x1=500, y1=703)))
    monkeypatch.setattr(ocr, "is_installed", lambda: True)
    monkeypatch.setattr(ocr, "read_picture", lambda _pixels, **_: picture_of(*lines))
    scan = Picture(x=0, y=0, width=595, height=842)
    document = read(write_pdf([PdfPage(words=(stamp,), pictures=(scan,)), page("text " * 60)]))
    assert document.text.startswith("Invoice 4711\nTotal 7.00 euro\nRECEIVED 2026-03-04, ACCOUNTS PAYABLE\n\n")
    assert [run.ocr_score is None for run in document.runs[:3]] == [False, False, True]
    assert all(document.text[run.start : run.end] in document.text for run in document.runs)


def test_a_page_of_text_over_a_picture_is_not_read_by_ocr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ocr, "is_installed", lambda: True)
    background = Picture(x=0, y=0, width=595, height=842)
    lines = tuple(Words(x=50, y=100 + 12 * row, text="a line of the text of this page") for row in range(9))
    assert read(write_pdf([PdfPage(words=lines, pictures=(background,))])).text.count("a line") == 9


def test_a_pdf_with_too_many_pages_is_refused() -> None:
    assert len(read(write_pdf([page("a")] * 3), max_pages=3).pages) == 3
    with pytest.raises(DocumentError, match="has 4 pages; the limit is 3") as refusal:
        read(write_pdf([PdfPage()] * 4), max_pages=3)
    assert (refusal.value.code, refusal.value.page) == (DocumentCode.TOO_MANY_PAGES, 3)


def test_a_pdf_with_too_much_text_is_refused_at_its_page() -> None:
    with pytest.raises(DocumentError) as refusal:
        read(write_pdf([page("abc"), page("def")]), max_characters=8)
    assert (refusal.value.code, refusal.value.page) == (DocumentCode.TOO_LARGE, 1)
