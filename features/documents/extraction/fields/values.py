"""Normal forms of values by kind, and comparison by them.

An ambiguous text has several normal forms.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from features.documents.extraction.fields.dates import dates
from features.documents.extraction.fields.leaf import Kind, Leaf
from features.documents.extraction.fields.numbers import LARGEST, currency, numbers

Normal = Hashable
"""A normal form: Decimal, date, bool, Amount or text."""

_YES = {"true", "yes", "y", "ja", "j", "x", "☑", "☒", "✓", "✔", "1"}
_NO = {"false", "no", "n", "nein", "☐", "0"}
_QUOTES = str.maketrans(
    {**dict.fromkeys("‘’‚‛´`′", "'"), **dict.fromkeys("“”„‟«»″", '"'), **dict.fromkeys("‐‑‒–—−", "-")}
)
_CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Amount:
    """Money to the cent, with its currency if known."""

    cents: Decimal
    currency: str | None = None


def normal_forms(value: Any, kind: Kind) -> frozenset[Normal]:
    """Return the possible meanings of a value from JSON or from a document; empty if it has none of this kind."""
    if value is None:
        return frozenset()
    if isinstance(value, bool) or kind is Kind.BOOLEAN:
        return _booleans(value)
    if kind is Kind.NUMBER:
        return frozenset(_numbers(value))
    if kind is Kind.MONEY:
        code = currency(value) if isinstance(value, str) else None
        return frozenset(Amount(number.quantize(_CENT), code) for number in _numbers(value))
    if kind is Kind.DATE:
        return frozenset(dates(value)) if isinstance(value, str) else frozenset()
    return frozenset({normal_text(str(value))})


def is_same(one: Any, other: Any, kind: Kind) -> bool:
    """Tell whether two values may mean the same. Amounts may if one of them has no currency."""
    if one is None or other is None:
        return one is other
    ones, others = normal_forms(one, kind), normal_forms(other, kind)
    if kind is not Kind.MONEY:
        return bool(ones & others)
    return any(_same_amount(left, right) for left in ones for right in others)


def is_same_for(leaf: Leaf, one: Any, other: Any) -> bool:
    """Tell whether two values of a leaf may mean the same."""
    return is_same(one, other, leaf.kind)


def normal_text(text: str) -> str:
    """Return a text without typographic differences: case, blanks, forms of quotes, ligatures."""
    plain = unicodedata.normalize("NFKC", text).translate(_QUOTES).casefold()
    return re.sub(r"\s+", " ", plain).strip().rstrip(".,;:").strip()


def _booleans(value: Any) -> frozenset[Normal]:
    if isinstance(value, bool):
        return frozenset({value})
    word = normal_text(str(value))
    return frozenset({True}) if word in _YES else frozenset({False}) if word in _NO else frozenset()


def _numbers(value: Any) -> frozenset[Decimal]:
    if isinstance(value, int | float):
        return frozenset({Decimal(str(value))} if -LARGEST < value < LARGEST else ())
    return numbers(value) if isinstance(value, str) else frozenset()


def _same_amount(one: Normal, other: Normal) -> bool:
    if not isinstance(one, Amount) or not isinstance(other, Amount):
        return one == other
    return one.cents == other.cents and (None in (one.currency, other.currency) or one.currency == other.currency)
