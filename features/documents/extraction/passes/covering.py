"""Asks the same question again with every found value covered, to find contradictions.

If a document states a field twice with different values, the second value becomes visible, whatever words precede it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from features.documents.extraction.documents.layout import LayoutText
from features.documents.extraction.fields.paths import ITEM, Place
from features.documents.extraction.fields.values import is_same_for
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.covered_text import COVER, covered, places_in
from features.documents.extraction.passes.document_reading import GroupReading
from features.documents.extraction.passes.findings import Finding, ValueLogprobs
from features.documents.extraction.passes.merging import Merged

_CHARACTERS = 48
"""Limit for a text or quote in the covered question: with nothing to find a model may run on in the first one until its
answer is cut, which loses all other fields. Of 600 synthetic documents 217 were cut without it (2026-11-23)."""


class Covered(StrEnum):
    """The answer for a field whose value is covered."""

    NOTHING = "nothing"
    SAME = "same"  # it also occurs at another place, or was not covered
    OTHER = "other"  # another value that occurs in the document
    NOWHERE = "nowhere"  # another value that does not


@dataclass(frozen=True, slots=True, kw_only=True)
class CoveredReading:
    """The answer for one field whose value was covered."""

    said: Covered
    value: Any = None
    span: Span | None = None
    """Of another value, in the document's text."""
    logprobs: ValueLogprobs | None = None


def cover(shown: LayoutText, merged: Iterable[Merged]) -> LayoutText:
    """Return the text that a prompt shows of a document, with the found values covered."""
    return covered(shown, [place for entry in merged if entry.value is not None for place in _places(entry, shown)])


def max_characters(merged: Iterable[Merged]) -> int:
    """Return the limit for texts and quotes of the answer: the length of the longest found text, or the usual limit."""
    return max(_CHARACTERS, *(len(entry.value) for entry in merged if isinstance(entry.value, str)), 0)


def covered_readings(reading: GroupReading, merged: Iterable[Merged]) -> dict[Place, CoveredReading]:
    """Return the covered answers by place; items of arrays are left out, since they have many values anyway."""
    findings = {finding.path: finding for finding in reading.findings if ITEM not in finding.path}
    return {
        entry.place: _compared(entry, findings[entry.leaf.path], reading.shown)
        for entry in merged
        if entry.place in findings
    }


def _places(entry: Merged, shown: LayoutText) -> Iterator[Span]:
    """Yield the places of a value in the shown text; for a concluded value, of the words it was concluded from."""
    chosen = entry.candidates[0]
    quote = chosen.best.reading.quote
    if entry.leaf.ground:
        for span in chosen.spans:
            yield from places_in(shown, span)
    elif quote is not None:
        yield from _occurrences(quote, shown.text)


def _compared(entry: Merged, finding: Finding, shown: LayoutText) -> CoveredReading:
    if finding.value is None:
        return CoveredReading(said=Covered.NOTHING, logprobs=finding.logprobs)
    if entry.value is not None and is_same_for(entry.leaf, finding.value, entry.value):
        return CoveredReading(said=Covered.SAME, logprobs=finding.logprobs)
    quote = finding.reading.quote or ""
    spans: Sequence[Span] = finding.spans if entry.leaf.ground else list(_occurrences(quote, shown.text))
    if not spans or COVER[0] in shown.text[spans[0].start : spans[0].end]:
        return CoveredReading(said=Covered.NOWHERE, value=finding.value, logprobs=finding.logprobs)
    place = Span(*shown.to_document(spans[0].start, spans[0].end))
    return CoveredReading(said=Covered.OTHER, value=finding.value, span=place, logprobs=finding.logprobs)


def _occurrences(quote: str, text: str) -> Iterator[Span]:
    words = r"\s+".join(map(re.escape, quote.split()))
    return (Span(*match.span()) for match in re.finditer(words, text)) if words else iter(())
