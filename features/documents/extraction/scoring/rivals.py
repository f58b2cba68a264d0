"""Finds rival values in a document: other values after the same words (`Date 4 May`, `Date 9 May`), or of a choice.

The words are those that begin the value's line; other words with the same meaning are not considered. For a choice (an
enum) every other member that the document names is a rival, a currency also by its sign. No model is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

from features.documents.extraction.fields.leaf import Kind, Leaf
from features.documents.extraction.fields.numbers import currency
from features.documents.extraction.fields.paths import ITEM
from features.documents.extraction.fields.values import Amount, Normal, normal_forms, normal_text
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.merging import Merged

_BETWEEN = r"[ \t:|=.*#]+"
_CELL_END = re.compile(r"\t| {2,}| \| |;")
_MOST_WORDS, _LEAST_LETTERS = 4, 2
"""Limits of a label: text with more words is a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Another value after the same words."""

    value: Any
    """Converted to the field's type; the document's own words if they are ambiguous."""
    span: Span


def rivals_of(entry: Merged, text: str) -> list[Rival]:
    """Return the rivals of a value whose spans refer to `text`; none for items, which share their words anyway."""
    if entry.value in (None, []) or ITEM in entry.leaf.path:
        return []
    return _members(entry.value, entry.leaf, text) if entry.leaf.enum is not None else _labelled(entry, text)


def _members(value: Any, leaf: Leaf, text: str) -> list[Rival]:
    """Return the other members of a choice that a text names."""
    own = normal_text(str(value))
    rivals: dict[str, Rival] = {}
    for member in leaf.enum or ():
        if not isinstance(member, str) or normal_text(member) in own or own in normal_text(member):
            continue
        words = r"\s+".join(map(re.escape, member.split()))
        if match := re.search(rf"(?<!\w){words}(?!\w)", text, re.IGNORECASE):
            rivals[member] = Rival(value=member, span=Span(*match.span()))
    for line in re.finditer(r"[^\n]+", text):
        code = currency(line.group())
        if code in (leaf.enum or ()) and code != value and code is not None:
            rivals.setdefault(code, Rival(value=code, span=Span(*line.span())))
    return list(rivals.values())


def _labelled(entry: Merged, text: str) -> list[Rival]:
    chosen = entry.candidates[0]
    if not entry.leaf.ground:
        return []
    labels = {label for span in chosen.spans if (label := _label(text, span.start)) is not None}
    others = [span for label in sorted(labels) for span in _behind(label, text)]
    rivals: dict[frozenset[Normal], Rival] = {}
    for span in others:
        words = text[span.start : span.end]
        forms = normal_forms(words, entry.leaf.kind)
        is_own = any(span.overlaps(own) for own in chosen.spans) or _is_same(words, forms, chosen.value, entry.leaf)
        if forms and not is_own:
            rivals.setdefault(forms, Rival(value=_typed(words, forms, entry.leaf), span=span))
    return list(rivals.values())


def _label(text: str, start: int) -> str | None:
    """Return the words before a place on its line; None if there are none, or too many for a label."""
    label = re.sub(rf"^{_BETWEEN}|{_BETWEEN}$", "", text[text.rfind("\n", 0, start) + 1 : start])
    is_label = sum(map(str.isalpha, label)) >= _LEAST_LETTERS and len(label.split()) <= _MOST_WORDS
    return " ".join(label.casefold().split()) if is_label else None


def _behind(label: str, text: str) -> Iterator[Span]:
    """Yield the text after a label on each line that begins with it."""
    words = r"[ \t]+".join(map(re.escape, label.split()))
    for match in re.finditer(rf"^[^\w\n]*{words}{_BETWEEN}(?P<said>\S[^\n]*)", text, re.IGNORECASE | re.MULTILINE):
        cell = _CELL_END.split(match["said"], maxsplit=1)[0].rstrip()
        yield Span(match.start("said"), match.start("said") + len(cell))


def _is_same(words: str, forms: frozenset[Normal], value: Any, leaf: Leaf) -> bool:
    if leaf.kind is Kind.TEXT:
        return normal_text(str(value)) in normal_text(words)
    return bool({_bare(form) for form in forms} & {_bare(form) for form in normal_forms(value, leaf.kind)})


def _bare(form: Normal) -> Normal:
    return form.cents if isinstance(form, Amount) else form


def _typed(words: str, forms: frozenset[Normal], leaf: Leaf) -> Any:
    if leaf.kind is Kind.TEXT or len(forms) > 1:
        return words
    (form,) = map(_bare, forms)
    if isinstance(form, date):
        return form.isoformat()
    return form if isinstance(form, bool) else float(str(form))
