"""Recursive descent parser for checks; errors name the place and the supported syntax.

Names refer to the schema's leaves and arrays. Length and depth are limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import date
from decimal import Decimal

from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.expressions import (
    FUNCTIONS,
    Binary,
    Call,
    Expression,
    Literal,
    Name,
    Node,
    Not,
)
from features.documents.extraction.fields.paths import ITEM, Path

MAX_CHARACTERS = 500
MAX_DEPTH = 20
"""Nesting of brackets, calls and signs."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)|(?P<text>'[^']*'|\"[^\"]*\")"
    r"|(?P<sign>==|!=|<=|>=|[<>+\-*/()]))"
)
_WORDS = {"and", "or", "not"}
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")


def parse_expression(text: str, leaves: Collection[Path]) -> Expression:
    """Return the expression of a check over the leaves of a schema. Raises SchemaError."""
    return Expression(text=text, root=_Parser(text, _names(leaves)).parse())


def _names(leaves: Collection[Path]) -> dict[str, Path]:
    """Return the path of each leaf and array by its name in checks."""
    arrays = {path[: end + 1] for path in leaves for end, part in enumerate(path) if part == ITEM}
    return {".".join(part for part in path if part != ITEM): path for path in [*arrays, *leaves]}


class _Parser:
    def __init__(self, text: str, names: dict[str, Path]) -> None:
        self._text = text
        self._names = names
        if len(text) > MAX_CHARACTERS:
            raise SchemaError(f"The check {text[:40]!r}… has over {MAX_CHARACTERS} characters. Make it several checks.")
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        root = self._or()
        if self._next < len(self._tokens):
            raise self._error(f"{self._peek()!r} is not understood after what is before it")
        return root

    def _split(self) -> list[str]:
        tokens, start, end = [], 0, len(self._text.rstrip())
        while start < end:
            match = _TOKEN.match(self._text, start)
            if match is None:
                raise self._error(f"{self._text[start:].lstrip()[0]!r} is no sign of a check")
            tokens.append(match.group().strip())
            start = match.end()
        return tokens

    def _error(self, reason: str) -> SchemaError:
        return SchemaError(
            f"In the check {self._text!r}: {reason}. A check compares numbers, dates and texts of fields,"
            " as in 'sum(lines.amount) == net' or 'all(lines.from <= lines.to)'; it knows + - * / == != < <= > >="
            f" and or not, and {', '.join(FUNCTIONS)}."
        )

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _accept(self, *tokens: str) -> str | None:
        if (token := self._peek()) in tokens and token:
            self._next += 1
            return token
        return None

    def _or(self) -> Node:
        node = self._and()
        while self._accept("or"):
            node = Binary("or", node, self._and())
        return node

    def _and(self) -> Node:
        node = self._not()
        while self._accept("and"):
            node = Binary("and", node, self._not())
        return node

    def _not(self) -> Node:
        if self._accept("not"):
            return Not(self._deeper(self._not))
        return self._comparison()

    def _comparison(self) -> Node:
        left = self._sum()
        sign = self._accept(*_COMPARISONS)
        return left if sign is None else Binary(sign, left, self._sum())

    def _sum(self) -> Node:
        node = self._product()
        while sign := self._accept("+", "-"):
            node = Binary(sign, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._signed()
        while sign := self._accept("*", "/"):
            node = Binary(sign, node, self._signed())
        return node

    def _signed(self) -> Node:
        if self._accept("-"):
            return Binary("-", Literal(Decimal(0)), self._deeper(self._signed))
        return self._primary()

    def _primary(self) -> Node:
        token = self._peek()
        self._next += 1
        if token == "(":
            return self._closed()
        if token[:1].isdigit():
            return Literal(Decimal(token))
        if token[:1] in ("'", '"') and token:
            return Literal(_date_or_text(token[1:-1]))
        if token in FUNCTIONS and self._accept("("):
            return Call(token, self._closed())
        if token in self._names:
            return Name(self._names[token])
        raise self._error(self._unknown(token))

    def _unknown(self, token: str) -> str:
        if not token or token in _WORDS:
            return "something is missing at its end" if not token else f"a value is missing before {token!r}"
        if not token[0].isalpha():
            return f"a value is missing before {token!r}"
        return f"{token!r} is no field; there are {', '.join(sorted(self._names)[:12])}"

    def _closed(self) -> Node:
        node = self._deeper(self._or)
        if not self._accept(")"):
            raise self._error("a bracket is not closed")
        return node

    def _deeper(self, read: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"it is nested deeper than {MAX_DEPTH} levels")
        node = read()
        self._depth -= 1
        return node


def _date_or_text(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text
