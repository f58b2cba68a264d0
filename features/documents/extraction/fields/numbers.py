"""Numbers and amounts as written in documents, in English and German, with every possible reading of a text.

`1,234` may be 1234 or 1.234; both are kept, and two texts are equal if they share a reading.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

_CODE_BEFORE = r"(?:(?<![\w.,])|(?<=EUR)|(?<=USD)|(?<=CHF)|(?<=GBP))"
_CODE_AFTER = r"(?:(?!\w)|(?=EUR|USD|CHF|GBP))"
NUMBER = re.compile(
    rf"{_CODE_BEFORE}[(]?[-+−–]?\s?\d(?:[\d.,'’ \u00a0\u202f]*\d)?(?:,[-–—])?{_CODE_AFTER}(?:[)]|-(?![\w-]))?"
)
"""Matches possible numbers in a text; blanks inside them are checked later."""

LARGEST = 10**18
"""Documents contain no numbers from here on, and 64 bits do not hold all of them; they have no reading."""

_GROUPED = re.compile(r"\d{1,3}(?:([.,'’ ])\d{3})(?:\1\d{3})*")
_CURRENCIES = {
    "€": "EUR",
    "EURO": "EUR",
    "£": "GBP",
    "¥": "JPY",
    "US$": "USD",
    "FR.": "CHF",
    "SFR": "CHF",
    "SFR.": "CHF",
    **dict.fromkeys(("EUROS", "EUR."), "EUR"),
}
_CODES = (
    "AED AUD BGN BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP HKD HUF IDR ILS INR ISK JPY KRW MAD MXN MYR NOK NZD PEN"
    " PHP PLN RON RSD RUB SAR SEK SGD THB TRY TWD UAH USD VND ZAR"
)
CURRENCY_CODES = frozenset(_CODES.split())
"""Common codes of ISO 4217."""

_DOLLAR = "$"
"""Used by several countries: names no code by itself."""


def numbers(text: str) -> frozenset[Decimal]:
    """Return the possible values of a text with one number; empty if it has none. Ignores currencies and units."""
    body = _body(text)
    if body is None:
        return frozenset()
    digits, is_negative, is_percent = body
    values = set(_readings(digits))
    if is_percent:
        values |= {value / 100 for value in values}
    return frozenset(-value if is_negative else value for value in values)


def currency(text: str) -> str | None:
    """Return the ISO code of the currency in a text; `$` alone has none."""
    upper = unicodedata.normalize("NFKC", text).upper()
    words: list[str] = re.findall(r"US\$|[€£¥]|[A-Z]+\.?", upper)
    for word in words:
        if word in CURRENCY_CODES:
            return word
        if word in _CURRENCIES:
            return _CURRENCIES[word]
    return None


def _body(text: str) -> tuple[str, bool, bool] | None:
    """Return the digits of a text's only number, whether it is negative, and whether it is a percentage."""
    plain = unicodedata.normalize("NFKC", text).translate(_SIGNS).strip()
    match = re.fullmatch(r"(\D*?)(\d(?:[\d.,' ]*\d)?)(,-)?(\D*)", plain)
    if match is None or sum(sign.isdigit() for sign in match[2]) >= len(str(LARGEST)):
        return None
    before, digits, _, after = match.groups()
    if before.rstrip().endswith(".") and not re.search(r"[A-Za-z]\.\s*$", before):
        digits = "0." + digits  # .5
        before = before.rstrip().removesuffix(".")
    is_negative = "-" in before or after.startswith("-") or ("(" in before and ")" in after)
    return digits, is_negative, "%" in after


_SIGNS = str.maketrans({"−": "-", "–": "-", "—": "-", "’": "'", "\u00a0": " ", "\u202f": " ", "\u2009": " "})


def _readings(digits: str) -> list[Decimal]:
    """Return the possible numbers for digits with separators."""
    readings = []
    for decimal_sign in (".", ",", None):
        whole, sign, fraction = digits, "", ""
        if decimal_sign is not None:
            whole, sign, fraction = digits.rpartition(decimal_sign)
        if decimal_sign is not None and (not sign or not fraction.isdigit() or not whole):
            continue
        value = _whole(whole, decimal_sign)
        if value is not None:
            readings.append(Decimal(f"{value}.{fraction}" if sign else value))
    return readings


def _whole(text: str, decimal_sign: str | None) -> str | None:
    """Return the digits of a whole number that may be grouped in threes, by a sign other than its decimal sign."""
    if text.isdigit():
        return text
    grouped = _GROUPED.fullmatch(text)
    if grouped is None or grouped[1] == decimal_sign:
        return None
    return re.sub(r"\D", "", text)
