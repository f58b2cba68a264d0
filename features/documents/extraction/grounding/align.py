"""From quotes, and from values without one, to their places in a text.

`align` is for quotes alone; `ground` for values with the quotes that a model gave for them, or without. Knows no paths
and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.grounding.candidates import NO_CANDIDATES, Candidates, candidates
from features.documents.extraction.grounding.normalised import Target
from features.documents.extraction.grounding.ordering import choose_in_order
from features.documents.extraction.grounding.spans import NOWHERE, Grounding
from features.documents.extraction.grounding.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """A value that should stand in a text, and the words that are said to hold it."""

    value: Any
    kind: Kind
    quote: str | None = None
    is_copied: bool = False
    """Whether the value must stand in the text itself: a quote that stands there does not speak for another value."""


def align(quotes_in_order: Sequence[str], text: str) -> list[Grounding]:
    """Return where each quote stands; of a quote that stands several times, the place in the order of all."""
    target = Target(text)
    found = {quote: candidates(quote, target) for quote in dict.fromkeys(quotes_in_order)}
    return _chosen([found[quote] for quote in quotes_in_order], text)


def ground(sought_in_order: Sequence[Sought], text: str) -> list[Grounding]:
    """Return where each value stands: its quote, or, where there is none or it is nowhere, the value itself.

    One that is copied and stands in no form in the text stands nowhere, whatever is quoted for it.
    """
    standing = Standing(text)
    found: dict[tuple[Any, ...], Candidates] = {}
    keys = [(type(each.value), each.value, each.kind, each.quote, each.is_copied) for each in sought_in_order]
    for key, sought in zip(keys, sought_in_order, strict=True):
        if key not in found:
            found[key] = _candidates(sought, standing)
    return _chosen([found[key] for key in keys], text)


def _candidates(sought: Sought, standing: Standing) -> Candidates:
    quoted = candidates(sought.quote, standing.target.text) if sought.quote else NO_CANDIDATES
    if sought.value is None or (quoted.spans and _speaks_for(quoted, sought, standing)):
        return quoted
    return NO_CANDIDATES if quoted.spans else standing.target.candidates(sought.value, sought.kind)


def _speaks_for(quoted: Candidates, sought: Sought, standing: Standing) -> bool:
    if not sought.is_copied:
        return True
    words = standing.text[quoted.spans[0].start : quoted.spans[0].end]
    return Standing(words).has(sought.value, sought.kind) or standing.has(sought.value, sought.kind)


def _chosen(found: Sequence[Candidates], text: str) -> list[Grounding]:
    spans = choose_in_order([options.spans for options in found], len(text))
    return [
        NOWHERE if span is None else Grounding(status=options.status, spans=(span,), likeness=options.likeness)
        for options, span in zip(found, spans, strict=True)
    ]
