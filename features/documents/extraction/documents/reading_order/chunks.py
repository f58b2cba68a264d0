"""Chunks of words: parts of lines without a wide gap. Columns and cells consist of whole chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

_SAME_BASELINE = 0.15
"""Of the words' median height: middles of words in one line differ by less."""
_GAP = 0.6
"""Of the median height: wider gaps end a chunk. The gutters of columns are wider, most blanks narrower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Chunks in order of lines, from the left."""

    boxes: Floats  # [chunks, 4]: x0 y0 x1 y1
    lines: Ints  # [chunks]: equal for chunks of the same height on the page
    num_characters: Ints  # [chunks]
    num_words: Ints  # [chunks]
    words: Ints  # [words]: all words, chunk by chunk
    starts: Ints  # [chunks + 1]: the first word of each chunk
    height: float  # of most words

    def words_of(self, chunks: Ints) -> Ints:
        """Return the words of some chunks."""
        is_inside = np.zeros(len(self.boxes), np.bool_)
        is_inside[chunks] = True
        return self.words[np.repeat(is_inside, np.diff(self.starts))]


def chunks_of(boxes: Floats, num_characters: Ints, num_words: Ints) -> Chunks:
    """Join words `[words, 4]` that are side by side."""
    height = max(float(np.median(boxes[:, 3] - boxes[:, 1])), 0.1)
    lines = lines_of(boxes, _SAME_BASELINE * height)
    order = np.lexsort((boxes[:, 0], lines))
    boxes, lines = boxes[order], lines[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (np.diff(lines) > 0) | (boxes[1:, 0] - boxes[:-1, 2] > _GAP * height)
    first = np.flatnonzero(is_first)
    ends = [*(first[1:] - 1), len(order) - 1]
    return Chunks(
        boxes=np.stack(
            [
                boxes[first, 0],
                np.minimum.reduceat(boxes[:, 1], first),
                np.maximum(boxes[ends, 2], boxes[first, 2]),
                np.maximum.reduceat(boxes[:, 3], first),
            ],
            1,
        ),
        lines=lines[first],
        num_characters=np.add.reduceat(num_characters[order], first),
        num_words=np.add.reduceat(num_words[order], first),
        words=order,
        starts=np.append(first, len(order)),
        height=height,
    )


def lines_of(boxes: Floats, step: float) -> Ints:
    """Number boxes by lines from the top: the middles of two successive lines differ by more than `step`."""
    middles = (boxes[:, 1] + boxes[:, 3]) / 2
    by_height = np.argsort(middles, kind="stable")
    lines = np.empty(len(middles), np.int64)
    lines[by_height] = np.cumsum(np.diff(middles[by_height], prepend=middles[by_height[0]]) > step)
    return lines
