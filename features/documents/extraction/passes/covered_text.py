"""A prompt's text with stretches of it covered, and the way from it to the document's text. Knows no value."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.documents.layout import LayoutText
from features.documents.extraction.grounding.spans import Span

COVER = "\u2588" * 3
"""As what is inked over is printed in texts."""

Ints = NDArray[np.int64]


def places_in(shown: LayoutText, span: Span) -> list[Span]:
    """Return where a prompt's text shows a span of the document's, in its own order."""
    found = []
    for begin, origin, length in shown.origins.tolist():
        low, high = max(span.start, origin), min(span.end, origin + length)
        if low < high:
            found.append(Span(low - origin + begin, high - origin + begin))
    return found


def covered(shown: LayoutText, spans: Iterable[Span]) -> LayoutText:
    """Return a text with a cover in place of each of its spans, one for those between which only blanks stand."""
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
    found: list[Span] = []
    for span in sorted(spans):
        if found and not text[found[-1].end : span.start].strip(" "):
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found


def _between(origins: Ints, start: int, end: int) -> Ints:
    """Return the stretches of a text that lie between two of its offsets, cut there."""
    inside = origins[(origins[:, 0] < end) & (origins[:, 0] + origins[:, 2] > start)]
    low = np.maximum(inside[:, 0], start)
    high = np.minimum(inside[:, 0] + inside[:, 2], end)
    return np.stack([low, inside[:, 1] + low - inside[:, 0], high - low], 1)
