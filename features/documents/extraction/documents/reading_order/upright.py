"""Turns boxes so that text runs from left to right, and finds words that run in another direction than the others."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float32]

_TALL = 2.5
"""A word this many times as high as letters, and higher than wide, runs upward or downward."""


def upright(boxes: Boxes, *, turn: int, width: float, height: float) -> Boxes:
    """Return boxes of a page as after turning it to the right by quarter turns."""
    for _ in range(turn % 4):
        x0, y0, x1, y1 = boxes.T
        boxes = np.stack([height - y1, x0, height - y0, x1], 1)
        width, height = height, width
    return boxes


def straight(boxes: Boxes, skew: float) -> Boxes:
    """Return the boxes that words of an upright page have if their lines no longer descend by an angle in radians.

    A box `[w, h]` turned by it has one of `[w cos + h sin, w sin + h cos]` around it.
    """
    if not skew:
        return boxes
    x0, y0, x1, y1 = boxes.T
    cos, sin, size = math.cos(skew), math.sin(skew), math.cos(2 * skew)
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    x, y = x * cos + y * sin, y * cos - x * sin
    widths, heights = x1 - x0, y1 - y0
    half_width = np.maximum(widths * cos - heights * abs(sin), 0) / size / 2
    half_height = np.maximum(heights * cos - widths * abs(sin), 0) / size / 2
    return np.stack([x - half_width, y - half_height, x + half_width, y + half_height], 1)


def quarter_turn(across: float, down: float) -> int:
    """Return the quarter turns to the left of text that advances by these sums of steps on the displayed page."""
    if abs(across) >= abs(down):
        return 0 if across >= 0 else 2
    return 1 if down < 0 else 3


def run_against(steps: Boxes, turn: int) -> NDArray[np.bool_]:
    """Tell for each word, by its steps `[words, 2]` to the right and downward, whether it goes against such a turn."""
    sign = 1 if turn % 4 in (0, 3) else -1
    against: NDArray[np.bool_] = sign * steps[:, turn % 2] < 0
    return against


def runs_across(boxes: Boxes) -> NDArray[np.bool_]:
    """Tell for each word of an upright page whether it runs across it."""
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    letter = float(np.median(np.minimum(widths, heights)))
    across: NDArray[np.bool_] = (heights <= _TALL * letter) | (heights <= widths)
    return across
