"""Amounts in options: prices, factors and budgets. Exact, or refused."""

from __future__ import annotations

from jobs.accounts.money import from_currency
from jobs.errors import InputError

_PRICE_DIGITS = 6  # micro-units
_FACTOR_DIGITS = 2  # per cent
_BUDGET_DIGITS = 12  # pico-units


def price(option: str, text: str | None) -> int | None:
    """Return a price in pico-units of currency per token. Raises InputError."""
    return _amount(option, text, digits=_PRICE_DIGITS, meaning="per million tokens, such as 0.15")


def factor(option: str, text: str | None) -> int | None:
    """Return a factor in per cent. Raises InputError."""
    return _amount(option, text, digits=_FACTOR_DIGITS, meaning="such as 2 or 0.5")


def _amount(option: str, text: str | None, *, digits: int, meaning: str) -> int | None:
    if text is None:
        return None
    try:
        return from_currency(text, digits=digits)
    except ValueError:
        raise InputError(
            f"{option} is {text[:40]!r}; give a number {meaning}, with at most {digits} decimal places"
        ) from None


def budget(option: str, text: str | None) -> int | None:
    """Return a budget in pico-units of currency. Raises InputError."""
    return _amount(option, text, digits=_BUDGET_DIGITS, meaning="such as 20")
