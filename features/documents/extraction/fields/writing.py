"""Which reading of an ambiguous date or number is meant, by how the rest of its document writes others.

`03/04/2024` is a day in March or in April; beside `25/04/2024` it is in April. `1,234` beside `9.50` is a whole number.
"""

from __future__ import annotations

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

    Amounts of thousands are supported without others, as hardly any amount has three decimals.
    """
    readings = _readings(value, words, kind)
    if len(set(readings.values())) < 2:
        return None
    usages = _usages(text, kind is Kind.DATE) & readings.keys()
    if len(usages) == 1:
        is_meant = is_same(value, readings[next(iter(usages))], kind)
    else:
        is_meant = kind is Kind.MONEY and is_same(value, max(readings.values(), key=abs), kind)
    return Meaning.SUPPORTED if is_meant else Meaning.CONTRADICTED if len(usages) == 1 else Meaning.OPEN


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
    return frozenset(usage for found in _all_readings(text, is_of_dates) if len(found) == 1 for usage in found)


def _all_readings(text: str, is_of_dates: bool) -> Iterator[Mapping[Any, date | Decimal]]:
    """Yield the readings of each possible date or number of a text by the usage that each supposes."""
    if is_of_dates:
        yield from map(by_order, DATE.finditer(text))
    else:
        yield from (by_decimal_sign(match[0]) for match in NUMBER.finditer(text))
