"""Numbers and amounts as documents write them, in English and German: every reading that a text allows.

`1,234` is 1234 to one and 1.234 to another; both are kept, and who compares two texts asks whether they share one.
Knows no field.
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
"""Where a number may stand in a text; blanks inside it are looked at afterwards."""

LARGEST = 10**18
"""Numbers from here on stand in no document, and not all have room in 64 bits; they mean nothing here."""

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
"""ISO 4217, those of which documents are usual."""

_DOLLAR = "$"
"""Of several countries: it names no code by itself."""


def numbers(text: str) -> frozenset[Decimal]:
    """Return what a text that is one number may mean; empty if it is none. A currency or unit around it is let be."""
    body = _body(text)
    if body is None:
        return frozenset()
    digits, is_negative, is_percent = body
    found = set(_readings(digits))
    if is_percent:
        found |= {value / 100 for value in found}
    return frozenset(-value if is_negative else value for value in found)


def currency(text: str) -> str | None:
    """Return the ISO code of the currency that a text names; `$` alone names none."""
    upper = unicodedata.normalize("NFKC", text).upper()
    words: list[str] = re.findall(r"US\$|[€£¥]|[A-Z]+\.?", upper)
    for word in words:
        if word in CURRENCY_CODES:
            return word
        if word in _CURRENCIES:
            return _CURRENCIES[word]
    return None


def _body(text: str) -> tuple[str, bool, bool] | None:
    """Return a text's one number as it is written, whether it is below 0, and whether it is a percentage."""
    plain = unicodedata.normalize("NFKC", text).translate(_SIGNS).strip()
    found = re.fullmatch(r"(\D*?)(\d(?:[\d.,' ]*\d)?)(,-)?(\D*)", plain)
    if found is None or sum(sign.isdigit() for sign in found[2]) >= len(str(LARGEST)):
        return None
    before, digits, _, after = found.groups()
    if before.rstrip().endswith(".") and not re.search(r"[A-Za-z]\.\s*$", before):
        digits = "0." + digits  # .5
        before = before.rstrip().removesuffix(".")
    is_negative = "-" in before or after.startswith("-") or ("(" in before and ")" in after)
    return digits, is_negative, "%" in after


_SIGNS = str.maketrans({"−": "-", "–": "-", "—": "-", "’": "'", "\u00a0": " ", "\u202f": " ", "\u2009": " "})


def _readings(digits: str) -> list[Decimal]:
    """Return the numbers that digits and separators may mean."""
    found = []
    for decimal_sign in (".", ",", None):
        whole, sign, fraction = digits, "", ""
        if decimal_sign is not None:
            whole, sign, fraction = digits.rpartition(decimal_sign)
        if decimal_sign is not None and (not sign or not fraction.isdigit() or not whole):
            continue
        value = _whole(whole, decimal_sign)
        if value is not None:
            found.append(Decimal(f"{value}.{fraction}" if sign else value))
    return found


def _whole(text: str, decimal_sign: str | None) -> str | None:
    """Return the digits of a whole number that may be grouped by threes, by a sign other than its decimal one."""
    if text.isdigit():
        return text
    grouped = _GROUPED.fullmatch(text)
    if grouped is None or grouped[1] == decimal_sign:
        return None
    return re.sub(r"\D", "", text)
