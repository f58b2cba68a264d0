"""A stretch of a text, and how sure it is that a quote stands there.

Knows no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a quote was found."""

    EXACT = "exact"
    NORMALISED = "normalised"  # but for case, blanks, quotes, ligatures, hyphens at line ends, separators of digits
    FUZZY = "fuzzy"  # but for punctuation or a few characters
    NONE = "none"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """[start, end) of a text."""

    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        """Tell whether two spans share a character."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounding:
    """Where a quote stands; `likeness` is 1 for what was found exactly or normalised, 0 for what was not."""

    status: Status = Status.NONE
    spans: tuple[Span, ...] = ()
    likeness: float = 0.0


NOWHERE = Grounding()
