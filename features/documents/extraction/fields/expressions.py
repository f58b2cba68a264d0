"""Checks such as `sum(lines.amount) == net`, over the values of one document.

Numbers are decimals, dates are days, and a path through an array yields a list: `lines.quantity * lines.price` has one
value per item. A missing value makes the result unknown, which is no failure. There is no `eval`, no loop, and no call
except the four functions. `expression_parser.py` parses checks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, DecimalException
from typing import Any

from features.documents.extraction.fields.paths import ITEM, Path

TOLERANCE = Decimal("0.005")
"""Half a cent: numbers with a smaller difference are equal, to allow for amounts rounded line by line."""

MAX_ITEMS = 100_000
"""Maximum number of values of a name; with more the result is unknown."""

Scalar = Decimal | date | str | bool | None
Value = Scalar | list[Scalar]


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a date or a text."""

    value: Scalar


@dataclass(frozen=True, slots=True)
class Name:
    """The values at a path, or the items of an array."""

    path: Path


@dataclass(frozen=True, slots=True)
class Call:
    """A call of one of FUNCTIONS with one argument."""

    function: str
    argument: Node


@dataclass(frozen=True, slots=True)
class Binary:
    """One of OPERATORS applied to two values."""

    operator: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Not:
    """Negation."""

    inner: Node


Node = Literal | Name | Call | Binary | Not


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A check as text and as a syntax tree."""

    text: str
    root: Node

    def paths(self) -> tuple[Path, ...]:
        """Return the paths that it uses."""
        return tuple(dict.fromkeys(_paths(self.root)))

    def holds(self, fields: Mapping[str, Any]) -> bool | None:
        """Tell whether it holds for a document's fields; None if a value is missing or of another kind."""
        try:
            result = _evaluate(self.root, fields)
        except (DecimalException, OverflowError, TypeError):
            return None
        return result if isinstance(result, bool) else None


def _paths(node: Node) -> list[Path]:
    match node:
        case Name(path):
            return [path]
        case Call(_, inner) | Not(inner):
            return _paths(inner)
        case Binary(_, left, right):
            return [*_paths(left), *_paths(right)]
        case Literal():
            return []


def _evaluate(node: Node, fields: Mapping[str, Any]) -> Value:
    match node:
        case Literal(value):
            return value
        case Name(path):
            values = _values(fields, path)
            return values if ITEM in path else values[0]
        case Call(name, argument):
            return FUNCTIONS[name](_evaluate(argument, fields))
        case Not(inner):
            return _each(_not, _evaluate(inner, fields))
        case Binary(sign, left, right):
            return _pairwise(OPERATORS[sign], _evaluate(left, fields), _evaluate(right, fields))


def _values(node: Any, path: Path) -> list[Scalar]:
    """Return the values at a path, those of an array's items in order."""
    nodes = [node]
    for part in path:
        if part == ITEM:
            nodes = [item for inner in nodes if isinstance(inner, list) for item in inner]
        else:
            nodes = [inner.get(part) if isinstance(inner, Mapping) else None for inner in nodes]
        if len(nodes) > MAX_ITEMS:
            raise OverflowError
    return [_scalar(value) for value in nodes]


def _scalar(value: Any) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return Decimal(str(value))
    return _date_or_text(value) if isinstance(value, str) else True  # an object counts as present


def _date_or_text(text: str) -> date | str:
    try:
        return date.fromisoformat(text[:10])
    except ValueError:
        return text


def _pairwise(function: Callable[[Any, Any], Scalar], left: Value, right: Value) -> Value:
    """Apply a function to two values, or item by item to lists."""
    if not isinstance(left, list) and not isinstance(right, list):
        return function(left, right)
    num_items = len(left) if isinstance(left, list) else len(right) if isinstance(right, list) else 0
    lefts, rights = (side if isinstance(side, list) else [side] * num_items for side in (left, right))
    if len(lefts) != len(rights):
        return None
    return [function(one, other) for one, other in zip(lefts, rights, strict=True)]


def _each(function: Callable[[Scalar], Scalar], value: Value) -> Value:
    return [function(one) for one in value] if isinstance(value, list) else function(value)


def _not(value: Scalar) -> Scalar:
    return None if value is None else not value


def _known(function: Callable[[Any, Any], Scalar]) -> Callable[[Any, Any], Scalar]:
    """Return a function of two values that returns None if one is missing."""
    return lambda left, right: None if left is None or right is None else function(left, right)


def _plus(left: Any, right: Any) -> Scalar:
    if isinstance(left, date) and isinstance(right, Decimal):
        return left + timedelta(days=int(right))
    return _numbers(operator.add, left, right)


def _minus(left: Any, right: Any) -> Scalar:
    if isinstance(left, date) and isinstance(right, date):
        return Decimal((left - right).days)
    if isinstance(left, date) and isinstance(right, Decimal):
        return left - timedelta(days=int(right))
    return _numbers(operator.sub, left, right)


def _numbers(function: Callable[[Any, Any], Scalar], left: Any, right: Any) -> Scalar:
    return function(left, right) if isinstance(left, Decimal) and isinstance(right, Decimal) else None


def _equal(left: Any, right: Any) -> Scalar:
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return abs(left - right) < TOLERANCE
    return bool(left == right) if type(left) is type(right) else None


def _ordered(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Scalar]:
    return lambda left, right: function(left, right) if type(left) is type(right) else None


def _and(left: Any, right: Any) -> Scalar:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _or(left: Any, right: Any) -> Scalar:
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


OPERATORS: dict[str, Callable[[Any, Any], Scalar]] = {
    "+": _known(_plus),
    "-": _known(_minus),
    "*": _known(lambda left, right: _numbers(operator.mul, left, right)),
    "/": _known(lambda left, right: _numbers(operator.truediv, left, right)),
    "==": _known(_equal),
    "!=": _known(lambda left, right: _not(_equal(left, right))),
    "<": _known(_ordered(operator.lt)),
    "<=": _known(_ordered(operator.le)),
    ">": _known(_ordered(operator.gt)),
    ">=": _known(_ordered(operator.ge)),
    "and": _and,
    "or": _or,
}


def _sum(value: Value) -> Scalar:
    values = _list(value)
    numbers = [number for number in values if isinstance(number, Decimal)]
    return sum(numbers, Decimal(0)) if len(numbers) == len(values) else None


def _len(value: Value) -> Scalar:
    return Decimal(len(value)) if isinstance(value, list) else None


def _all(value: Value) -> Scalar:
    values = _list(value)
    if any(one is False for one in values):
        return False
    return None if any(one is None for one in values) else True


def _abs(value: Value) -> Value:
    return _each(lambda one: abs(one) if isinstance(one, Decimal) else None, value)


def _list(value: Value) -> Sequence[Scalar]:
    return value if isinstance(value, list) else [value]


FUNCTIONS: dict[str, Callable[[Value], Value]] = {"abs": _abs, "all": _all, "len": _len, "sum": _sum}
