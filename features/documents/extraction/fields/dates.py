"""Dates as written in documents, in English, German and ISO forms, with every possible reading of a text.

`03/04/2024` may be in March or in April; both readings are kept. Two-digit years are from 1970 to 2069.
"""

from __future__ import annotations

import re
from datetime import date

_MONTHS = (
    ("january", "jan", "januar", "jänner", "jän"),
    ("february", "feb", "februar", "feber"),
    ("march", "mar", "märz", "mrz", "maerz", "mär"),
    ("april", "apr"),
    ("may", "mai"),
    ("june", "jun", "juni"),
    ("july", "jul", "juli"),
    ("august", "aug"),
    ("september", "sep", "sept"),
    ("october", "oct", "oktober", "okt"),
    ("november", "nov"),
    ("december", "dec", "dezember", "dez"),
)
_MONTH_OF = {name: number for number, names in enumerate(_MONTHS, 1) for name in names}
_MONTH = "(?P<month>" + "|".join(sorted(_MONTH_OF, key=len, reverse=True)) + r")\b\.?"
_PIVOT = 70
"""Two-digit years from this one on are in the last century."""

_YEAR_FIRST = r"(?P<year>\d{4})(?P<sep>[-/.])(?P<first>\d{1,2})(?P=sep)(?P<second>\d{1,2})(?!\d)"
_COMPACT = r"(?P<compact>(?:19|20)\d{6})(?!\d)"
_NUMBERS = r"(?P<one>\d{1,2})\s?(?P<sign>[-/.])\s?(?P<two>\d{1,2})\s?(?P=sign)\s?(?P<last>\d{4}|\d{2})(?!\d)"
_DAY_MONTH = rf"(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?[\s-]*(?:of\s+)?{_MONTH}[\s,-]*(?P<year1>\d{{4}}|\d{{2}}(?!\d))"
_MONTH_2 = _MONTH.replace("<month>", "<month2>")
_MONTH_DAY = rf"{_MONTH_2}\s*(?P<day2>\d{{1,2}})(?:st|nd|rd|th|\.)?(?:\s*,\s*|\s+)(?P<year2>\d{{4}})"
DATE = re.compile(rf"(?<!\d)(?:{_YEAR_FIRST}|{_NUMBERS}|{_DAY_MONTH}|{_COMPACT})|\b{_MONTH_DAY}", re.IGNORECASE)
"""Matches possible dates in a text."""


def dates(text: str) -> frozenset[date]:
    """Return the possible days of a text with one date; empty if it has none or several."""
    matches = list(DATE.finditer(text))
    return days_of(matches[0]) if len(matches) == 1 else frozenset()


def days_of(match: re.Match[str]) -> frozenset[date]:
    """Return the possible days of a match of DATE."""
    return frozenset(day for parts in _parts(match) if (day := _day(*parts)) is not None)


def _parts(match: re.Match[str]) -> list[tuple[int, int, int]]:
    """Return year, month and day in each order that the form allows."""
    named = match.groupdict()
    if named["year"]:
        return [(int(named["year"]), int(named["first"]), int(named["second"]))]
    if compact := named["compact"]:
        return [(int(compact[:4]), int(compact[4:6]), int(compact[6:]))]
    if named["one"]:
        one, two, year = int(named["one"]), int(named["two"]), _year(named["last"])
        german = [(year, two, one)]
        return german if named["sign"] == "." else [*german, (year, one, two)]
    if named["day"]:
        return [(_year(named["year1"]), _MONTH_OF[named["month"].lower()], int(named["day"]))]
    return [(int(named["year2"]), _MONTH_OF[named["month2"].lower()], int(named["day2"]))]


def _year(digits: str) -> int:
    year = int(digits)
    if len(digits) == 4:
        return year
    return year + (1900 if year >= _PIVOT else 2000)


def _day(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None
