"""Removes values that should be copied from the document but do not occur in it.

Such a value becomes null, with the answer beside it. Choices, booleans and concluded values are kept and marked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.grounding.spans import NOWHERE
from features.documents.extraction.grounding.standing import Standing
from features.documents.extraction.passes.merging import Candidate, Merged

NOT_IN_DOCUMENT = "not_in_document"
"""Note of a value that is null because the answer does not occur in the document."""


def withhold(merged: Iterable[Merged], text: str) -> list[Merged]:
    """Return entries whose copied values occur in a document's text; spans refer to it."""
    standing = Standing(text)
    return [_withheld(entry, standing) for entry in merged]


def _withheld(entry: Merged, standing: Standing) -> Merged:
    if entry.value is None:
        return entry
    grounded: list[Candidate] = []
    nowhere: list[Candidate] = []
    for candidate in entry.candidates:
        (nowhere if _is_nowhere(candidate, entry.leaf, standing) else grounded).append(candidate)
    if grounded or not entry.leaf.is_copied:
        return replace(entry, candidates=(*grounded, *nowhere), is_nowhere=not grounded)
    first, *others = nowhere
    return replace(entry, candidates=(_without_value(first), *others), answer=first.value, is_nowhere=True)


def _is_nowhere(candidate: Candidate, leaf: Leaf, standing: Standing) -> bool:
    """Tell whether a text has neither the value nor, unless the value is a copy, the words it was concluded from."""
    quote = candidate.best.reading.quote
    if candidate.spans or (quote is not None and not leaf.is_copied and standing.has_words(quote)):
        return False
    return not standing.has(candidate.value, leaf.kind)


def _without_value(candidate: Candidate) -> Candidate:
    """Return a null candidate for a value; nothing else is known about it."""
    best = candidate.best
    null = replace(best, reading=replace(best.reading, value=None), grounding=NOWHERE, agreement=None, logprobs=None)
    return Candidate(findings=(null,))
