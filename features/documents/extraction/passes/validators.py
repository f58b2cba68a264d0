"""Checks of values without a model: calendar dates, check digits, bounds, and the schema's own checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from features.documents.extraction.fields.leaf import Leaf, LeafType
from features.documents.extraction.fields.numbers import CURRENCY_CODES
from features.documents.extraction.fields.paths import Path, Place
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.check_digits import is_iban, is_vat_id
from features.documents.extraction.passes.examples import values_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A problem of one value or, for a check, of every value at its paths."""

    paths: tuple[Path, ...]
    reason: str
    place: Place | None = None
    """The place of the one value; None for a check."""

    def is_about(self, path: Path, place: Place) -> bool:
        """Tell whether it concerns the value of a leaf at a place."""
        return path in self.paths and self.place in (None, place)


def violations(schema: FieldSchema, fields: Mapping[str, Any]) -> list[Violation]:
    """Return the problems of a document's fields; null has none."""
    problems = [
        Violation(paths=(leaf.path,), place=place, reason=reason)
        for leaf in schema.leaves
        for place, value in values_at(fields, leaf.path)
        if value is not None
        for reason in value_violations(leaf, value)
    ]
    failed = [check for check in schema.checks if check.holds(fields) is False]
    return problems + [Violation(paths=check.paths(), reason=f"the check {check.text} fails") for check in failed]


def value_violations(leaf: Leaf, value: Any) -> list[str]:
    """Return the problems of one value, in words."""
    if leaf.type in (LeafType.NUMBER, LeafType.INTEGER):
        return _number_violations(leaf, value)
    return _text_violations(leaf, value) if isinstance(value, str) else []


def _number_violations(leaf: Leaf, value: float) -> list[str]:
    bounds: tuple[tuple[str, Callable[[float, float], bool], str], ...] = (
        ("minimum", lambda number, bound: number < bound, "is below the least of"),
        ("maximum", lambda number, bound: number > bound, "is above the most of"),
        ("exclusiveMinimum", lambda number, bound: number <= bound, "must be above"),
        ("exclusiveMaximum", lambda number, bound: number >= bound, "must be below"),
    )
    return [
        f"{value:g} {relation} {leaf.schema[name]:g}"
        for name, is_broken, relation in bounds
        if name in leaf.schema and is_broken(value, leaf.schema[name])
    ]


def _text_violations(leaf: Leaf, value: str) -> list[str]:
    problems = []
    if leaf.format in _FORMATS:
        is_valid, reason = _FORMATS[leaf.format]
        if not is_valid(value):
            problems.append(reason)
    if len(value) > leaf.schema.get("maxLength", len(value)):
        problems.append(f"it has more than {leaf.schema['maxLength']} characters")
    return problems


def _is_day(value: str) -> bool:
    try:
        date.fromisoformat(value[:10])
    except ValueError:
        return False
    return True


def _is_currency(value: str) -> bool:
    return value in CURRENCY_CODES


def _is_mail_address(value: str) -> bool:
    return re.fullmatch(r"[^@\s]+@[^@\s]+\.[^@\s.]+", value) is not None


_FORMATS: dict[str | None, tuple[Callable[[str], bool], str]] = {
    "date": (_is_day, "it is no day of the calendar"),
    "date-time": (_is_day, "it is no day of the calendar"),
    "iban": (is_iban, "its check digits do not fit an IBAN"),
    "vat-id": (is_vat_id, "its check digit does not fit a VAT number"),
    "currency": (_is_currency, "it is no code of a currency"),
    "email": (_is_mail_address, "it is no mail address"),
}
