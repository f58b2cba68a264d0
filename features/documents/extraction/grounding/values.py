"""Locates values without a quote in a text, as spelled or in any other form of their kind.

A number is found in each of its forms (`1234.5` in `1.234,50`), and so is a date.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from features.documents.extraction.fields.dates import DATE, days_of, is_surely
from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.numbers import MULTIPLIERS, NUMBER
from features.documents.extraction.fields.values import Amount, Normal, normal_forms
from features.documents.extraction.grounding.candidates import NO_CANDIDATES, Candidates, candidates
from features.documents.extraction.grounding.normalised import THOUSANDS, Target
from features.documents.extraction.grounding.spans import Span, Status

_YEAR_DIGITS = 4
_PART = re.compile(rf"(?:\S|(?<=\d)[{THOUSANDS}](?=\d{{3}}(?!\d)))+")


class ValueTarget:
    """A text in which values are searched; its numbers and dates are read once, on first use."""

    def __init__(self, text: str) -> None:
        self.text = Target(text)

    def candidates(self, value: Any, kind: Kind) -> Candidates:
        """Return the places of a value."""
        if isinstance(value, bool) or kind is Kind.BOOLEAN:
            return NO_CANDIDATES
        if isinstance(value, str):
            spelled = candidates(value, self.text, is_value=True)
            if spelled.spans and (kind is Kind.TEXT or spelled.status is not Status.FUZZY):
                return spelled
        forms = {_without_currency(form) for form in normal_forms(value, kind)}
        spans = {span for form in forms for span in self._forms(kind).get(form, ())}
        if not spans:
            return NO_CANDIDATES
        status = Status.EXACT if all(self._is_spelled(span, value) for span in spans) else Status.NORMALISED
        return Candidates(status=status, spans=tuple(sorted(spans)), likeness=1.0)

    def _is_spelled(self, span: Span, value: Any) -> bool:
        return self.text.text[span.start : span.end] == str(value)

    def _forms(self, kind: Kind) -> dict[Normal, list[Span]]:
        return self._days if kind is Kind.DATE else {} if kind is Kind.TEXT else self._numbers[kind]

    @cached_property
    def _dates(self) -> list[re.Match[str]]:
        return list(DATE.finditer(self.text.text))

    @cached_property
    def _days(self) -> dict[Normal, list[Span]]:
        spans_by_day: dict[Normal, list[Span]] = {}
        for match in self._dates:
            for day in days_of(match):
                spans_by_day.setdefault(day, []).append(Span(*match.span()))
        return spans_by_day

    @cached_property
    def _numbers(self) -> dict[Kind, dict[Normal, list[Span]]]:
        spans_by_form: dict[Kind, dict[Normal, list[Span]]] = {Kind.NUMBER: {}, Kind.MONEY: {}}
        for start, text in self._number_texts():
            if self._is_of_date(start, text):
                continue
            for kind, forms in spans_by_form.items():
                for form in normal_forms(text, kind):
                    forms.setdefault(form, []).append(Span(start, start + len(text)))
        return spans_by_form

    def _is_of_date(self, start: int, text: str) -> bool:
        """Tell whether a possible number is the day or month of a date; the year counts as a number itself."""
        before = bisect_right(self._dates, start, key=lambda match: match.start()) - 1
        if before < 0 or sum(sign.isdigit() for sign in text) >= _YEAR_DIGITS:
            return False
        return start + len(text) <= self._dates[before].end() and is_surely(self._dates[before])

    def _number_texts(self) -> Iterator[tuple[int, str]]:
        """Yield everything that may be a number; digits separated by blanks both as one number and as several."""
        for match in NUMBER.finditer(self.text.text):
            text = match.group().lstrip()
            start = match.end() - len(text)
            yield start, text
            parts = list(_PART.finditer(text))
            if len(parts) > 1 and text[-1] not in MULTIPLIERS:
                yield from ((start + part.start(), part.group()) for part in parts)


def _without_currency(form: Normal) -> Normal:
    """Return an amount as it appears in a table whose currency is named elsewhere."""
    return Amount(form.cents) if isinstance(form, Amount) else form
