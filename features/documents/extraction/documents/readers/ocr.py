"""Pictures of pages into lines of text, each with a box and a score, where the extra [ocr] is installed.

Its models come with it: nothing is loaded from anywhere. They take seconds a page, and are loaded at the first one.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pypdfium2

from features.documents.extraction.documents.canonical import canonical
from features.documents.extraction.documents.readers.pdf_page import PageText

_PIXELS_A_POINT = 200 / 72
_MAX_SIDE_PIXELS = 2000  # what the models look at, at most


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
    """Load the models, if they are installed: once, for all processes that are forked from this one."""
    if is_installed():
        _engine()


def read_picture(page: pypdfium2.PdfPage) -> PageText | None:
    """Return what stands on a page as it is shown, a run for each line; None where there is nothing."""
    width, height = page.get_size()
    scale = min(_PIXELS_A_POINT, _MAX_SIDE_PIXELS / max(width, height))
    found = _engine()(page.render(scale=scale).to_numpy())
    if not found.txts:
        return None
    text = canonical("\n".join(found.txts))
    lengths = np.array([len(line) for line in found.txts], np.int64)
    ends = np.cumsum(lengths + 1) - 1
    corners = np.asarray(found.boxes, np.float32) / np.float32(scale)  # [lines, 4, 2]
    return PageText(
        text=text.text,
        width=width,
        height=height,
        spans=text.offsets[np.stack([ends - lengths, ends], 1)],
        boxes=np.concatenate([corners.min(axis=1), corners.max(axis=1)], 1),
        ocr_scores=np.array(found.scores, np.float32),
    )


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR  # noqa: PLC0415 - it takes seconds, and most documents need none

    threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": 1 for kind in ("intra", "inter")}
    return RapidOCR(params={"Global.log_level": "critical", "Global.text_score": 0.0, **threads})
