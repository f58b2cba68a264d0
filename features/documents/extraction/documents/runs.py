"""Positions of stretches of text on pages, stored as columns, since a document has millions of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """In points from the top left of the displayed page."""

    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A word or line on one page: [start, end) of the document's text; `page` counts from 0."""

    start: int
    end: int
    page: int
    box: Box | None
    ocr_score: float | None = None


class Runs(Sequence[Run]):
    """Runs in text order. NaN in boxes and scores means none."""

    __slots__ = ("boxes", "ocr_scores", "pages", "spans")

    def __init__(
        self,
        spans: NDArray[np.int64],
        pages: NDArray[np.int32],
        *,
        boxes: NDArray[np.float32],
        ocr_scores: NDArray[np.float32],
    ) -> None:
        self.spans = spans  # [runs, 2]: start and end
        self.pages = pages  # [runs]
        self.boxes = boxes  # [runs, 4]: x0 y0 x1 y1
        self.ocr_scores = ocr_scores  # [runs]

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Runs:
        """Build columns from values."""
        rows = list(runs)
        nan = float("nan")
        boxes = [(r.box.x0, r.box.y0, r.box.x1, r.box.y1) if r.box else (nan,) * 4 for r in rows]
        scores = [nan if r.ocr_score is None else r.ocr_score for r in rows]
        return cls(
            np.array([(r.start, r.end) for r in rows], np.int64).reshape(-1, 2),
            np.array([r.page for r in rows], np.int32),
            boxes=np.array(boxes, np.float32).reshape(-1, 4),
            ocr_scores=np.array(scores, np.float32),
        )

    @classmethod
    def joined(cls, parts: Sequence[Runs]) -> Runs:
        """Join the runs of several pages."""
        if not parts:
            return cls.of(())
        return cls(
            np.concatenate([part.spans for part in parts]),
            np.concatenate([part.pages for part in parts]),
            boxes=np.concatenate([part.boxes for part in parts]),
            ocr_scores=np.concatenate([part.ocr_scores for part in parts]),
        )

    def to_bytes(self) -> bytes:
        """Return the columns one after another; offsets as differences, which compress well."""
        steps = np.diff(self.spans.ravel(), prepend=0)
        columns = (steps[::2], steps[1::2], self.pages, *self.boxes.T, self.ocr_scores)
        return b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns)

    @classmethod
    def from_bytes(cls, stored: bytes, count: int) -> Runs:
        """Read `count` runs from the output of `to_bytes`."""
        longs = np.frombuffer(stored, "<i8", 2 * count).reshape(2, count)
        pages = np.frombuffer(stored, "<i4", count, 16 * count)
        floats = np.frombuffer(stored, "<f4", 5 * count, 20 * count).reshape(5, count)
        return cls(
            np.cumsum(longs.T.ravel()).reshape(count, 2),
            pages.astype(np.int32),
            boxes=np.ascontiguousarray(floats[:4].T, np.float32),
            ocr_scores=floats[4].astype(np.float32),
        )

    def touching(self, start: int, end: int) -> Runs:
        """Return the runs that share a character with [start, end)."""
        first = int(np.searchsorted(self.spans[:, 1], start, side="right"))
        last = int(np.searchsorted(self.spans[:, 0], end, side="left"))
        return self[first:last] if start < end else self[:0]

    def __len__(self) -> int:
        return len(self.spans)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Run | Runs:
        if isinstance(index, slice):
            scores = self.ocr_scores[index]
            return Runs(self.spans[index], self.pages[index], boxes=self.boxes[index], ocr_scores=scores)
        start, end = self.spans[index].tolist()
        x0, y0, x1, y1 = self.boxes[index].tolist()
        score = float(self.ocr_scores[index])
        return Run(
            start=start,
            end=end,
            page=int(self.pages[index]),
            box=None if math.isnan(x0) else Box(x0=x0, y0=y0, x1=x1, y1=y1),
            ocr_score=None if math.isnan(score) else score,
        )

    def __iter__(self) -> Iterator[Run]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and all(
            mine.tobytes() == theirs.tobytes()
            for mine, theirs in (
                (self.spans, other.spans),
                (self.pages, other.pages),
                (self.boxes, other.boxes),
                (self.ocr_scores, other.ocr_scores),
            )
        )

    def __hash__(self) -> int:
        return hash((self.spans.tobytes(), self.pages.tobytes()))

    def __repr__(self) -> str:
        return f"Runs({len(self)})"
