"""Numbers with check digits: IBANs (ISO 13616) and VAT numbers of some countries.

For VAT numbers of other EU countries only the form is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_IBAN_LENGTHS = {
    "AT": 20,
    "BE": 16,
    "BG": 22,
    "CH": 21,
    "CY": 28,
    "CZ": 24,
    "DE": 22,
    "DK": 18,
    "EE": 20,
    "ES": 24,
    "FI": 18,
    "FR": 27,
    "GB": 22,
    "GR": 27,
    "HR": 21,
    "HU": 28,
    "IE": 22,
    "IT": 27,
    "LI": 21,
    "LT": 20,
    "LU": 20,
    "LV": 21,
    "MT": 31,
    "NL": 18,
    "NO": 15,
    "PL": 28,
    "PT": 25,
    "RO": 24,
    "SE": 24,
    "SI": 19,
    "SK": 24,
}
_VAT_FORM = re.compile(
    r"(?:AT|BE|BG|CY|CZ|DE|DK|EE|EL|ES|FI|FR|HR|HU|IE|IT|LT|LU|LV|MT|NL|PL|PT|RO|SE|SI|SK|XI|GB|CHE)[0-9A-Z+*]{7,12}"
)


def is_iban(text: str) -> bool:
    """Tell whether an IBAN has the length of its country and correct check digits."""
    plain = re.sub(r"\s", "", text).upper()
    if not re.fullmatch(r"[A-Z]{2}\d{2}[0-9A-Z]{11,30}", plain):
        return False
    if len(plain) != _IBAN_LENGTHS.get(plain[:2], len(plain)):
        return False
    return int("".join(str(int(sign, 36)) for sign in plain[4:] + plain[:4])) % 97 == 1


def is_vat_id(text: str) -> bool:
    """Tell whether a VAT number has the form of a country and, for AT, BE, DE, FR and IT, correct check digits."""
    plain = re.sub(r"[\s.\-]", "", text).upper()
    if not _VAT_FORM.fullmatch(plain):
        return False
    check = _VAT_CHECKS.get(plain[:2])
    return check is None or check(plain[2:])


def _is_german(digits: str) -> bool:
    """Check digit by ISO 7064, MOD 11,10."""
    if not re.fullmatch(r"[1-9]\d{8}", digits):
        return False
    product = 10
    for digit in digits[:8]:
        total = (int(digit) + product) % 10 or 10
        product = 2 * total % 11
    return (11 - product) % 10 == int(digits[8])


def _is_austrian(body: str) -> bool:
    if not re.fullmatch(r"U\d{8}", body):
        return False
    digits = [int(sign) for sign in body[1:]]
    total = sum(digits[0:7:2]) + sum(digit * 2 // 10 + digit * 2 % 10 for digit in digits[1:7:2])
    return (10 - (total + 4) % 10) % 10 == digits[7]


def _is_belgian(digits: str) -> bool:
    return re.fullmatch(r"[01]\d{9}", digits) is not None and 97 - int(digits[:8]) % 97 == int(digits[8:])


def _is_french(body: str) -> bool:
    if not re.fullmatch(r"\d{11}", body):
        return re.fullmatch(r"[0-9A-HJ-NP-Z]{2}\d{9}", body) is not None  # keys with letters follow another rule
    return (12 + 3 * (int(body[2:]) % 97)) % 97 == int(body[:2])


def _is_italian(digits: str) -> bool:
    """Check digit by Luhn."""
    if not re.fullmatch(r"\d{11}", digits):
        return False
    doubled = (2 * int(digit) for digit in digits[1::2])
    return (sum(map(int, digits[0::2])) + sum(twice // 10 + twice % 10 for twice in doubled)) % 10 == 0


_VAT_CHECKS: dict[str, Callable[[str], bool]] = {
    "AT": _is_austrian,
    "BE": _is_belgian,
    "DE": _is_german,
    "FR": _is_french,
    "IT": _is_italian,
}
