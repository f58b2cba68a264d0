"""Lines of a block, and the tables among them: lines whose parts stand below each other.

A line that continues cells of the one above belongs to the same row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.reading_order.chunks import Floats, Ints, lines_of

_SAME_LINE = 0.5
"""Of the words' median height: middles of words in one line differ by less."""
_CELL_GAP = 1.2
"""Of the median height: a wider gap may separate cells."""
_MIN_ROWS = 2
"""Of a table that have several cells."""
_MOST_BETWEEN = 3
"""Lines in succession without a second cell, inside of a table."""
_MOST_DISTANCE = 5.0
"""Of the median height, between the middles of two lines of a table."""
_FAR = 2.2
"""Times the largest other distance: a line further away is not of the table."""
_HALF_STEP = 0.75
"""Of the median height: lines that are closer are cells of one row, some of them in the middle of its height."""
_ALIGNED = 0.5
"""Of the median height, between the starts of the lines of one cell."""
_TIGHT = 1.15
"""Of the smallest distance: lines of one cell are no further apart."""
_BLANK = 0.2
"""Of the median height: the width of a blank, at least."""
_MOST_COLUMNS, _MOST_LINES = 100, 20
"""Of a table, and of a row that continues: bounds of the work on a page that is made to cost much."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Words line by line, each from the left."""

    words: Ints
    begins_line: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Piece:
    """Words of a line without a wide gap; the extent is that of its words."""

    words: tuple[int, ...]
    left: float
    right: float
    first_right: float  # of the first word


@dataclass(frozen=True, slots=True)
class Line:
    """A line: its pieces from the left, and the middle of its height."""

    pieces: tuple[Piece, ...]
    middle: float


Row = dict[int, list[tuple[int, ...]]]
"""The words of each cell, by column and line."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows in order."""

    rows: tuple[Row, ...]


def rows_of(boxes: Floats, words: Ints) -> list[Lines | Table]:
    """Return the lines and tables of a block from the top; `words` are rows of `boxes`."""
    height = max(float(np.median(boxes[words, 3] - boxes[words, 1])), 0.1)
    lines = lines_of(boxes[words], _SAME_LINE * height)
    order = np.lexsort((boxes[words, 0], lines))
    words, lines = words[order], lines[order]
    begins_line = np.ones(len(words), np.bool_)
    begins_line[1:] = lines[1:] > lines[:-1]
    begins_piece = begins_line.copy()
    begins_piece[1:] |= boxes[words[1:], 0] - boxes[words[:-1], 2] > _CELL_GAP * height
    if np.count_nonzero(begins_piece) - np.count_nonzero(begins_line) < _MIN_ROWS:
        return [Lines(words, begins_line)]
    return _with_tables(boxes, Lines(words, begins_line), begins_piece, height)


def _with_tables(boxes: Floats, lines: Lines, begins_piece: NDArray[np.bool_], height: float) -> list[Lines | Table]:
    rows, result = _lines(boxes, lines, begins_piece), list[Lines | Table]()
    bounds = [*np.flatnonzero(lines.begins_line).tolist(), len(lines.words)]
    start = begin = 0
    while start < len(rows):
        end, columns = _table_end(rows, start, height)
        if columns:
            if begin < start:
                result.append(_part(lines, bounds[begin], bounds[start]))
            result.append(_table(rows[start:end], columns, height))
            begin = end
        start = end
    return result if begin == len(rows) else [*result, _part(lines, bounds[begin], len(lines.words))]


def _part(lines: Lines, start: int, end: int) -> Lines:
    return Lines(lines.words[start:end], lines.begins_line[start:end])


def _lines(boxes: Floats, lines: Lines, begins_piece: NDArray[np.bool_]) -> list[Line]:
    x0, y0, x1, y1 = boxes[lines.words].T
    first, begins = np.flatnonzero(begins_piece), np.flatnonzero(lines.begins_line)
    lefts, firsts, rights = x0[first].tolist(), x1[first].tolist(), np.maximum.reduceat(x1, first).tolist()
    bounds, words = [*first.tolist(), len(x0)], lines.words.tolist()
    pieces = [
        Piece(tuple(words[start:end]), left, right, first_right)
        for start, end, left, right, first_right in zip(bounds, bounds[1:], lefts, rights, firsts, strict=False)
    ]
    middles = ((np.minimum.reduceat(y0, begins) + np.maximum.reduceat(y1, begins)) / 2).tolist()
    ends = [*np.searchsorted(first, begins).tolist(), len(pieces)]
    return [Line(tuple(pieces[start:end]), middle) for start, end, middle in zip(ends, ends[1:], middles, strict=False)]


def _table_end(lines: Sequence[Line], start: int, height: float) -> tuple[int, list[tuple[float, float]]]:
    """Return the end of the table that begins with a line, and the extents of its columns; none if it is no table."""
    columns = _extents(lines[start].pieces)
    rows, at, first_step, largest_step = [start], start + 1, 0.0, 0.0
    while 1 < len(columns) <= _MOST_COLUMNS and at < len(lines) and at - rows[-1] <= _MOST_BETWEEN:
        step = lines[at].middle - lines[at - 1].middle
        largest = max(first_step, largest_step)
        if step > _MOST_DISTANCE * height or (largest and step > _FAR * largest):
            break
        merged = _merged([*columns, *_extents(lines[at].pieces)])
        if len(merged) < 2 or (len(merged) < len(columns) and not _are_apart(lines[at], columns)):
            break
        columns = merged if len(merged) >= len(columns) else columns
        first_step, largest_step = (first_step, max(largest_step, step)) if first_step else (step, 0.0)
        rows += [at] if len(lines[at].pieces) > 1 else []
        at += 1
    is_header = 0 < _FAR * largest_step < first_step
    if len(rows) < _MIN_ROWS or is_header:
        return start + 1, []
    end = rows[-1] + 1
    row = _OpenRow(columns, height)
    row.add(lines[rows[-1]])
    while end < at and row.is_continued_by(lines[end]):
        row.add(lines[end])
        end += 1
    return end, columns


def _extents(pieces: Sequence[Piece]) -> list[tuple[float, float]]:
    return [(piece.left, piece.right) for piece in pieces]


def _merged(extents: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the unions of extents that overlap, from the left."""
    merged: list[tuple[float, float]] = []
    for left, right in sorted(extents):
        if merged and left <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], right)
        else:
            merged.append((left, right))
    return merged


def _are_apart(line: Line, columns: Sequence[tuple[float, float]]) -> bool:
    """Tell whether the pieces of a line have different columns, although one spans several."""
    places = [_column(piece, columns) for piece in line.pieces]
    return len(places) > 1 and len(set(places)) == len(places)


def _column(piece: Piece, columns: Sequence[tuple[float, float]]) -> int:
    """Return the column in which a piece begins."""
    return max(bisect_right(columns, (piece.left, inf)) - 1, 0)


@dataclass(slots=True)
class _OpenRow:
    """The row above a line: the last piece in each column, and the most pieces that one of its lines has."""

    columns: Sequence[tuple[float, float]]
    height: float
    last: dict[int, Piece] = field(default_factory=dict)
    most_pieces: int = 0
    num_lines: int = 0

    def add(self, line: Line) -> None:
        """Append a line."""
        self.last.update((_column(piece, self.columns), piece) for piece in line.pieces)
        self.most_pieces = max(self.most_pieces, len(line.pieces))
        self.num_lines += 1

    def is_continued_by(self, line: Line) -> bool:
        """Tell whether a line goes on in a few of its cells: its first words had no room in the lines there."""
        if self.num_lines >= _MOST_LINES or 2 * len(line.pieces) > self.most_pieces:
            return False
        for piece in line.pieces:
            column = _column(piece, self.columns)
            above = self.last.get(column)
            if above is None or abs(piece.left - above.left) > _ALIGNED * self.height:
                return False
            needed = above.right + _BLANK * self.height + piece.first_right - piece.left
            if needed < self.columns[column][1]:
                return False
        return True


def _table(lines: Sequence[Line], columns: Sequence[tuple[float, float]], height: float) -> Table:
    steps = [0.0, *(below.middle - above.middle for above, below in pairwise(lines))]
    tight = _TIGHT * min((step for step in steps if step > _HALF_STEP * height), default=0.0)
    starts, row = [0], _OpenRow(columns, height)
    for number, line in enumerate(lines):
        is_more = steps[number] <= _HALF_STEP * height or (steps[number] <= tight and row.is_continued_by(line))
        if not is_more:
            starts.append(number)
            row = _OpenRow(columns, height)
        row.add(line)
    return Table(tuple(_row(lines[start:end], columns) for start, end in pairwise([*starts, len(lines)])))


def _row(lines: Sequence[Line], columns: Sequence[tuple[float, float]]) -> Row:
    cells: Row = {}
    for line in lines:
        for piece in line.pieces:
            cells.setdefault(_column(piece, columns), []).append(piece.words)
    return cells
