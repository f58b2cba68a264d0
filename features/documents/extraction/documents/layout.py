"""The text that a prompt shows: words that are side by side on a page are side by side in a line, padded with blanks.

Pages without columns, and formats without pages, are shown as plain text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.runs import Runs

_BETWEEN_PAGES = "\n\n"
_MAX_BLANKS = 4
_COLUMN_GAP = 3.0  # character widths: a wider gap between two words is no space of a line of prose
_MIN_GAPS = 2  # of a page with columns
_SAME_LINE = 0.5  # of the words' median height

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutText:
    """A text for a prompt, mapped to the stretches of the document's text that it consists of."""

    text: str
    origins: Ints  # [stretches, 3]: start here, start in the document, length; in text order
    own_text: str | None = None
    """The text with blanks for parts not from a document, such as names of passages; None: no such parts."""

    def to_document(self, start: int, end: int) -> tuple[int, int]:
        """Return the smallest span of the document's text that holds all of [start, end) of this text."""
        pieces = self.pieces(start, end)
        if not pieces:  # only blanks
            return (self._after(start),) * 2
        return min(piece[0] for piece in pieces), max(piece[1] for piece in pieces)

    def pieces(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the spans of the document's text shown by [start, end), in the order shown."""
        here = self.origins[:, 0]
        first = max(int(np.searchsorted(here, start, side="right")) - 1, 0)
        last = int(np.searchsorted(here, end, side="left"))
        spans: list[tuple[int, int]] = []
        for begin, origin, length in self.origins[first:last].tolist():
            low, high = max(start, begin) - begin + origin, min(end, begin + length) - begin + origin
            if low >= high:
                continue
            if spans and 0 <= low - spans[-1][1] <= 2:  # no word fits between them
                low = spans.pop()[0]
            spans.append((low, high))
        return spans

    def _after(self, offset: int) -> int:
        index = min(int(np.searchsorted(self.origins[:, 0], offset)), len(self.origins) - 1)
        return int(self.origins[index, 1]) if len(self.origins) else 0


def layout(document: Document) -> LayoutText:
    """Return a document's text in layout."""
    bounds = np.searchsorted(document.runs.pages, np.arange(len(document.pages) + 1))
    parts: list[str] = []
    origins: list[Ints] = []
    length = 0
    for number, page in enumerate(document.pages):
        page_text = _page(document, page, document.runs[int(bounds[number]) : int(bounds[number + 1])])
        origins.append(page_text.origins + np.array([length, 0, 0]))
        parts.append(page_text.text)
        length += len(page_text.text) + len(_BETWEEN_PAGES)
    return LayoutText(text=_BETWEEN_PAGES.join(parts), origins=np.concatenate(origins))


def _page(document: Document, page: Page, runs: Runs) -> LayoutText:
    whole = np.array([[0, page.start, page.end - page.start]], np.int64)
    placed = np.isfinite(runs.boxes).all(axis=1)
    if not len(runs) or not placed.all():
        return LayoutText(text=document.text[page.start : page.end], origins=whole)
    x0, y0, x1, y1 = runs.boxes.T
    lengths = np.maximum(runs.spans[:, 1] - runs.spans[:, 0], 1)
    character = max(float(np.median((x1 - x0) / lengths)), 0.1)
    order, is_first = _reading_order(x0, (y0 + y1) / 2, height=float(np.median(y1 - y0)))
    gaps = (x0[order] - np.concatenate([[x0[order[0]]], x1[order[:-1]]])) / character
    if np.count_nonzero((gaps > _COLUMN_GAP) & ~is_first) < _MIN_GAPS:
        return LayoutText(text=document.text[page.start : page.end], origins=whole)
    indents = np.where(is_first, (x0[order] - x0.min()) / character, gaps)
    blanks = np.clip(np.rint(indents), ~is_first, _MAX_BLANKS).astype(np.int64)
    return _set(document.text, runs.spans[order], blanks, is_first)


def _reading_order(
    x0: NDArray[np.float32], middle: NDArray[np.float32], *, height: float
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the words line by line from the left, and which of them begin a line."""
    by_height = np.argsort(middle, kind="stable")
    steps = np.diff(middle[by_height], prepend=middle[by_height[0]])
    line = np.empty(len(middle), np.int64)
    line[by_height] = np.cumsum(steps > _SAME_LINE * height)
    order = np.lexsort((x0, line))
    return order, np.diff(line[order], prepend=-1) > 0


def _set(text: str, spans: Ints, blanks: Ints, is_first: NDArray[np.bool_]) -> LayoutText:
    """Join words with their blanks; a word that begins a line is preceded by a line end."""
    parts: list[str] = []
    before = ["\n" + " " * count for count in range(_MAX_BLANKS + 1)], [" " * count for count in range(_MAX_BLANKS + 1)]
    for (start, end), count, begins in zip(spans.tolist(), blanks.tolist(), is_first.tolist(), strict=True):
        parts.append(before[0 if begins else 1][count])
        parts.append(text[start:end])
    lengths = spans[:, 1] - spans[:, 0]
    ends = np.cumsum(blanks + is_first + lengths) - 1  # the first line end is left out
    return LayoutText(text="".join(parts)[1:], origins=np.stack([ends - lengths, spans[:, 0], lengths], 1))
