"""Tests of the order of words on pages: columns, forms, turned pages, tables."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.layout import layout
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.page_text import PageText, with_lines
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.documents.reading_order import ordering, rows
from features.documents.extraction.documents.reading_order.ordering import in_reading_order
from features.documents.extraction.documents.reading_order.upright import upright
from features.documents.extraction.documents.runs import Run
from lab.extraction.page_layouts import held_out, usual
from lab.extraction.page_layouts.typesetting import MadePage
from lab.extraction.pages import make_pages
from lab.extraction.pdf_writer import PdfPage, Words, write_pdf
from lab.extraction.reading_order import compare
from tests.features.documents.extraction.documents import builders

LAYOUTS = (*usual.LAYOUTS, *held_out.LAYOUTS)


@cache
def made_page(number: int) -> MadePage:
    """Make the page of a layout once a test needs it: all of them take 2 s, in each process that collects tests."""
    return LAYOUTS[number](random.Random(f"test {number}"))


def read(*words: Words, rotation: int = 0) -> Document:
    return parse(write_pdf([PdfPage(words=words, rotation=rotation)]), "a.pdf", Limits())


def words_of(document: Document) -> list[str]:
    return [document.text[run.start : run.end] for run in document.runs]


def run_of(document: Document, word: str) -> Run:
    (run,) = (run for run in document.runs if document.text[run.start : run.end] == word)
    return run


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_text_and_prompt_have_the_order_in_which_people_read(number: int) -> None:
    made = made_page(number)
    reading = compare(made)
    assert max(reading.text_error, reading.prompt_error) <= 0.05, made.layout
    assert reading.whole_in_text == reading.whole_in_prompt == reading.num_sentences
    assert reading.right_cells == reading.num_cells


def test_a_page_in_order_keeps_its_text() -> None:
    content = write_pdf(make_pages(1, seed=4))
    document = parse(content, "a.pdf", Limits())
    page = PageText(
        text=document.text,
        width=595,
        height=842,
        spans=document.runs.spans,
        boxes=document.runs.boxes,
        ocr_scores=document.runs.ocr_scores,
    )
    assert in_reading_order(page) is page


def test_a_word_that_goes_on_in_the_next_column_is_whole() -> None:
    left = [Words(x=50, y=100 + 12 * row, text="the words of the left column are here") for row in range(4)]
    left.append(Words(x=50, y=148, text="and the last of them is an exam-"))
    right = [Words(x=320, y=100, text="ple that goes on with other words here")]
    right += [Words(x=320, y=112 + 12 * row, text="the words of the right column are here") for row in range(4)]
    across = [line for pair in zip(left, right, strict=True) for line in pair]
    document = read(*across)
    assert "is an example that goes on" in document.text
    assert words_of(document).count("exam") == words_of(document).count("ple") == 1
    assert run_of(document, "exam").box.x0 < 300 < run_of(document, "ple").box.x0  # type: ignore[union-attr]


def test_a_page_that_runs_from_right_to_left_keeps_its_order() -> None:
    letters = {chr(ord("a") + number): chr(0x5D0 + number) for number in range(26)}
    lines = ("abc def ghi jkl", "mno pqr stu vwx", "yza bcd efg hij")  # as they are read
    shown = tuple(Words(x=100, y=100 + 14 * number, text=line[::-1]) for number, line in enumerate(lines))
    document = parse(builders.with_characters([PdfPage(words=shown)], letters), "a.pdf", Limits())
    assert document.text == "\n".join("".join(letters.get(sign, sign) for sign in line) for line in lines)
    first, second, *_, last = (run.box for run in document.runs)
    assert first is not None
    assert second is not None
    assert last is not None
    assert second.x1 < first.x0
    assert first.y1 < last.y0


def test_boxes_move_with_their_words_and_stay_where_they_are_displayed() -> None:
    document = read(
        Words(x=300, y=400, text="second", turn=180),
        Words(x=500, y=400, text="first", turn=180),
        Words(x=500, y=380, text="third", turn=180),
    )
    assert document.text == "first second\nthird"
    first, second = run_of(document, "first").box, run_of(document, "second").box
    assert first is not None
    assert second is not None
    assert first.x1 == pytest.approx(500, abs=1)
    assert second.x1 == pytest.approx(300, abs=1)


def test_words_in_another_direction_come_last() -> None:
    lines = [Words(x=80, y=100 + 12 * row, text=f"line {row} of the page") for row in range(6)]
    stamp = Words(x=40, y=170, text="sideways", turn=90)
    assert read(stamp, *lines).text.splitlines() == [f"line {row} of the page" for row in range(6)] + ["sideways"]


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_words_against_most_of_their_page_keep_their_own_order(turn: int) -> None:
    forward, down = {0: ((1, 0), (0, 1)), 90: ((0, -1), (1, 0)), 180: ((-1, 0), (0, -1)), 270: ((0, 1), (-1, 0))}[turn]

    def placed(text: str, along: int, line: int, *, is_against: bool = False) -> Words:
        x, y = (300 + forward[i] * along + down[i] * 14 * line for i in range(2))
        return Words(x=x, y=y, text=text, turn=(turn + 180 * is_against) % 360)

    lines = [placed(f"line {row} of the page", 0, row) for row in (2, 0, 1)]  # drawn in another order
    document = read(placed("upside down on a page", 150, 5, is_against=True), *lines)
    assert document.text.splitlines() == [*(f"line {row} of the page" for row in range(3)), "upside down on a page"]


def test_signs_without_a_character_stay_beside_their_words() -> None:
    lines = (("second", 112), ("first b", 100), ("thirbd", 124), ("fourth", 136))
    page = PdfPage(words=tuple(Words(x=50, y=y, text=text) for text, y in lines))
    document = parse(builders.with_characters([page], {"b": "\x00"}), "a.pdf", Limits())
    assert document.text.splitlines() == ["first \ufffd", "second", "thir\ufffdd", "fourth"]


def test_a_form_is_a_table_of_labels_and_values() -> None:
    labels = [Words(x=50, y=100 + 20 * row, text=text) for row, text in enumerate(("Name", "Date of birth"))]
    values = [Words(x=200, y=100 + 20 * row, text=text) for row, text in enumerate(("Ash Miller", "4 May"))]
    document = read(*labels, *values)
    assert document.text == "Name\tAsh Miller\nDate of birth\t4 May"
    assert [(cell.table, cell.row, cell.column) for cell in document.cells] == [
        (0, row, column) for row in range(2) for column in range(2)
    ]
    assert [document.text[cell.start : cell.end] for cell in document.cells] == [
        *("Name", "Ash Miller", "Date of birth", "4 May")
    ]


def test_tables_are_numbered_over_all_pages() -> None:
    page = PdfPage(words=tuple(Words(x=x, y=y, text="12.00") for y in (100, 115) for x in (50, 200)))
    document = parse(write_pdf([page, page]), "a.pdf", Limits())
    assert [cell.table for cell in document.cells] == [0] * 4 + [1] * 4
    assert {document.text[cell.start : cell.end] for cell in document.cells} == {"12.00"}


def test_columns_of_a_script_without_blanks_are_read_one_after_another() -> None:
    lines = [(x, y) for y in range(10) for x in (0, 1)]
    text = "".join(chr(0x4E00 + number) * 20 + "\n" for number in range(len(lines)))
    starts = np.arange(len(lines)) * 21
    page = PageText(
        text=text,
        width=600,
        height=800,
        spans=np.stack([starts, starts + 20], 1),
        boxes=np.array([(50 + 230 * x, 90 + 14 * y, 250 + 230 * x, 103 + 14 * y) for x, y in lines], np.float32),
        ocr_scores=np.full(len(lines), np.nan, np.float32),
    )
    order = [ord(line[0]) - 0x4E00 for line in in_reading_order(page).text.splitlines()]
    assert order == [*range(0, 20, 2), *range(1, 20, 2)]


def test_a_page_of_narrow_signs_is_put_in_order() -> None:
    boxes = np.array([(50 + 20 * x, 90 + 14 * y, 52 + 20 * x, 101 + 14 * y) for x in (1, 0) for y in range(3)])
    starts = np.arange(len(boxes)) * 2
    page = PageText(
        text="d\ne\nf\na\nb\nc",
        width=600,
        height=800,
        spans=np.stack([starts, starts + 1], 1),
        boxes=boxes.astype(np.float32),
        ocr_scores=np.full(len(boxes), np.nan, np.float32),
    )
    assert in_reading_order(page).text == "a\td\nb\te\nc\tf"


def test_a_failure_of_ordering_costs_only_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(page: PageText) -> PageText:
        raise IndexError(f"{len(page.spans)} words")

    monkeypatch.setattr(ordering, "in_reading_order", fail)
    document = parse(write_pdf([PdfPage(words=(Words(x=50, y=100, text="first second"),))]), "a.pdf", Limits())
    assert words_of(document) == ["first", "second"]
    (note,) = document.notes
    assert "page 1" in note


@pytest.mark.parametrize("degrees", [-4, 4])
@pytest.mark.parametrize("turn", [0, 1, 2, 3])
def test_lines_that_descend_by_an_angle_are_rows(turn: int, degrees: float) -> None:
    texts = [f"{side} {row}" for row in range(8) for side in ("first", "second")]
    random.Random(1).shuffle(texts)
    ends = np.cumsum([len(text) + 1 for text in texts]) - 1
    skew, boxes = np.radians(degrees), []
    for text in texts:
        side, row = text.split()[0], int(text.split()[1])
        x, y = 60 + 240 * (side == "second") + 90, 200 + 16 * row + 6  # the middle; 180 by 12 points
        x, y = x * np.cos(skew) - y * np.sin(skew), x * np.sin(skew) + y * np.cos(skew)
        wide, high = (
            abs(180 * a) + abs(12 * b) for a, b in ((np.cos(skew), np.sin(skew)), (np.sin(skew), np.cos(skew)))
        )
        boxes.append((x - wide / 2, y - high / 2, x + wide / 2, y + high / 2))
    displayed = upright(np.array(boxes, np.float32), turn=(4 - turn) % 4, width=600, height=800)
    page = PageText(
        text="\n".join(texts),
        width=600 if turn % 2 == 0 else 800,
        height=800 if turn % 2 == 0 else 600,
        spans=np.stack([ends - [len(text) for text in texts], ends], 1),
        boxes=displayed,
        ocr_scores=np.ones(len(texts), np.float32),
        turn=turn,
        skew=float(skew),
    )
    assert in_reading_order(page).text.splitlines() == [f"first {row}\tsecond {row}" for row in range(8)]


def test_own_words_of_a_scan_keep_their_order_upside_down() -> None:
    page = PageText(
        text="upside down",
        width=600,
        height=800,
        spans=np.array([[0, 6], [7, 11]]),
        boxes=np.array([[300, 700, 340, 710], [260, 700, 295, 710]], np.float32),
        ocr_scores=np.full(2, np.nan, np.float32),
        turn=2,
    )
    lines = replace(
        page,
        text="first line\nsecond line",
        spans=np.array([[0, 10], [11, 22]]),
        boxes=np.array([[50, 100, 150, 112], [50, 120, 150, 132]], np.float32),
        ocr_scores=np.ones(2, np.float32),
        turn=0,
    )
    assert in_reading_order(with_lines(page, lines)).text == "first line\nsecond line\nupside down"


def rows_with_full_cells(num_lines: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a line of four cells, and further lines that may continue two of them."""
    first = [(x, 0, x + 90, 10) for x in (0, 120, 240, 360)]
    others = [(x, 12 * y, x + 90, 12 * y + 10) for y in range(1, num_lines) for x in (0, 120)]
    return np.array([*first, *others], np.float32)


def test_a_row_of_a_table_has_a_bounded_number_of_lines() -> None:
    boxes = rows_with_full_cells(200)
    (table,) = rows.rows_of(boxes, np.arange(len(boxes)))
    assert isinstance(table, rows.Table)
    assert max(len(lines) for row in table.rows for lines in row.values()) == 20
    assert sorted(word for row in table.rows for lines in row.values() for line in lines for word in line) == [
        *range(len(boxes))
    ]


def test_the_work_on_a_table_grows_with_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    column = rows._column

    def counted(piece: rows.Piece, columns: Sequence[tuple[float, float]]) -> int:
        calls[-1] += 1
        return column(piece, columns)

    monkeypatch.setattr(rows, "_column", counted)
    for num_lines in (40, 400):
        calls.append(0)
        rows.rows_of(boxes := rows_with_full_cells(num_lines), np.arange(len(boxes)))
    assert calls[1] <= 12 * calls[0]


def test_a_line_of_more_parts_than_a_table_has_columns_is_none() -> None:
    boxes = [(20 * x, 12 * y, 20 * x + 5, 12 * y + 10) for y in range(3) for x in range(101)]
    (part,) = rows.rows_of(np.array(boxes, np.float32), np.arange(len(boxes)))
    assert isinstance(part, rows.Lines)


def page_of(text: str, spans: list[tuple[int, int]], places: list[tuple[int, int]]) -> PageText:
    """Return a page with words at columns and lines."""
    return PageText(
        text=text,
        width=600,
        height=800,
        spans=np.array(spans, np.int64),
        boxes=np.array([(50 + 60 * x, 90 + 14 * y, 100 + 60 * x, 101 + 14 * y) for x, y in places], np.float32),
        ocr_scores=np.full(len(spans), np.nan, np.float32),
    )


@pytest.mark.parametrize(
    ("text", "spans", "ordered"),
    [
        ("\ufffd ab cd", [(2, 4), (5, 7)], "cd\n\ufffd ab"),
        ("\ufffdab cd", [(1, 3), (4, 6)], "cd\n\ufffdab"),
        ("ab cd\ufffd", [(0, 2), (3, 5)], "cd\ufffd\nab"),
        ("abcd ef", [(0, 2), (2, 4), (5, 7)], "cd ef\nab-"),  # the hyphen of a line end is in no text
        ("ab\ufffdcd ef", [(0, 2), (3, 5), (6, 8)], "cd ef\nab\ufffd"),
    ],
)
def test_signs_before_and_after_words_are_kept(text: str, spans: list[tuple[int, int]], ordered: str) -> None:
    places = [(0, 1), (0, 0), (1, 0)][: len(spans)]
    page = in_reading_order(page_of(text, spans, places))
    assert page.text == ordered


def test_a_word_divided_between_cells_stays_divided() -> None:
    spans = [(0, 2), (3, 7), (7, 10), (11, 12)]
    page = in_reading_order(page_of("12 example c", spans, [(0, 0), (2, 0), (0, 1), (2, 1)]))
    assert page.text == "12\texam-\nple\tc"
    assert [page.text[start:end] for start, end, *_ in page.cells] == ["12", "exam-", "ple", "c"]


def test_an_enormous_page_keeps_its_order() -> None:
    count = 20_001
    starts = np.arange(count) * 2
    page = PageText(
        text="x " * count,
        width=600,
        height=800,
        spans=np.stack([starts, starts + 1], 1),
        boxes=np.array([(5, -number, 9, 10 - number) for number in range(count)], np.float32),
        ocr_scores=np.full(count, np.nan, np.float32),
    )
    assert in_reading_order(page) is page


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=80))
def test_every_word_is_kept_once_with_its_box(places: list[tuple[int, int, int]]) -> None:
    words = [f"w{number}" for number in range(len(places))]
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    page = PageText(
        text=" ".join(words),
        width=600,
        height=800,
        spans=np.stack([ends - [len(word) for word in words], ends], 1),
        boxes=np.array([(10 * x, 12 * y, 10 * x + 5 * wide, 12 * y + 11) for x, y, wide in places], np.float32),
        ocr_scores=np.full(len(words), np.nan, np.float32),
    )
    ordered = in_reading_order(page)
    boxes = {
        ordered.text[start:end]: box for (start, end), box in zip(ordered.spans, ordered.boxes.tolist(), strict=True)
    }
    assert boxes == dict(zip(words, page.boxes.tolist(), strict=True))
    assert sorted(ordered.text.split()) == sorted(words)


def test_prompts_have_the_order_of_the_text() -> None:
    for made in map(made_page, range(len(LAYOUTS))):
        document = parse(write_pdf(list(made.pages)), "a.pdf", Limits())
        assert layout(document).text.split() == document.text.split()
