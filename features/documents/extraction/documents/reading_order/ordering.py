"""Puts the words of a page in reading order, and writes its text anew if that changes anything."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from features.documents.extraction.documents.page_text import PageText
from features.documents.extraction.documents.reading_order.chunks import Floats, Ints, chunks_of
from features.documents.extraction.documents.reading_order.columns import blocks
from features.documents.extraction.documents.reading_order.rewriting import Placement, rewritten
from features.documents.extraction.documents.reading_order.rows import Lines, Table, rows_of
from features.documents.extraction.documents.reading_order.upright import runs_across, straight, upright

_SAME_LINE = 0.5
"""Of the median height: the middles of words in one line differ by less."""
_BACK = 0.5
"""Of the median height: a word that begins further left than the end of the one before does not follow it."""
_WIDE = 0.9
"""Of the median height: a wider gap may be that between columns or cells."""
_MOST_WORDS = 20_000
"""A page with more keeps its order."""
_MANY = 2
"""Wide gaps of a page that may have columns or tables."""
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
"""Hebrew, Arabic and scripts beside them; PDFium puts their words in order."""


def in_reading_order(page: PageText) -> PageText:
    """Return a page in reading order, with its tables' cells; the same page if it needs no change."""
    if not 2 <= len(page.spans) <= _MOST_WORDS or not np.isfinite(page.boxes).all():
        return page
    if _RIGHT_TO_LEFT.search(page.text):
        return page
    boxes = straight(upright(page.boxes, turn=page.turn, width=page.width, height=page.height), page.skew)
    if _is_in_order(boxes):
        return page
    parts = _parts(page, boxes)
    lines = [part.words for part in parts if isinstance(part, Lines)]
    if len(lines) == len(parts) and (np.concatenate(lines) == np.arange(len(boxes))).all():
        return page
    return rewritten(page, _placement(parts))


def try_reading_order(page: PageText) -> PageText | None:
    """Return a page in reading order; None where that fails."""
    try:
        return in_reading_order(page)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - boxes are untrusted: no failure may cost more than the order of their page
        return None


def _is_in_order(boxes: Floats) -> bool:
    """Tell whether each word is right of or below the one before, without gaps as between columns."""
    x0, y0, x1, y1 = boxes.T
    middles, height = (y0 + y1) / 2, float(np.median(y1 - y0))
    down, right = np.diff(middles), x0[1:] - x1[:-1]
    is_same_line = np.abs(down) < _SAME_LINE * height
    if not np.where(is_same_line, right > -_BACK * height, down > 0).all():
        return False
    return bool(np.count_nonzero(is_same_line & (right > _WIDE * height)) < _MANY)


def _parts(page: PageText, boxes: Floats) -> list[Lines | Table]:
    """Return all words in reading order; those that run in another direction come last, as they are."""
    across = runs_across(boxes)
    if page.against is not None:
        across &= ~page.against
    if not across.any():  # narrow signs, such as bars, are higher than wide in any direction
        across = np.ones_like(across)
    words = np.flatnonzero(across)
    num_characters = page.spans[words, 1] - page.spans[words, 0]
    chunks = chunks_of(boxes[words], num_characters, _num_words(page)[words])
    parts: list[Lines | Table] = []
    for block in blocks(chunks):
        parts += rows_of(boxes, words[chunks.words_of(block)])
    others = np.flatnonzero(~across)
    return [*parts, Lines(others, np.arange(len(others)) == 0)] if len(others) else parts


def _num_words(page: PageText) -> Ints:
    """Return the number of words of each run: pages that are text have one for each, pictures one for each line."""
    if np.isnan(page.ocr_scores).all():
        return np.ones(len(page.spans), np.int64)
    return np.array([page.text.count(" ", start, end) + 1 for start, end in page.spans.tolist()])


def _placement(parts: list[Lines | Table]) -> Placement:
    placement, num_tables = Placement(), 0
    for part in parts:
        if isinstance(part, Table):
            _add_table(placement, part, num_tables)
            num_tables += 1
        else:
            bounds = [*np.flatnonzero(part.begins_line).tolist(), len(part.words)]
            words = part.words.tolist()
            for start, end in pairwise(bounds):
                placement.add_line(words[start:end], "\n", is_continued=True)
    return placement


def _add_table(placement: Placement, table: Table, number: int) -> None:
    """Append a table: rows are lines, cells are separated by tabs, also empty ones."""
    for row, cells in enumerate(table.rows):
        separator, column = "\n", 0
        for next_column, lines in sorted(cells.items()):
            separator += "\t" * (next_column - column)
            column, start = next_column, len(placement.words)
            for line in lines:
                placement.add_line(line, separator, is_continued=line is not lines[0])
                separator = " "
            separator = ""
            placement.cells.append((start, len(placement.words), number, row, column))
