"""A passage: where it stands in its document's text, and under which headings. Knows no tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from features.documents.extraction.grounding.spans import Span

_BETWEEN_HEADINGS = " > "


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """[start, end) of the text; it begins and ends with no blank."""

    start: int
    end: int
    headings: tuple[str, ...] = ()
    """The outermost first, those alone that do not stand in the passage itself."""
    num_tokens: int
    """Of its text, with its headings before it where they count."""

    def shown(self, text: str) -> str:
        """Return the passage of the document's text, with its headings in a line before it."""
        return beginning(self.headings) + text[self.start : self.end]


def beginning(headings: Sequence[str]) -> str:
    """Return what stands before a passage under these headings."""
    return f"{_BETWEEN_HEADINGS.join(headings)}\n" if headings else ""


def joined_spans(passages: Iterable[Passage]) -> list[Span]:
    """Return the stretches of the text that passages cover, in its order; those that overlap are one."""
    found: list[Span] = []
    for one in sorted(passages, key=lambda passage: passage.start):
        if found and one.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(Span(one.start, one.end))
    return found
