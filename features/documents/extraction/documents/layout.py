"""The text that a prompt shows: the document's own, in its order, with blanks as wide as the gaps on the page.

Pages without gaps, and formats without pages, are shown as plain text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.document import Document, Page
from features.documents.extraction.documents.runs import Runs

_BETWEEN_PAGES = "\n\n"
_MAX_BLANKS = 4
_CELL_BLANKS = 2  # at least, between the cells of a row
_COLUMN_GAP = 3.0  # character widths: a wider gap between two words is no space of a line of prose
_MIN_GAPS = 2  # of a page that is shown with its gaps
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
    whole = LayoutText(
        text=document.text[page.start : page.end],
        origins=np.array([[0, page.start, page.end - page.start]], np.int64),
    )
    if len(runs) < 2 or not np.isfinite(runs.boxes).all():
        return whole
    x0, y0, x1, y1 = runs.boxes.T
    lengths = np.maximum(runs.spans[:, 1] - runs.spans[:, 0], 1)
    character = max(float(np.median((x1 - x0) / lengths)), 0.1)
    gaps = (x0[1:] - x1[:-1]) / character
    is_beside = np.abs(np.diff(y0 + y1)) / 2 < _SAME_LINE * float(np.median(y1 - y0))
    is_wide = is_beside & (gaps > _COLUMN_GAP)
    if np.count_nonzero(is_wide) < _MIN_GAPS:
        return whole
    blanks = np.where(is_beside, np.clip(np.rint(gaps), 1, _MAX_BLANKS), 1).astype(np.int64)
    line_of = np.cumsum(np.concatenate([[0], ~is_beside]))
    is_spread = np.isin(line_of, line_of[1:][is_wide])
    indents = np.clip(np.rint((x0 - x0[is_spread].min()) / character), 0, _MAX_BLANKS) * is_spread
    return _spread(document.text, page, runs.spans.tolist(), blanks.tolist(), indents.astype(np.int64).tolist())


def _spread(text: str, page: Page, spans: list[list[int]], blanks: list[int], indents: list[int]) -> LayoutText:
    """Write the words of a page with blanks by their gaps; signs between words stay."""
    parts, origins = [" " * indents[0]], list[tuple[int, int, int]]()
    length, end = indents[0], page.start
    for number, (start, stop) in enumerate([*spans, [page.end, page.end]]):
        between = text[end:start]
        if 0 < number < len(spans) and between.isspace():
            parts.append(_separator(between, blanks[number - 1], indents[number]))
            length, end = length + len(parts[-1]), start
        parts.append(text[end:stop])
        origins.append((length, end, stop - end))
        length, end = length + stop - end, stop
    return LayoutText(text="".join(parts), origins=np.array(origins, np.int64))


def _separator(between: str, blanks: int, indent: int) -> str:
    """Return what a prompt shows in place of blanks between two words."""
    if "\n" in between:
        return "\n" * between.count("\n") + " " * indent
    return " " * max(blanks, _CELL_BLANKS) if "\t" in between else " " * blanks
