"""A prompt's text with covered stretches, mapped to the document's text."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.layout import LayoutText
from features.documents.extraction.grounding.spans import Span

COVER = "\u2588" * 3
"""Looks like a redacted word in text."""

Ints = NDArray[np.int64]


def places_in(shown: LayoutText, span: Span) -> list[Span]:
    """Return the places where a prompt's text shows a span of the document, in the order of the prompt."""
    spans = []
    for begin, origin, length in shown.origins.tolist():
        low, high = max(span.start, origin), min(span.end, origin + length)
        if low < high:
            spans.append(Span(low - origin + begin, high - origin + begin))
    return spans


def covered(shown: LayoutText, spans: Iterable[Span]) -> LayoutText:
    """Return a text with its spans replaced by covers; spans separated only by blanks share one."""
    parts: list[str] = []
    origins: list[Ints] = []
    length = at = 0
    for span in _joined(spans, shown.text):
        parts += [shown.text[at : span.start], COVER]
        origins.append(_between(shown.origins, at, span.start) + np.array([length - at, 0, 0]))
        length += span.start - at + len(COVER)
        at = span.end
    parts.append(shown.text[at:])
    origins.append(_between(shown.origins, at, len(shown.text)) + np.array([length - at, 0, 0]))
    return LayoutText(text="".join(parts), origins=np.concatenate(origins))


def _joined(spans: Iterable[Span], text: str) -> list[Span]:
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and not text[merged[-1].end : span.start].strip(" "):
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def _between(origins: Ints, start: int, end: int) -> Ints:
    """Return the stretches of a text between two offsets, clipped there."""
    inside = origins[(origins[:, 0] < end) & (origins[:, 0] + origins[:, 2] > start)]
    low = np.maximum(inside[:, 0], start)
    high = np.minimum(inside[:, 0] + inside[:, 2], end)
    return np.stack([low, inside[:, 1] + low - inside[:, 0], high - low], 1)
