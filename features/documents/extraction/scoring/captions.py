"""Captions: the words that a document has before a value, as in `Amount due: 119.00`.

The captions of a field's right values are learned from gold: the same words before another value speak for it, and
before a value that no field has, against null.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from features.documents.extraction.fields.dates import DATE
from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.numbers import NUMBER
from features.documents.extraction.grounding.spans import Span

MOST_UNCLAIMED = 24
"""Captions kept of the values that no field has."""
_MOST_LINES, _MOST_CHARACTERS = 400, 400
"""Limits of the search for values: lines of a text, and the length of a line."""
_MOST_WORDS, _LEAST_LETTERS = 4, 2
"""Limits of a caption: text with more words is a sentence."""
_MOST_LETTERS = 60
_DRAWN = 2.0
"""Values by which a share is drawn to a half."""
_LEAST_COLUMNS = 3
"""Of a row whose captions stand in a row above; a row of two is a caption and its value."""
_WORD = re.compile(r"[^\W\d_]+")
_BETWEEN = re.compile(r"[ \t]*[|\t][ \t|]*|:[ \t]+|[ \t]{2,}")
_PATTERNS = {Kind.DATE: DATE, Kind.NUMBER: NUMBER, Kind.MONEY: NUMBER}


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A captioned value that no field has."""

    caption: str
    kinds: frozenset[Kind]
    """It may be a value of these."""


class Captions:
    """The captions of one text; each line is read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._cells: dict[int, list[Span]] = {}
        self._heads: dict[int, list[str] | None] = {}

    def before(self, span: Span) -> str | None:
        """Return the words before a place: on its line, in the row of heads above, or on the line above."""
        line = bisect_right(self._starts, span.start) - 1
        place = next((index for index, cell in enumerate(self._cells_of(line)) if span.overlaps(cell)), None)
        return None if place is None else self._caption(line, place, span.start)

    def unclaimed(self, claimed: Iterable[Span]) -> list[Unclaimed]:
        """Return the captioned values in the first lines that overlap no claimed place."""
        taken = sorted(claimed)
        starts, ends = [span.start for span in taken], list(accumulate((span.end for span in taken), max))
        found = []
        for line in range(min(len(self._starts), _MOST_LINES)):
            for place, cell in enumerate(self._cells_of(line)):
                before = bisect_left(starts, cell.end)
                if (before and ends[before - 1] > cell.start) or self._is_caption(line, place):
                    continue
                if (caption := self._caption(line, place, cell.start)) is not None:
                    found.append(Unclaimed(caption, _kinds_of(self._text[cell.start : cell.end])))
        return found

    def _caption(self, line: int, place: int, start: int) -> str | None:
        heads, cells = self._heads_of(line), self._cells_of(line)
        if heads is not None:
            return heads[place]
        before = self._text[cells[place].start : start]
        if _WORD.search(before):
            return _plain(before)
        if place:
            return self._plain_cell(cells[place - 1])
        above = self._cells_of(line - 1) if line else []
        return self._plain_cell(above[0]) if len(above) == 1 else None

    def _plain_cell(self, cell: Span) -> str | None:
        """Return the caption that a cell is; None for one with digits, which is a value."""
        words = self._text[cell.start : cell.end]
        return None if any(map(str.isdigit, words)) else _plain(words)

    def _is_caption(self, line: int, place: int) -> bool:
        """Return whether a cell is the caption of the next one, or the head of a column."""
        cells = self._cells_of(line)
        if self._plain_cell(cells[place]) is None:
            return False
        if len(cells) >= _LEAST_COLUMNS and self._own_heads(line) is not None:
            return True
        return place + 1 < len(cells) or (
            len(cells) == 1 and line + 1 < len(self._starts) and bool(self._line(line + 1).strip())
        )

    def _line(self, line: int) -> str:
        """Return a line; empty for one that is too long for captions."""
        start = self._starts[line]
        end = self._starts[line + 1] - 1 if line + 1 < len(self._starts) else len(self._text)
        return self._text[start:end] if end - start <= _MOST_CHARACTERS else ""

    def _cells_of(self, line: int) -> list[Span]:
        """Return the parts of a line that wide blanks, bars, tabs or colons divide."""
        if line not in self._cells:
            start, words = self._starts[line], self._line(line)
            between = list(_BETWEEN.finditer(words))
            firsts, lasts = [0, *(gap.end() for gap in between)], [*(gap.start() for gap in between), len(words)]
            cuts = [(first, last) for first, last in zip(firsts, lasts, strict=True) if words[first:last].strip()]
            self._cells[line] = [Span(start + first, start + last) for first, last in cuts]
        return self._cells[line]

    def _heads_of(self, line: int) -> list[str] | None:
        """Return the captions of a table's columns for one of its rows: the nearest row above that has no numbers."""
        first = line
        while first not in self._heads and first and self._is_below(first - 1, first):
            first -= 1
        for row in range(first, line + 1):
            if row not in self._heads:
                self._heads[row] = self._own_heads(row - 1) or self._heads[row - 1] if row > first else None
        return self._heads[line]

    def _is_below(self, above: int, line: int) -> bool:
        width = len(self._cells_of(line))
        return width >= _LEAST_COLUMNS and len(self._cells_of(above)) == width

    def _own_heads(self, line: int) -> list[str] | None:
        """Return the captions that a row consists of; None for any other row."""
        heads = [self._text[cell.start : cell.end] for cell in self._cells_of(line)]
        captions = [caption for head in heads if not any(map(str.isdigit, head)) and (caption := _plain(head))]
        return captions if len(captions) == len(heads) else None


def _kinds_of(value: str) -> frozenset[Kind]:
    return frozenset({Kind.TEXT, *(kind for kind, pattern in _PATTERNS.items() if pattern.search(value))})


def _plain(caption: str) -> str | None:
    """Return a caption in lower case without punctuation; None for a sentence, or less than two letters."""
    words = _WORD.findall(caption.casefold())
    is_caption = words and len(words) <= _MOST_WORDS and _LEAST_LETTERS <= sum(map(len, words)) <= _MOST_LETTERS
    return " ".join(words) if is_caption else None


@dataclass(frozen=True, slots=True)
class CaptionCounts:
    """How many right and wrong values of gold had each caption, by `field: caption`."""

    right: Mapping[str, int] = field(default_factory=dict)
    wrong: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, judged: Iterable[tuple[str | None, bool]]) -> CaptionCounts:
        """Count the captions of values that are right or wrong."""
        counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        for caption, is_right in judged:
            if caption is not None:
                counts[is_right][caption] += 1
        return cls(dict(counts[True]), dict(counts[False]))

    @classmethod
    def sum_of(cls, counts: Iterable[CaptionCounts]) -> CaptionCounts:
        """Return the sum of several counts."""
        right: Counter[str] = Counter()
        wrong: Counter[str] = Counter()
        for each in counts:
            right.update(each.right)
            wrong.update(each.wrong)
        return cls(dict(right), dict(wrong))

    def share(self, caption: str | None) -> float | None:
        """Return the share of right values among those with a caption, drawn to a half; None if there are none."""
        right, wrong = self.right.get(caption or "", 0), self.wrong.get(caption or "", 0)
        return (right + _DRAWN / 2) / (right + wrong + _DRAWN) if right + wrong else None
