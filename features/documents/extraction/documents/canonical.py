"""The canonical text of a document: NFC, "\\n" for every line end, no soft hyphens.

Maps offsets of the raw text to the canonical one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Offsets = NDArray[np.int64]

_NUL, _LINE_FEED, _RETURN, _SOFT_HYPHEN, _REPLACEMENT = 0x00, 0x0A, 0x0D, 0xAD, 0xFFFD
_JAMO = ("\u1160", "\u11ff")  # Hangul vowels and finals: they join the preceding character without being marks


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """A text and, for each offset of the raw text and its end, the offset here."""

    text: str
    offsets: Offsets


def canonical(raw: str) -> Canonical:
    """Return the canonical form; offsets of dropped characters (soft hyphens, NUL) lead to what follows them."""
    points = np.frombuffer(raw.encode("utf-32-le", "surrogatepass"), np.uint32)
    is_return = points == _RETURN
    followed = np.append(points[1:] == _LINE_FEED, False)[: len(points)]
    kept = ~((is_return & followed) | (points == _SOFT_HYPHEN) | (points == _NUL))
    points = np.where(is_return, _LINE_FEED, points)
    points = np.where((points >= 0xD800) & (points < 0xE000), _REPLACEMENT, points)  # halves of surrogate pairs
    text = points[kept].astype("<u4").tobytes().decode("utf-32-le")
    offsets = np.concatenate([[0], np.cumsum(kept, dtype=np.int64)])
    if unicodedata.is_normalized("NFC", text):
        return Canonical(text=text, offsets=offsets)
    composed = _composed(text)
    return Canonical(text=composed.text, offsets=composed.offsets[offsets])


def _composed(text: str) -> Canonical:
    """Return the NFC form with offsets: a character that was combined with another leads to that one."""
    parts: list[str] = []
    offsets = np.empty(len(text) + 1, np.int64)
    end = 0
    for start, stop in _clusters(text):
        part = unicodedata.normalize("NFC", text[start:stop])
        inside = np.arange(stop - start)
        offsets[start:stop] = end + (inside if part == text[start:stop] else np.minimum(inside, len(part) - 1))
        parts.append(part)
        end += len(part)
    offsets[len(text)] = end
    return Canonical(text="".join(parts), offsets=offsets)


def _clusters(text: str) -> Iterator[tuple[int, int]]:
    """Yield the stretches that composition never crosses: a character with its marks."""
    start = 0
    for index in range(1, len(text)):
        if not _joins(text[index]):
            yield start, index
            start = index
    if text:
        yield start, len(text)


def _joins(character: str) -> bool:
    if character < "\u0300":
        return False
    return unicodedata.category(character)[0] == "M" or _JAMO[0] <= character <= _JAMO[1]
