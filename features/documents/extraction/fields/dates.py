"""Dates as written in documents, in ISO forms and in the words of some thirty languages, with every possible reading.

`03/04/2024` may be in March or in April; both readings are kept. Two-digit years are from 1970 to 2069; years from 2400
on may also be of the Buddhist calendar. Digits may be of any script.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import date
from enum import StrEnum

from features.documents.extraction.fields.month_names import MONTH_NAMES

_MONTHS_OF: dict[str, set[int]] = {}
for _number, _names in enumerate(MONTH_NAMES, 1):
    for _name in _names.split():
        _MONTHS_OF.setdefault(_name.replace("_", " "), set()).add(_number)
_SHORT_YEARS = re.compile("jan|feb|mar|mär|mrz|apr|may|mai|jun|jul|aug|sept?|oct|okt|nov|dec|dez")
"""Abbreviations that may precede a two-digit year; others are too often words (`10 set 12`)."""
_WHOLE = 5
_PIVOT = 70
"""Two-digit years from this one on are in the last century."""
_BUDDHIST, _BUDDHIST_OFFSET = 2400, 543
_YEARS = range(1500, 2200), range(_BUDDHIST, 2700)
"""Of dates whose month is a name: `4 LED 3000K` is none."""
_LETTER_I = str.maketrans("İı", "ii")


def _by_first_letter(names: Iterable[str]) -> str:
    """Return a pattern of names, longest first. It branches on the first letter, as alternatives are tried in turn."""
    rests: dict[str, list[str]] = {}
    for name in sorted(names, key=len, reverse=True):
        rests.setdefault(name[0], []).append(re.escape(name[1:]))
    return "|".join(f"{letter}(?:{'|'.join(each)})" for letter, each in rests.items())


_NAME = _by_first_letter(_MONTHS_OF)
_BEFORE_MONTH = r"(?:day\s+of\s+|of\s+|del?\s+|d['’]|ב)?"
_AFTER_MONTH = r"\.?(?![^\W\d_])"
_ORDINAL = r"(?:st|nd|rd|th|er|[.ºª°])?"
_SEPARATOR = r"[\s,.-]*(?:del?\s+|of\s+|ค\.ศ\.\s*|พ\.ศ\.\s*)?"

_YEAR_FIRST = r"(?P<year>\d{4})(?P<sep>[-/]|\.\s?)(?P<first>\d{1,2})(?P=sep)(?P<second>\d{1,2})(?!\d)"
_COMPACT = r"(?P<compact>(?:19|20)\d{6})(?!\d)"
_GAP = r"[\s\u200e\u200f]?"
_NUMBERS = (
    rf"(?P<one>\d{{1,2}}){_GAP}(?P<sign>[-/.]){_GAP}(?P<two>\d{{1,2}}){_GAP}(?P=sign){_GAP}"
    r"(?P<last>\d{4}|\d{2})(?!\d)"
)
_IDEOGRAPHS = r"(?P<year4>\d{4})\s?[年년]\s?(?P<month4>\d{1,2})\s?[月월]\s?(?P<day4>\d{1,2})\s?[日号號일]"
_THANG = r"(?P<day5>\d{1,2})\s+tháng\s+(?P<month5>\d{1,2}),?\s+(?:năm\s+)?(?P<year5>\d{4})(?!\d)"
_DAY_MONTH = (
    rf"(?P<day>\d{{1,2}}){_ORDINAL}[\s-]*(?=[^\W\d_][^\d\n]{{2,24}}\d\d)"  # as in _MONTH_DAY
    rf"{_BEFORE_MONTH}(?P<month>{_NAME}){_AFTER_MONTH}{_SEPARATOR}"
    r"(?P<year1>\d{4}|\d{2}(?!\d))"
)
_YEAR_MONTH = rf"(?P<year3>\d{{4}})\.?(?:\sm\.)?[\s-]+(?P<month3>{_NAME}){_AFTER_MONTH}[\s-]*(?P<day3>\d{{1,2}})(?!\d)"
_GADA = rf"(?P<year6>\d{{4}})\.?\s+gada\s+(?P<day6>\d{{1,2}})\.?\s+(?P<month6>{_NAME}){_AFTER_MONTH}"
_MONTH_DAY = (
    r"\b(?=[^\W\d_][^\s\d]{2,19}\s*\d)"  # rules most words out before the names are tried
    rf"(?P<month2>{_NAME}){_AFTER_MONTH}\s*(?P<day2>\d{{1,2}}){_ORDINAL}(?:\s*,\s*|\s+)(?P<year2>\d{{4}})"
)
_FROM_DIGITS = "|".join((_IDEOGRAPHS, _YEAR_FIRST, _YEAR_MONTH, _NUMBERS, _DAY_MONTH, _THANG, _GADA, _COMPACT))
DATE = re.compile(rf"(?=\d)(?<!\d)(?:{_FROM_DIGITS})|{_MONTH_DAY}", re.IGNORECASE)
"""Matches possible dates in a text."""


def dates(text: str) -> frozenset[date]:
    """Return the possible days of a text with one date; empty if it has none or several."""
    matches = list(DATE.finditer(text))
    return days_of(matches[0]) if len(matches) == 1 else frozenset()


def is_surely(match: re.Match[str]) -> bool:
    """Return whether a match of DATE is a date and nothing else: `15 Pro 2023` may be a device."""
    name = next((each for which in ("", "2", "3", "6") if (each := match[f"month{which}"])), None)
    return bool(days_of(match)) and (name is None or _is_usual(canonical(name)))


def days_of(match: re.Match[str]) -> frozenset[date]:
    """Return the possible days of a match of DATE."""
    return frozenset(day for parts in _parts(match) for day in _days(*parts))


class Order(StrEnum):
    """Which number of a date in numbers comes first, where both orders are in use."""

    DAY_FIRST = "day first"
    MONTH_FIRST = "month first"


def by_order(match: re.Match[str]) -> dict[Order, date]:
    """Return the possible days of a match of DATE by their order; empty if its form has one order."""
    if not match["one"] or match["sign"] == ".":
        return {}
    days = {order: next(_days(*parts), None) for order, parts in zip(Order, _parts(match), strict=True)}
    return {order: day for order, day in days.items() if day is not None}


def _parts(match: re.Match[str]) -> Iterator[tuple[int, int, int]]:
    """Yield year, month and day in each order that the form allows."""
    named = match.groupdict()
    if named["year"]:
        yield int(named["year"]), int(named["first"]), int(named["second"])
    elif compact := named["compact"]:
        yield int(compact[:4]), int(compact[4:6]), int(compact[6:])
    elif named["one"]:
        one, two, year = int(named["one"]), int(named["two"]), _year(named["last"])
        yield year, two, one
        if named["sign"] != ".":
            yield year, one, two
    elif which := next((each for each in "45" if named[f"year{each}"]), None):
        yield int(named[f"year{which}"]), int(named[f"month{which}"]), int(named[f"day{which}"])
    else:
        yield from _named_parts(named)


def _named_parts(named: dict[str, str]) -> Iterator[tuple[int, int, int]]:
    """Yield the readings of a date whose month is a name, which in a few cases is that of two."""
    which = next(each for each in ("", "2", "3", "6") if named[f"month{each}"])
    name = canonical(named[f"month{which}"])
    day, year = named[f"day{which}"], named[f"year{which or 1}"]
    is_year = len(year) < 4 or any(int(year) in years for years in _YEARS)
    if is_year and (len(year) == 4 or _is_usual(name)):
        for month in sorted(_MONTHS_OF.get(name, ())):
            yield _year(year), month, int(day)


def _is_usual(name: str) -> bool:
    """Return whether a name is hardly a word, or an abbreviation of English or German."""
    return len(name) >= _WHOLE or not name.isascii() or _SHORT_YEARS.fullmatch(name) is not None


def canonical(name: str) -> str:
    """Return a name of a month as MONTH_NAMES has it: casefolding takes some letters apart, and Turkish has four i."""
    return unicodedata.normalize("NFC", name.translate(_LETTER_I).casefold())


def _year(digits: str) -> int:
    year = int(digits)
    if len(digits) == 4:
        return year
    return year + (1900 if year >= _PIVOT else 2000)


def _days(year: int, month: int, day: int) -> Iterator[date]:
    for one in (year, year - _BUDDHIST_OFFSET) if year >= _BUDDHIST else (year,):
        try:
            yield date(one, month, day)
        except ValueError:
            continue
