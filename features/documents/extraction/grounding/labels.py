"""The words of a field beside a value: before it on its line, in it, or on the line above if no word is before it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import ITEM
from features.documents.extraction.grounding.spans import Span

_WORD = re.compile(r"[^\W\d_]+")
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W\d_]+")
"""The words of a name such as `invoiceTotal`, `invoice_total` or `IBAN`."""
_LEAST_LETTERS = 3
_STEM_LETTERS = 4
"""Words that begin with so many equal letters are one: total and totals."""
_SAID_BY_ALL = frozenset({"the", "and", "for", "value", "field", "name", "number", "text"})

Label = frozenset[str]


@cache
def label_of(leaf: Leaf) -> Label:
    """Return the words of a field's name; none for items of lists, which share them."""
    if ITEM in leaf.path:
        return frozenset()
    words = {word.casefold() for word in _PARTS.findall(leaf.name)}
    return frozenset(word for word in words if len(word) >= _LEAST_LETTERS and word not in _SAID_BY_ALL)


def best_labelled(spans: Sequence[Span], label: Label, text: str) -> tuple[Span, ...]:
    """Return the places beside which most words of a label stand: all of them where no place has any."""
    if not label or len(spans) < 2:
        return tuple(spans)
    shares = [_num_beside(span, label, text) for span in spans]
    return tuple(span for span, share in zip(spans, shares, strict=True) if share == max(shares))


def stands_beside(span: Span, label: Label, text: str) -> bool | None:
    """Tell whether a word of a label stands beside a place; None if it stands nowhere."""
    if not label or not _num_of(label, text):
        return None
    return _num_beside(span, label, text) > 0


def is_in(label: Label, words: str) -> bool:
    """Return whether a text has a word of a label."""
    return _num_of(label, words) > 0


def _num_beside(span: Span, label: Label, text: str) -> int:
    start = text.rfind("\n", 0, span.start) + 1
    before = text[start : span.start]
    if not _WORD.search(before):
        start = text.rfind("\n", 0, max(0, start - 1)) + 1
    return _num_of(label, text[start : span.end])


def _num_of(label: Label, text: str) -> int:
    """Return how many words of a label a text has."""
    words = {word.casefold() for word in _WORD.findall(text)}
    return sum(any(_is_same(word, each) for each in words) for word in label)


def _is_same(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    return one == other or (len(shorter) >= _STEM_LETTERS and longer.startswith(shorter))
