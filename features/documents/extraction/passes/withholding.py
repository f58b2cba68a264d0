"""What of the answers a record may have: no copy of words that stand nowhere in the document.

Such a value is null, with the answer beside it. A choice, a boolean and what is concluded are kept, and marked. Knows
no score.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.grounding.spans import NOWHERE
from features.documents.extraction.grounding.standing import Standing
from features.documents.extraction.passes.merging import Candidate, Merged

NOT_IN_DOCUMENT = "not_in_document"
"""The note of a value that is null because what was answered stands nowhere."""


def withhold(merged: Iterable[Merged], text: str) -> list[Merged]:
    """Return entries whose copied values stand in a document's text; spans are of it."""
    standing = Standing(text)
    return [_withheld(entry, standing) for entry in merged]


def _withheld(entry: Merged, standing: Standing) -> Merged:
    if entry.value is None:
        return entry
    found: list[Candidate] = []
    nowhere: list[Candidate] = []
    for candidate in entry.candidates:
        (nowhere if _is_nowhere(candidate, entry.leaf, standing) else found).append(candidate)
    if found or not entry.leaf.is_copied:
        return replace(entry, candidates=(*found, *nowhere), is_nowhere=not found)
    first, *others = nowhere
    return replace(entry, candidates=(_without_value(first), *others), answer=first.value, is_nowhere=True)


def _is_nowhere(candidate: Candidate, leaf: Leaf, standing: Standing) -> bool:
    """Tell whether neither a value nor, unless it is a copy, the words that it was concluded from stand in a text."""
    quote = candidate.best.reading.quote
    if candidate.spans or (quote is not None and not leaf.is_copied and standing.has_words(quote)):
        return False
    return not standing.has(candidate.value, leaf.kind)


def _without_value(candidate: Candidate) -> Candidate:
    """Return null in a value's place: of that nothing else is known."""
    best = candidate.best
    null = replace(best, reading=replace(best.reading, value=None), grounding=NOWHERE, agreement=None, logprobs=None)
    return Candidate(findings=(null,))
