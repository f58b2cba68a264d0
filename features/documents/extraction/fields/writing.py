"""Which reading of an ambiguous date or number is meant, by how the rest of its document writes others.

`03/04/2024` is a day in March or in April; beside `25/04/2024` it is in April. `1,234` beside `9.50` is a whole number.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any

from features.documents.extraction.fields.dates import DATE, by_order
from features.documents.extraction.fields.leaf import Kind
from features.documents.extraction.fields.numbers import NUMBER, by_decimal_sign
from features.documents.extraction.fields.values import is_same


class Meaning(StrEnum):
    """How a value relates to the readings of its words, if these are several."""

    SUPPORTED = "supported"  # other values of the document are written so that it is this one
    OPEN = "open"  # nothing decides
    CONTRADICTED = "contradicted"  # others are written so that it is another one


def meaning_of(value: Any, words: str, kind: Kind, text: str) -> Meaning | None:
    """Return how a value relates to the readings of those words that give it; None if they have at most one reading.

    Amounts of thousands are supported without others, as hardly any amount has three decimals, and never contradicted.
    """
    readings = _readings(value, words, kind)
    if len(set(readings.values())) < 2:
        return None
    is_of_thousands = kind is Kind.MONEY and is_same(value, max(readings.values(), key=abs), kind)
    usages = _usages(text, kind is Kind.DATE) & readings.keys()
    if len(usages) != 1:
        return Meaning.SUPPORTED if is_of_thousands else Meaning.OPEN
    if is_same(value, readings[next(iter(usages))], kind):
        return Meaning.SUPPORTED
    return Meaning.OPEN if is_of_thousands else Meaning.CONTRADICTED


def _readings(value: Any, words: str, kind: Kind) -> Mapping[Hashable, Any]:
    """Return the readings, as JSON values, of the first date or number that may be the value, by the usage of each."""
    if kind not in {Kind.DATE, Kind.NUMBER, Kind.MONEY}:
        return {}
    for readings in _all_readings(words, kind is Kind.DATE):
        known = {usage: read.isoformat() if isinstance(read, date) else float(read) for usage, read in readings.items()}
        if any(is_same(value, each, kind) for each in known.values()):
            return known
    return {}


@lru_cache(maxsize=8)
def _usages(text: str, is_of_dates: bool) -> frozenset[Hashable]:
    """Return the orders of days and months, or the decimal signs, of what has one reading in a text."""
    telling = _all_readings(text, is_of_dates) if is_of_dates else _telling_numbers(text)
    return frozenset(usage for found in telling if len(found) == 1 for usage in found)


def _all_readings(text: str, is_of_dates: bool) -> Iterator[Mapping[Any, date | Decimal]]:
    """Yield the readings of each possible date or number of a text by the usage that each supposes."""
    if is_of_dates:
        yield from map(by_order, DATE.finditer(text))
    else:
        yield from (by_decimal_sign(match[0]) for match in NUMBER.finditer(text))


_LABEL = r"(?:[§#]|\d:|\b(?i:v|at|chapter|cf|fig|kapitel|kl|no|nr|p|page|sec|section|table|um|version))\.?\s?$"
"""Ends what stands before a section's number, a version or a time."""
_REST = r"\s?(?:[.:–-]\s?\d|[.:]\s?[^\W\d_A-Z]|(?i:h|uhr|am|pm|[ap]\.m|o.clock|ore|val)\b)"
"""Begins what stands after a time or a day (`10.30 Uhr`, `12.05. um`)."""
_BEFORE, _AFTER = re.compile(_LABEL), re.compile(_REST)
_SPAN = 10
_TELLING = re.compile(r"[.,']\d{3}\D|\D\d\d\D*$")


def _telling_numbers(text: str) -> Iterator[Mapping[Any, Decimal]]:
    """Yield the readings of the numbers that show a text's decimal sign: with two decimals, or several separators.

    Sections, versions, times and days without a year are written with a point in any language.
    """
    for match in NUMBER.finditer(text):
        before, after = text[max(match.start() - _SPAN, 0) : match.start()], text[match.end() : match.end() + _SPAN]
        if _TELLING.search(match[0]) and not _BEFORE.search(before) and not _AFTER.match(after):
            yield by_decimal_sign(match[0])
