"""Finds columns of prose: a gutter that no line crosses, with filled lines on both sides.

What is above and below a gutter is divided in the same way, and so is each column (a recursive XY cut, in which
gutters come first). A gutter between short texts belongs to a table or a form, whose rows stay together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nlargest

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.reading_order.chunks import Chunks, Floats, Ints

_GUTTER = 0.7
"""Least width of a gutter, of the words' median height."""
_MIN_LINES = 3
"""Of a column."""
_SLACK = 0.75
"""Points by which the starts of a column's lines may differ."""
_EDGE = 2.0
"""Points between edges that are told apart."""
_CORE = 0.25
"""Of a chunk's height, above and below: lines of one column may overlap there."""
_MOST_DEPTH, _MOST_EDGES, _MOST_RUNS, _MOST_TRIES = 24, 48, 48, 6
"""Bounds of the work on a page that is made to cost much."""
_WORD_GAP = 1.2
"""Of the median height: no wider gap is a blank of a justified line."""
_LEAST_WORDS, _LEAST_CHARACTERS = 2.4, 11.0
"""Of a line of prose, on average."""
_WIDE_LETTER, _LETTERS_OF_WORD = 0.6, 2
"""Letters this wide, by the median height, are Chinese or Japanese: no blanks divide their words of so many letters."""
_LEAST_FILLED, _LEAST_FILLED_APART = 0.7, 0.5
"""Mean share of a column's width that its lines take: if its lines are level with those of the other, and if not."""
_LEVEL = 0.6
"""Share of a column's lines that are level with others."""
_FAR = 2.0
"""A line further from the next than this many usual distances is a header or footer."""
_SMALL, _MOST_NOTES = 0.9, 0.5
"""Footnotes are smaller than this share of a column's letters, and at most this share of its lines."""


@dataclass(frozen=True, slots=True)
class _Region:
    """Chunks of a part of a page, sorted from the top; `bands` numbers those that overlap in height."""

    indexes: Ints
    bands: Ints


@dataclass(frozen=True, slots=True)
class _Cut:
    """Columns in some bands of a region, `first` to `end`."""

    first: int
    end: int
    columns: tuple[Ints, ...]


def blocks(chunks: Chunks) -> list[Ints]:
    """Return the chunks of each block in reading order; a block is read line by line."""
    return list(_blocks(chunks, np.arange(len(chunks.boxes)), _MOST_DEPTH))


def _blocks(chunks: Chunks, indexes: Ints, depth: int) -> Iterator[Ints]:
    cut = _best_cut(chunks, region := _region(chunks, indexes)) if depth and len(indexes) >= 2 * _MIN_LINES else None
    if cut is None:
        if len(indexes):
            yield indexes
        return
    yield from _blocks(chunks, region.indexes[region.bands < cut.first], depth - 1)
    notes = [_notes(chunks, column) for column in cut.columns]
    for column, below in zip(cut.columns, notes, strict=True):
        yield from _blocks(chunks, np.setdiff1d(column, below), depth - 1)
    for below in notes:
        yield from _blocks(chunks, below, depth - 1)
    yield from _blocks(chunks, region.indexes[region.bands >= cut.end], depth - 1)


def _region(chunks: Chunks, indexes: Ints) -> _Region:
    y0, y1 = chunks.boxes[indexes, 1], chunks.boxes[indexes, 3]
    core = _CORE * (y1 - y0)
    order = np.argsort(y0 + core, kind="stable")
    tops, lowest = (y0 + core)[order], np.maximum.accumulate((y1 - core)[order])
    begins = np.zeros(len(indexes), np.int64)
    begins[1:] = tops[1:] > lowest[:-1]
    return _Region(indexes[order], np.cumsum(begins))


def _best_cut(chunks: Chunks, region: _Region) -> _Cut | None:
    """Return the columns beside the longest gutters, None if there are none."""
    boxes = chunks.boxes[region.indexes]
    edges = _edges(boxes)
    width = _GUTTER * chunks.height
    crosses = (boxes[:, :1] < edges - _SLACK) & (boxes[:, 2:3] > edges - width + _SLACK)
    starts = np.flatnonzero(np.diff(region.bands, prepend=-1))
    is_free = ~np.logical_or.reduceat(crosses, starts, axis=0)  # [bands, edges]
    sizes = np.append(starts, len(boxes))
    runs = [
        (int(sizes[end] - sizes[first]), first, end, edge)
        for column, edge in enumerate(edges.tolist())
        for first, end in _runs(is_free[:, column])
    ]
    tried = [
        (_num_lines(chunks, region, boxes, (first, end), edge), first, end)
        for _, first, end, edge in nlargest(_MOST_RUNS, runs)
    ]
    for num_lines, first, end in sorted(tried, key=lambda run: -run[0])[:_MOST_TRIES]:
        if num_lines < _MIN_LINES:
            break
        bands = _without_far_lines(chunks, region, first, end)
        columns = _columns(region, boxes, bands, edges[is_free[slice(*bands)].all(axis=0)])
        if len(columns) > 1 and _are_prose(chunks, columns):
            return _Cut(*bands, columns)
    return None


def _edges(boxes: Floats) -> Floats:
    """Return where several chunks begin, the most frequent first, without the leftmost."""
    left = np.sort(boxes[:, 0])
    first = np.flatnonzero(np.diff(np.rint(left / _EDGE), prepend=-np.inf))
    counts = np.diff(first, append=len(left))
    frequent = (counts >= _MIN_LINES) & (left[first] > left[0] + _EDGE)
    edges: Floats = left[first][frequent]
    return edges[np.argsort(-counts[frequent], kind="stable")][:_MOST_EDGES]


def _runs(is_free: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of bands that a gutter may have."""
    changes = np.flatnonzero(np.diff(is_free.astype(np.int8), prepend=0, append=0)).tolist()
    return zip(changes[::2], changes[1::2], strict=True)


def _num_lines(chunks: Chunks, region: _Region, boxes: Floats, bands: tuple[int, int], edge: float) -> int:
    """Return the lines of the side that has fewer."""
    inside = slice(*np.searchsorted(region.bands, bands))
    lines, is_left = chunks.lines[region.indexes[inside]], boxes[inside, 0] < edge - _SLACK
    return min(len(set(lines[is_left].tolist())), len(set(lines[~is_left].tolist())))


def _without_far_lines(chunks: Chunks, region: _Region, first: int, end: int) -> tuple[int, int]:
    """Return the bands without headers and footers: single lines at the ends, far from the others."""
    inside = slice(*np.searchsorted(region.bands, (first, end)))
    boxes, bands = chunks.boxes[region.indexes[inside]], region.bands[inside]
    starts = np.flatnonzero(np.diff(bands, prepend=-1))
    middles = np.stack([np.minimum.reduceat(boxes[:, 1], starts), np.maximum.reduceat(boxes[:, 3], starts)], 1)
    distances = middles[1:, 0] - middles[:-1, 1]
    if len(distances) < _MIN_LINES:
        return first, end
    far = float(np.median(distances)) + (_FAR - 1) * chunks.height
    is_line = middles[:, 1] - middles[:, 0] < 2 * chunks.height
    while end - first > _MIN_LINES and is_line[0] and distances[0] > far:
        first, is_line, distances = first + 1, is_line[1:], distances[1:]
    while end - first > _MIN_LINES and is_line[-1] and distances[-1] > far:
        end, is_line, distances = end - 1, is_line[:-1], distances[:-1]
    return first, end


def _columns(region: _Region, boxes: Floats, bands: tuple[int, int], edges: Floats) -> tuple[Ints, ...]:
    """Return the chunks between gutters, from the left."""
    inside = slice(*np.searchsorted(region.bands, bands))
    place = np.searchsorted(np.sort(edges) - _SLACK, boxes[inside, 0], side="right")
    indexes = region.indexes[inside]
    return tuple(indexes[place == number] for number in np.unique(place))


def _are_prose(chunks: Chunks, columns: tuple[Ints, ...]) -> bool:
    """Tell whether each column has lines of several words that fill it."""
    for number, column in enumerate(columns):
        others = np.concatenate([other for index, other in enumerate(columns) if index != number])
        lines = chunks.lines[column]
        is_level = float(np.isin(lines, chunks.lines[others]).mean()) > _LEVEL
        if not _is_prose(chunks, np.sort(column), _LEAST_FILLED if is_level else _LEAST_FILLED_APART):
            return False
    return True


def _is_prose(chunks: Chunks, column: Ints, least_filled: float) -> bool:
    boxes, lines = chunks.boxes[column], chunks.lines[column]
    is_first = np.ones(len(column), np.bool_)
    is_first[1:] = (np.diff(lines) > 0) | (boxes[1:, 0] - boxes[:-1, 2] > _WORD_GAP * chunks.height)
    first = np.flatnonzero(is_first)
    if len(first) < _MIN_LINES:
        return False
    widths = np.maximum.reduceat(boxes[:, 2], first) - boxes[first, 0]
    num_words = chunks.num_words[column].sum() / len(first)
    num_characters = chunks.num_characters[column].sum() / len(first)
    if widths.sum() > _WIDE_LETTER * chunks.height * chunks.num_characters[column].sum():
        num_words = num_characters / _LETTERS_OF_WORD
    is_filled = float(widths.mean()) > least_filled * (boxes[:, 2].max() - boxes[:, 0].min())
    return bool(num_words >= _LEAST_WORDS and num_characters >= _LEAST_CHARACTERS and is_filled)


def _notes(chunks: Chunks, column: Ints) -> Ints:
    """Return the footnotes of a column: smaller lines at its end."""
    heights = chunks.boxes[column, 3] - chunks.boxes[column, 1]
    large = heights >= _SMALL * np.median(heights)
    lowest = chunks.boxes[column[large], 3].max()
    notes: Ints = column[chunks.boxes[column, 1] + _CORE * heights > lowest - _CORE * chunks.height]
    return notes[: len(notes) if len(notes) <= _MOST_NOTES * len(column) else 0]
