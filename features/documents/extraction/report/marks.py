"""Cuts a text where marks, possibly nested, begin and end; of a long text it keeps the parts around marks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_CHARACTERS = 30_000
"""Maximum length of a text that is shown whole."""
_AROUND = 400
"""Characters shown on each side of a mark in a longer text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The range [start, end) of the text holds the value with this index."""

    start: int
    end: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the text with the indexes of all values that cover it."""

    text: str
    indexes: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    """Values whose first mark begins here, the target of links to them."""
    left_out: int = 0
    """Number of omitted characters; then there is no text."""


def segments(text: str, marks: Sequence[Mark], *, max_characters: int = MAX_CHARACTERS) -> list[Segment]:
    """Return the segments of a text in order; marks beyond its end are clipped."""
    marks = [Mark(start=m.start, end=min(m.end, len(text)), index=m.index) for m in marks if m.start < len(text)]
    ranges = [(0, len(text))] if len(text) <= max_characters else _around(marks, len(text))
    pieces: list[Segment] = []
    anchored: set[int] = set()
    end = 0
    for first, last in ranges:
        if first > end:
            pieces.append(Segment(text="", left_out=first - end))
        pieces += _cut(text, first, last, marks, anchored)
        end = last
    if end < len(text):
        pieces.append(Segment(text="", left_out=len(text) - end))
    return pieces


def _cut(text: str, first: int, last: int, marks: Sequence[Mark], anchored: set[int]) -> Iterator[Segment]:
    inside = [mark for mark in marks if mark.start < last and mark.end > first]
    ends = {end for mark in inside for end in (mark.start, mark.end) if first < end < last}
    corners = sorted({first, last, *ends})
    for start, end in pairwise(corners):
        over = sorted({mark.index for mark in inside if mark.start < end and mark.end > start})
        begins = tuple(index for index in over if index not in anchored)
        anchored.update(begins)
        yield Segment(text=text[start:end], indexes=tuple(over), begins=begins)


def _around(marks: Sequence[Mark], length: int) -> list[tuple[int, int]]:
    """Return the visible ranges of a long text: its beginning, and the surroundings of each mark."""
    ranges = [(0, 2 * _AROUND), *((max(0, m.start - _AROUND), min(length, m.end + _AROUND)) for m in marks)]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
