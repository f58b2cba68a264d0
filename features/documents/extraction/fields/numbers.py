"""Numbers and amounts as written in documents, with every possible reading of a text.

`1,234` may be 1234 or 1.234; both are kept, and two texts are equal if they share a reading. Digits may be of any
script.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal

_CODES = (
    "AED AUD BGN BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP HKD HUF IDR ILS INR ISK JPY KRW MAD MXN MYR NOK NZD PEN"
    " PHP PLN RON RSD RUB SAR SEK SGD THB TRY TWD UAH USD VND ZAR"
)
CURRENCY_CODES = frozenset(_CODES.split())
"""Common codes of ISO 4217."""

_NAMES = {
    "EUR": "€ EURO EUROS EUR.",
    "GBP": "£",
    "JPY": "¥ 円",
    "CHF": "FR. SFR SFR.",
    "USD": "US$",
    "AUD": "A$ AU$",
    "CAD": "C$ CA$",
    "HKD": "HK$",
    "NZD": "NZ$",
    "SGD": "S$",
    "TWD": "NT$",
    "BRL": "R$",
    "CNY": "元 RMB",
    "KRW": "₩ 원",
    "INR": "₹",
    "RUB": "₽",
    "UAH": "₴",
    "TRY": "₺",
    "ILS": "₪",
    "THB": "฿",
    "VND": "₫",
}
_CURRENCIES = {name: code for code, names in _NAMES.items() for name in names.split()}
"""In capitals."""
_AS_WRITTEN = {
    "zł": "PLN",
    "Kč": "CZK",
    "Ft": "HUF",
    "lei": "RON",
    "RM": "MYR",
    "TL": "TRY",
    **dict.fromkeys(("Rp", "Rp."), "IDR"),
    **dict.fromkeys(("руб", "руб."), "RUB"),
    **dict.fromkeys(("грн", "грн."), "UAH"),
    **dict.fromkeys(("лв", "лв."), "BGN"),
}
"""In this spelling alone: `12 ft` is a length."""
_UNSPECIFIC = ("kr", "kr.", "Rs", "Rs.")
"""Currencies of several countries, as `$` is: they name no code."""

_LETTERED = sorted({*CURRENCY_CODES, *_CURRENCIES, *_AS_WRITTEN, *_UNSPECIFIC})
_WORD = r"[^\W\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""A letter, digit or underscore, but for scripts that put no blanks around numbers."""
_TOUCHING_BEFORE = "".join(rf"|(?<=\b(?i:{re.escape(name)}))" for name in _LETTERED if name[0].isalpha())
_TOUCHING_AFTER = "|".join(re.escape(name) for name in _LETTERED if name[0].isalpha())
_TENS = {"十": 10, "십": 10, "百": 100, "백": 100, "千": 1000, "천": 1000}
_MYRIADS = dict.fromkeys("万萬만", 10**4) | dict.fromkeys("億亿억", 10**8) | dict.fromkeys("兆조", 10**12)
_FACTORS = _TENS | _MYRIADS
MULTIPLIERS = "".join(_FACTORS)
_OF_UNITS = "克米瓦卡"
"""After 千 they name a unit: `5千克` is 5 kg."""
MULTIPLIED = rf"(?: ?[{MULTIPLIERS}]+(?![\d{_OF_UNITS}])|(?! ?[{MULTIPLIERS}](?![{_OF_UNITS}])))"
"""Matches the signs that multiply the number before them, as in `5千万円`, or nothing. Numbers of several parts, as
`1億5千万`, have no reading."""
_FACTOR = re.compile(rf"\s?([{MULTIPLIERS}]+)(?![\d{_OF_UNITS}])")
_BEGIN = r"[(]?[-+−–]?\s?\d"
NUMBER = re.compile(
    rf"(?={_BEGIN})(?:(?<!{_WORD})(?<![.,{MULTIPLIERS}]){_TOUCHING_BEFORE})"
    rf"{_BEGIN}(?:[\d.,'’٫٬ \u00a0\u202f]*\d)?(?:,[-–—])?{MULTIPLIED}"
    rf"(?:(?!{_WORD})|(?=(?i:{_TOUCHING_AFTER})(?!{_WORD})))(?:[)]|-(?![\w-]))?"
)
"""Matches possible numbers in a text; blanks inside them are checked later."""

LARGEST = 10**18
"""Documents contain no numbers from here on, and 64 bits do not hold all of them; they have no reading."""

_GROUPED = re.compile(r"\d{1,3}(?:([.,'’ ])\d{3})(?:\1\d{3})*|\d{1,2}(?:(,)\d{2})+,\d{3}")
"""In threes, or as in India: by twos before the last three."""


def numbers(text: str) -> frozenset[Decimal]:
    """Return the possible values of a text with one number; empty if it has none. Ignores currencies and units."""
    body = _body(text)
    if body is None:
        return frozenset()
    digits, factor, is_negative, is_percent = body
    values = {value * factor for _, value in _readings(digits)}
    if is_percent:
        values |= {value / 100 for value in values}
    return frozenset(-value if is_negative else value for value in values)


def currency(text: str) -> str | None:
    """Return the ISO code of the currency in a text; `$` alone has none."""
    words: list[str] = _CURRENCY_WORD.findall(unicodedata.normalize("NFKC", text))
    return next((code for code in map(_code_of, words) if code is not None), None)


def _code_of(word: str) -> str | None:
    capitals = word.upper()
    return capitals if capitals in CURRENCY_CODES else _CURRENCIES.get(capitals) or _AS_WRITTEN.get(word)


def _body(text: str) -> tuple[str, int, bool, bool] | None:
    """Return the digits of a text's only number, its factor, whether it is negative, and whether it is a percentage."""
    plain = unicodedata.normalize("NFKC", text).translate(_SIGNS).strip()
    match = re.fullmatch(r"(\D*?)(\d(?:[\d.,' ]*\d)?)(,-)?(\D*)", plain)
    if match is None or sum(sign.isdigit() for sign in match[2]) >= len(str(LARGEST)):
        return None
    before, digits, _, after = match.groups()
    if before.rstrip().endswith(".") and not re.search(r"[A-Za-z]\.\s*$", before):
        digits = "0." + digits  # .5
        before = before.rstrip().removesuffix(".")
    is_negative = "-" in before or after.startswith("-") or ("(" in before and ")" in after)
    factor = _FACTOR.match(after)
    return digits, 1 if factor is None else math.prod(map(_FACTORS.__getitem__, factor[1])), is_negative, "%" in after


_CURRENCY_WORD = re.compile(r"[A-Za-z]{1,2}\$|[€£¥₩₹₽₴₺₪฿₫元円원]|[^\W\d_]+\.?")
_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "’": "'", "٬": "'", "٫": ".", "\u00a0": " ", "\u202f": " ", "\u2009": " "}
)


def by_decimal_sign(text: str) -> dict[str, Decimal]:
    """Return the readings of a text with one number by the decimal sign that they suppose, without factor and percent.

    Empty if nothing supposes one, as in `12` or `1 234`.
    """
    body = _body(text)
    if body is None:
        return {}
    readings = {sign or _other_sign(body[0]): value for sign, value in _readings(body[0])}
    return {sign: -value if body[2] else value for sign, value in readings.items() if sign is not None}


def _other_sign(digits: str) -> str | None:
    """Return the decimal sign of digits that are grouped by the other one."""
    return "." if "," in digits else "," if "." in digits else None


def _readings(digits: str) -> Iterator[tuple[str | None, Decimal]]:
    """Yield the possible numbers for digits with separators, each with the decimal sign among them."""
    for decimal_sign in (".", ",", None):
        whole, sign, fraction = digits, "", ""
        if decimal_sign is not None:
            whole, sign, fraction = digits.rpartition(decimal_sign)
        if decimal_sign is not None and (not sign or not fraction.isdigit() or not whole):
            continue
        value = _whole(whole, decimal_sign)
        if value is not None:
            yield decimal_sign, Decimal(f"{value}.{fraction}" if sign else value)


def _whole(text: str, decimal_sign: str | None) -> str | None:
    """Return the digits of a whole number that may be grouped in threes, by a sign other than its decimal sign.

    A group begins with no zero: `0.125` has decimals.
    """
    if text.isdigit():
        return text
    grouped = _GROUPED.fullmatch(text)
    if grouped is None or int(text[0]) == 0 or (decimal_sign is not None and decimal_sign in grouped.groups()):
        return None
    return re.sub(r"\D", "", text)
