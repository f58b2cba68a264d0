"""The text of one page with the boxes of its words or lines, before pages are joined into a document."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

_COVERED = 0.5  # of a line's box


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """The text of one page, with offsets from its start; boxes in points from the top left of the displayed page."""

    text: str
    width: float  # 0 if unknown
    height: float
    spans: NDArray[np.int64]  # [words, 2], offsets in this page's canonical text
    boxes: NDArray[np.float32]  # [words, 4]
    ocr_scores: NDArray[np.float32]  # [words], NaN if none
    turn: int = 0  # quarter turns to the left that the text has on the displayed page
    skew: float = 0.0  # radians in which its lines descend, once the page is turned upright
    against: NDArray[np.bool_] | None = None  # [words]: those that run against most of the text; None: no word does
    cells: tuple[tuple[int, int, int, int, int], ...] = ()  # start, end, table, row, column

    @classmethod
    def empty(cls) -> Self:
        """Return a page without text, of unknown size."""
        return cls(
            text="",
            width=0.0,
            height=0.0,
            spans=np.zeros((0, 2), np.int64),
            boxes=np.zeros((0, 4), np.float32),
            ocr_scores=np.zeros(0, np.float32),
        )


def with_lines(page: PageText, read: PageText) -> PageText:
    """Return a page with lines that OCR has read in its picture, except those that show the page's own words."""
    kept = ~_show_words(read.boxes, page.boxes)
    lines = [read.text[start:end] for start, end in read.spans[kept].tolist()]
    own = f"{page.text.rstrip()}\n" if page.text.strip() else ""
    lengths = np.array([len(line) for line in lines], np.int64)
    ends = len(own) + np.cumsum(lengths + 1) - 1
    return replace(
        page,
        turn=read.turn,
        skew=read.skew,
        against=_against(page, read, len(lines)),
        text=own + "\n".join(lines),
        spans=np.concatenate([page.spans, np.stack([ends - lengths, ends], 1)]),
        boxes=np.concatenate([page.boxes, read.boxes[kept]]),
        ocr_scores=np.concatenate([page.ocr_scores, read.ocr_scores[kept]]),
    )


def _against(page: PageText, read: PageText, num_lines: int) -> NDArray[np.bool_]:
    """Return which words of a page run against the lines in its picture; no line does."""
    own = np.zeros(len(page.spans), np.bool_) if page.against is None else page.against
    is_turned = (page.turn - read.turn) % 4 == 2
    return np.append(own ^ is_turned, np.zeros(num_lines, np.bool_))


def _show_words(lines: NDArray[np.float32], words: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tell for each box of a line whether words cover half of it."""
    low = np.maximum(lines[:, None, :2], words[None, :, :2])
    high = np.minimum(lines[:, None, 2:], words[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2).sum(axis=1)
    covered: NDArray[np.bool_] = shared > _COVERED * (lines[:, 2:] - lines[:, :2]).prod(axis=1)
    return covered
