"""Amounts of money: stored as whole pico-units of currency (10⁻¹²), shown in units of currency. No table.

Amounts are divided and rounded only for display; the API shows some in micro-units. A price is the pico-units of one
token, which equals the micro-units of a million: the API shows it so.
"""

from __future__ import annotations

import re
from decimal import Decimal

PICOS_A_MICRO = 1_000_000
PRICED_TOKENS = 1_000_000
"""Prices are entered and shown per this many tokens, and stored per token."""
_CURRENCY_DIGITS = 12  # of a pico-unit
PICOS_A_UNIT = 10**_CURRENCY_DIGITS
_AMOUNT = re.compile(r"[0-9]{1,15}(\.[0-9]{1,12})?", re.ASCII)


def rounded_micros(picos: int) -> int:
    """Return an amount as whole micro-units of currency, rounded half up."""
    return (picos + PICOS_A_MICRO // 2) // PICOS_A_MICRO


def in_currency(picos: int) -> str:
    """Return an exact amount in units of currency, such as `0.000045` or `12.50`: two decimals or more."""
    whole, part = divmod(abs(picos), 10**_CURRENCY_DIGITS)
    digits = f"{part:0{_CURRENCY_DIGITS}}".rstrip("0").ljust(2, "0")
    return f"{'-' if picos < 0 else ''}{whole}.{digits}"


def from_currency(text: str, *, digits: int = _CURRENCY_DIGITS) -> int:
    """Parse an amount such as `0.15`, exactly, as a whole number of its 10⁻ᵈⁱᵍⁱᵗˢ parts. Raises ValueError."""
    amount = Decimal(text) if _AMOUNT.fullmatch(text) else None
    scaled = None if amount is None else amount.scaleb(digits)
    if scaled is None or scaled != scaled.to_integral_value():
        raise ValueError(f"{text[:40]!r} is no amount of currency with at most {digits} digits behind the point")
    return int(scaled)
