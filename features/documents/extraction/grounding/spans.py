"""Spans of a text, and how reliably a quote was located in them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a quote was found."""

    EXACT = "exact"
    NORMALISED = "normalised"  # except case, whitespace, quotes, ligatures, hyphens at line ends, digit separators
    FUZZY = "fuzzy"  # except punctuation or a few characters
    NONE = "none"


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The stretch [start, end) of a text."""

    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        """Tell whether two spans share a character."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounding:
    """The place of a quote or value; `likeness` is 1 for exact and normalised matches, 0 without a match."""

    status: Status = Status.NONE
    spans: tuple[Span, ...] = ()
    likeness: float = 0.0
    quote_stands: bool | None = None
    """Whether the words that a model quoted for a value are in the text; None without a quote."""
    label_stands: bool | None = None
    """Whether the words of a value's field stand beside it; None where the text has them nowhere."""


NOWHERE = Grounding()
