"""Locates quotes, and values with or without quotes, in a text.

`align` is for quotes alone; `ground` for values, with the quotes that a model gave for them if any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.grounding.candidates import NO_CANDIDATES, Candidates, candidates
from features.documents.extraction.grounding.labels import Label, best_labelled, stands_beside
from features.documents.extraction.grounding.normalised import Target
from features.documents.extraction.grounding.ordering import choose_in_order
from features.documents.extraction.grounding.spans import NOWHERE, Grounding
from features.documents.extraction.grounding.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A value to locate in a text, and the words that a model quoted for it."""

    value: Any
    kind: Kind
    quote: str | None = None
    is_copied: bool = False
    """Whether the value itself must occur in the text: then a quote with another value does not support it."""
    label: Label = frozenset()
    """Words of its field: of several places those beside which they stand are taken."""


def align(quotes_in_order: Sequence[str], text: str) -> list[Grounding]:
    """Return the place of each quote; ambiguous quotes get the places that best keep the order of all quotes."""
    target = Target(text)
    candidates_of = {quote: candidates(quote, target) for quote in dict.fromkeys(quotes_in_order)}
    return _chosen([candidates_of[quote] for quote in quotes_in_order], text)


def ground(sought_in_order: Sequence[Sought], text: str) -> list[Grounding]:
    """Return the place of each value: that of its quote, or, if it has none or it is not in the text, of the value.

    A copied value that occurs in no form in the text has no place, whatever its quote.
    """
    standing = Standing(text)
    candidates_of: dict[tuple[Any, ...], Candidates] = {}
    keys = [
        (type(each.value), each.value, each.kind, each.quote, each.is_copied, each.label) for each in sought_in_order
    ]
    for key, sought in zip(keys, sought_in_order, strict=True):
        if key not in candidates_of:
            candidates_of[key] = _labelled(_candidates(sought, standing), sought, text)
    groundings = _chosen([candidates_of[key] for key in keys], text)
    return [_checked(one, sought, standing) for one, sought in zip(groundings, sought_in_order, strict=True)]


def _candidates(sought: Sought, standing: Standing) -> Candidates:
    quoted = _quoted(sought, standing)
    if sought.value is None or (quoted.spans and _speaks_for(quoted, sought, standing)):
        return quoted
    return NO_CANDIDATES if quoted.spans else standing.target.candidates(sought.value, sought.kind)


def _quoted(sought: Sought, standing: Standing) -> Candidates:
    return candidates(sought.quote, standing.target.text) if sought.quote else NO_CANDIDATES


def _labelled(options: Candidates, sought: Sought, text: str) -> Candidates:
    return replace(options, spans=best_labelled(options.spans, sought.label, text))


def _checked(grounding: Grounding, sought: Sought, standing: Standing) -> Grounding:
    """Note whether the quote is in the text, and whether the field's words stand beside the value."""
    label_stands = stands_beside(grounding.spans[0], sought.label, standing.text) if grounding.spans else None
    quote_stands = bool(_quoted(sought, standing).spans) if sought.quote else None
    return replace(grounding, quote_stands=quote_stands, label_stands=label_stands)


def _speaks_for(quoted: Candidates, sought: Sought, standing: Standing) -> bool:
    if not sought.is_copied:
        return True
    words = standing.text[quoted.spans[0].start : quoted.spans[0].end]
    return Standing(words).has(sought.value, sought.kind) or standing.has(sought.value, sought.kind)


def _chosen(candidates_of: Sequence[Candidates], text: str) -> list[Grounding]:
    spans = choose_in_order([options.spans for options in candidates_of], len(text))
    return [
        NOWHERE if span is None else Grounding(status=options.status, spans=(span,), likeness=options.likeness)
        for options, span in zip(candidates_of, spans, strict=True)
    ]
