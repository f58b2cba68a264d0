"""A passage: its span in the document's text, and the headings above it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from features.documents.extraction.grounding.spans import Span

_BETWEEN_HEADINGS = " > "


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """The stretch [start, end) of the text, without blanks at either end."""

    start: int
    end: int
    headings: tuple[str, ...] = ()
    """Outermost first, without headings that are in the passage itself."""
    num_tokens: int
    """Tokens of its text, including its headings if they count."""

    def shown(self, text: str) -> str:
        """Return the passage's text, preceded by a line with its headings."""
        return beginning(self.headings) + text[self.start : self.end]


def beginning(headings: Sequence[str]) -> str:
    """Return the text before a passage with these headings."""
    return f"{_BETWEEN_HEADINGS.join(headings)}\n" if headings else ""


def joined_spans(passages: Iterable[Passage]) -> list[Span]:
    """Return the spans of the text that passages cover, in order; overlapping ones are merged."""
    spans: list[Span] = []
    for one in sorted(passages, key=lambda passage: passage.start):
        if spans and one.start <= spans[-1].end:
            spans[-1] = Span(spans[-1].start, max(spans[-1].end, one.end))
        else:
            spans.append(Span(one.start, one.end))
    return spans
