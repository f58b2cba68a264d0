"""OCR of page pictures: lines of text with boxes and scores, if the extra [ocr] is installed.

The models come with it; nothing is downloaded. They take seconds per page, and are loaded at the first picture.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pypdfium2

from features.documents.extraction.documents.canonical import canonical
from features.documents.extraction.documents.page_text import PageText

_PIXELS_A_POINT = 200 / 72
_MAX_SIDE_PIXELS = 2000  # maximum input of the models


@cache
def _version() -> str | None:
    try:
        return version("rapidocr")
    except PackageNotFoundError:
        return None


PARSER = f"rapidocr {_version()}" if _version() else "without ocr"


def is_installed() -> bool:
    """Tell whether pictures can be read."""
    return _version() is not None


def load() -> None:
    """Load the models, if installed, once for all processes that are forked from this one."""
    if is_installed():
        _engine()


def read_picture(page: pypdfium2.PdfPage) -> PageText | None:
    """Return the text of a page as displayed, a run per line; None if there is none."""
    width, height = page.get_size()
    scale = min(_PIXELS_A_POINT, _MAX_SIDE_PIXELS / max(width, height))
    result = _engine()(page.render(scale=scale).to_numpy())
    if not result.txts:
        return None
    text = canonical("\n".join(result.txts))
    lengths = np.array([len(line) for line in result.txts], np.int64)
    ends = np.cumsum(lengths + 1) - 1
    corners = np.asarray(result.boxes, np.float32) / np.float32(scale)  # [lines, 4, 2]
    return PageText(
        text=text.text,
        width=width,
        height=height,
        spans=text.offsets[np.stack([ends - lengths, ends], 1)],
        boxes=np.concatenate([corners.min(axis=1), corners.max(axis=1)], 1),
        ocr_scores=np.array(result.scores, np.float32),
    )


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR  # noqa: PLC0415 - it takes seconds, and most documents do not need it

    threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
    return RapidOCR(params={"Global.log_level": "critical", "Global.text_score": 0.0, **threads})
