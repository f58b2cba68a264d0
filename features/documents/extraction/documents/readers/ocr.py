"""OCR of pictures: lines of text with boxes and scores, if the extra [ocr] is installed.

The models come with it; nothing is downloaded, and nothing sent. They take seconds per picture, and are loaded once, in
the process that forks readers.
"""

from __future__ import annotations

import math
import os
import re
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.canonical import canonical
from features.documents.extraction.documents.page_text import PageText
from features.documents.extraction.documents.reading_order.upright import upright

MAX_SIDE_PIXELS = 4000
"""Of a picture: lines are found in half of it, and read in all."""
_SIDE_OF_DETECTION = 2000
_NARROW, _LEAST_SIDE = 4, 64
"""A side this many times shorter than the other, or of fewer pixels, is made longer, by white."""
_MOST_RATIO = 150.0
"""What is longer, by its height, is no line of text."""
_TALL = 1.5
"""A box this many times as high as wide is a line that runs upward or downward."""
_LONG = 4.0
"""Lines this many times as long as high tell how skewed their picture is."""
_NUM_SAMPLES = 5
"""Lines that are read in both directions, for that of all."""
_LEAST_SKEW = math.radians(0.2)
_NO_TELEMETRY = "ORT_DISABLE_TELEMETRY"
"""The runtime of the models sends events to Microsoft from a thread of its own, unless this is set at its import."""
_NO_MEMORY = re.compile("alloc|insufficient memory", re.IGNORECASE)
"""In the errors of the models' runtime and of OpenCV."""

Pixels = NDArray[np.uint8]
Corners = NDArray[np.float32]


@cache
def _version() -> str | None:
    try:
        return version("rapidocr")
    except PackageNotFoundError:
        return None


PARSER = f"ocr 2 rapidocr {_version()}" if _version() else "without ocr"


def is_installed() -> bool:
    """Tell whether pictures can be read."""
    return _version() is not None


def load() -> None:
    """Load the models, if installed, once for all processes that are forked from this one."""
    if is_installed():
        white = np.full((64, 64, 3), 255, np.uint8)
        _detected(white)
        _recognised(white)


def read_picture(pixels: Pixels, *, points_per_pixel: float) -> PageText | None:
    """Return the text of a picture `[rows, columns, blue green red]`, a run per line; None if there is none."""
    corners = _detected(pixels)
    if turn := _turn(pixels, corners) if len(corners) else 0:
        pixels = np.ascontiguousarray(np.rot90(pixels, -turn))
        corners = _detected(pixels)  # once more: short lines are found where they run from left to right
    lines = [(*_line(pixels, each), each) for each in corners]
    lines = [line for line in lines if line[0].strip()]
    if not lines:
        return None
    texts, scores, kept = zip(*lines, strict=True)
    text = canonical("\n".join(texts))
    lengths = np.array(list(map(len, texts)), np.int64)
    ends = np.cumsum(lengths + 1) - 1
    places = np.stack(kept) * np.float32(points_per_pixel)
    boxes = np.concatenate([places.min(axis=1), places.max(axis=1)], 1)
    height, width = (side * points_per_pixel for side in pixels.shape[:2])
    return PageText(
        text=text.text,
        width=height if turn % 2 else width,
        height=width if turn % 2 else height,
        spans=text.offsets[np.stack([ends - lengths, ends], 1)],
        boxes=upright(boxes, turn=-turn, width=width, height=height),
        ocr_scores=np.array(scores, np.float32),
        turn=turn,
        skew=_skew(places),
    )


def _turn(pixels: Pixels, corners: Corners) -> int:
    """Return the quarter turns to the left that most lines have: of the two directions, that which is read better."""
    widths, heights = _sizes(corners)
    is_tall = heights > _TALL * widths
    is_turned = bool((widths * heights)[is_tall].sum() > (widths * heights)[~is_tall].sum())
    like_most = np.flatnonzero(is_tall == is_turned)
    samples = like_most[np.argsort(-(widths * heights)[like_most], kind="stable")][:_NUM_SAMPLES]
    turns = (1, 3) if is_turned else (0, 2)
    return max(turns, key=lambda turn: sum(_recognised(_cut(pixels, corners[each], turn))[1] for each in samples))


def _line(pixels: Pixels, corners: Corners) -> tuple[str, float]:
    """Return the text of a line of an upright picture, and its score.

    What is higher than wide may run upward or downward, or be a narrow digit.
    """
    (width,), (height,) = _sizes(corners[None])
    turns = (0, 1, 3) if height > _TALL * width else (0,)
    return max((_recognised(_cut(pixels, corners, each)) for each in turns), key=lambda line: line[1])


def _sizes(corners: Corners) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return widths and heights of quadrilaterals `[lines, 4, 2]`, clockwise from the top left."""
    sides = np.linalg.norm(corners - np.roll(corners, -1, axis=1), axis=2)
    return np.maximum(sides[:, 0], sides[:, 2]), np.maximum(sides[:, 1], sides[:, 3])


def _skew(corners: Corners) -> float:
    """Return the angle in which lines of an upright picture descend, in radians: the median of long ones."""
    widths, heights = _sizes(corners)
    if not (is_long := widths > _LONG * heights).any():
        return 0.0
    across, down = (corners[is_long, 1] - corners[is_long, 0]).T
    skew = float(np.median(np.arctan2(down, across)))
    return skew if abs(skew) > _LEAST_SKEW else 0.0


def _cut(pixels: Pixels, corners: Corners, turn: int) -> Pixels:
    """Return a quadrilateral as an upright picture."""
    import cv2  # noqa: PLC0415 - installed with the models

    (width,), (height,) = np.maximum(np.rint(_sizes(corners[None])), 1).astype(int).tolist()
    straight = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float32)
    matrix = cv2.getPerspectiveTransform(corners, straight)
    cut = cv2.warpPerspective(pixels, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return np.ascontiguousarray(np.rot90(cut, -turn % 4))


def _detected(pixels: Pixels) -> Corners:
    """Return the corners of lines `[lines, 4, 2]` in pixels, clockwise from the top left."""
    import cv2  # noqa: PLC0415 - installed with the models

    rows, columns = pixels.shape[:2]
    scale = min(1.0, _SIDE_OF_DETECTION / max(rows, columns))
    size = max(round(columns * scale), 1), max(round(rows * scale), 1)
    boxes = _run(_widened(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)), use_det=True).boxes
    if boxes is None:
        return np.zeros((0, 4, 2), np.float32)
    corners = np.asarray(boxes, np.float32).reshape(-1, 4, 2) * np.array(
        [columns / size[0], rows / size[1]], np.float32
    )
    return np.minimum(corners, np.array([columns, rows], np.float32))


def _widened(pixels: Pixels) -> Pixels:
    """Return a picture with white beside it if it is narrow: the model would scale its shorter side up."""
    rows, columns = pixels.shape[:2]
    least = max(max(rows, columns) // _NARROW, _LEAST_SIDE)
    if min(rows, columns) >= least:
        return pixels
    widened = np.full((max(rows, least), max(columns, least), 3), 255, np.uint8)
    widened[:rows, :columns] = pixels
    return widened


def _recognised(pixels: Pixels) -> tuple[str, float]:
    """Return the text of an upright line, and its score."""
    height, width = pixels.shape[:2]
    if width > _MOST_RATIO * height:
        return "", 0.0
    line = _run(pixels, use_rec=True)
    return (line.txts[0], float(line.scores[0])) if line.txts else ("", 0.0)


def _run(pixels: Pixels, *, use_det: bool = False, use_rec: bool = False) -> Any:
    """Return the result of one model. Raises MemoryError."""
    try:  # without the model of directions: with it a straight page had 21 % errors, without it none
        return _engine()(pixels, use_det=use_det, use_cls=False, use_rec=use_rec)
    except Exception as error:
        if _NO_MEMORY.search(str(error)):
            raise MemoryError from error
        raise


@cache
def _engine() -> Any:
    os.environ[_NO_TELEMETRY] = "1"
    import cv2  # noqa: PLC0415 - this and the next take seconds, and most documents do not need them
    from rapidocr import RapidOCR  # noqa: PLC0415

    cv2.setNumThreads(1)  # a fork has no threads of its parent's
    threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
    options = {"Global.log_level": "critical", "Global.text_score": 0.0, "Global.use_preprocess_img": False}
    return RapidOCR(params={**options, **threads})
