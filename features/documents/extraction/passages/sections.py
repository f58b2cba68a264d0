"""Sections of a text by its headings, each with the headings above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from features.documents.extraction.documents.document import Heading
from features.documents.extraction.grounding.spans import Span

_HEADING_SIGNS = "# \t"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and the text up to the next heading of any level."""

    heading: Span
    """Empty before the first heading."""
    body: Span
    outer: tuple[str, ...] = ()
    """The headings above it, outermost first."""
    title: str = ""
    """Its own heading, on one line."""


def sections(text: str, headings: Sequence[Heading]) -> Iterator[Section]:
    """Yield all sections of a text, in order."""
    before = [0, *(heading.end for heading in headings)]
    starts = [_start(text, heading, after=end) for heading, end in zip(headings, before, strict=False)]
    ends = [*starts[1:], len(text)] if headings else []
    first = starts[0] if headings else len(text)
    if first > 0:
        yield Section(heading=Span(0, 0), body=Span(0, first))
    above: list[Heading] = []
    for heading, start, end in zip(headings, starts, ends, strict=True):
        above = [one for one in above if one.level < heading.level]
        outer = tuple(title for one in above if (title := _title(text, one)))
        own = Span(start, heading.end)
        yield Section(heading=own, body=Span(own.end, end), outer=outer, title=_title(text, heading))
        above.append(heading)


def _start(text: str, heading: Heading, *, after: int) -> int:
    """Return the start of a heading including its Markdown signs, which must not become passages of their own."""
    start = text.rfind("\n", 0, heading.start) + 1
    is_marked = start >= after and not text[start : heading.start].strip(_HEADING_SIGNS)
    return start if is_marked else heading.start


def _title(text: str, heading: Heading) -> str:
    return " ".join(text[heading.start : heading.end].split())
