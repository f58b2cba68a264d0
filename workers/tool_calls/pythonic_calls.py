"""Calls as a list in Python's syntax, `[name(argument=value, …), …]`: their reader and the grammar of their arguments.

The parser is our own, because Python's prints warnings and can crash on deep nesting. Values may also be in JSON's
syntax, as in the grammar.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from workers.tool_calls.argument_schemas import arguments_of, json_rule
from workers.tool_calls.forms import MalformedCall

T = TypeVar("T")

_NAME = re.compile(r"[\w.-]+")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[A-Za-z]+")
_STRING = re.compile(r""""[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'""", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_SPACE = re.compile(r"\s*")
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""} | {one: one for one in "\\'\"/"}


def read_pythonic(text: str) -> list[Any]:
    """Return the calls of an output that holds nothing else, each with `name` and `arguments`. Raise MalformedCall."""
    written = text.strip().removeprefix("<|python_start|>").removesuffix("<|python_end|>")  # Llama 4 may write them
    try:
        return _Parser(written).calls()
    except (ValueError, OverflowError, RecursionError):
        raise MalformedCall from None


def pythonic_arguments(rule: str, function: Mapping[str, Any]) -> list[str]:
    """Return the rules of a function's arguments, in the schema's order with values in JSON. Raise BodyError."""
    arguments = arguments_of(function)
    rules = [f'{rule}_after_{len(arguments)}: ""']
    for index, argument in enumerate(arguments):
        option = "" if argument.is_required else "?"
        rules.append(f"{rule}_{index}: {json.dumps(argument.name + '=')} {json_rule(argument.schema)}")
        rules.append(f'{rule}_after_{index}: (", " {rule}_{index}){option} {rule}_after_{index + 1}')
    required = [index for index, argument in enumerate(arguments) if argument.is_required]
    can_be_first = range(len(arguments))[: required[0] + 1 if required else None]
    starts = [f"{rule}_{index} {rule}_after_{index + 1}" for index in can_be_first]
    return [f"{rule}: {' | '.join(starts if required else [*starts, f'{rule}_after_{len(arguments)}'])}", *rules]


class _Parser:
    """Reads from left to right; a method raises MalformedCall if the text does not match."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._skip_space()

    def calls(self) -> list[Any]:
        calls = self._listed("[", self._call, "]")
        if self._position < len(self._text):
            raise MalformedCall
        return calls

    def _call(self) -> dict[str, Any]:
        return {"name": self._match(_NAME), "arguments": self._paired("(", lambda: self._match(_NAME), "=", ")")}

    def _value(self) -> Any:
        match self._text[self._position : self._position + 1]:
            case "[":
                return self._listed("[", self._value, "]")
            case "{":
                return self._paired("{", self._string, ":", "}")
            case '"' | "'":
                return self._string()
            case letter if letter.isalpha():
                return self._word()
            case _:
                return self._number()

    def _string(self) -> str:
        written = _ESCAPE.sub(_unescaped, self._match(_STRING)[1:-1])
        return written.encode("utf-16", "surrogatepass").decode("utf-16")  # joins pairs, and refuses lone surrogates

    def _word(self) -> bool | None:
        word = self._match(_WORD)
        if word not in _WORDS:
            raise MalformedCall
        return _WORDS[word]

    def _number(self) -> int | float:
        written = self._match(_NUMBER)
        return int(written) if written.lstrip("+-").isdigit() else float(written)

    def _paired(self, opening: str, key: Callable[[], str], between: str, closing: str) -> dict[str, Any]:
        def pair() -> tuple[str, Any]:
            name = key()
            self._expect(between)
            return name, self._value()

        pairs = self._listed(opening, pair, closing)
        values = dict(pairs)
        if len(values) < len(pairs):  # a key is repeated
            raise MalformedCall
        return values

    def _listed(self, opening: str, item: Callable[[], T], closing: str) -> list[T]:
        """Read items separated by commas, with an optional trailing comma."""
        self._expect(opening)
        items: list[T] = []
        while not self._has(closing):
            if items:
                self._expect(",")
                if self._has(closing):
                    break
            items.append(item())
        self._expect(closing)
        return items

    def _has(self, sign: str) -> bool:
        return self._text.startswith(sign, self._position)

    def _expect(self, sign: str) -> None:
        if not self._has(sign):
            raise MalformedCall
        self._position += len(sign)
        self._skip_space()

    def _match(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            raise MalformedCall
        self._position = match.end()
        self._skip_space()
        return match[0]

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._position)
        assert space is not None, "it also matches the empty string"
        self._position = space.end()


def _unescaped(escape: re.Match[str]) -> str:
    """Return the character of an escape in a string; an escape that Python does not know stays unchanged."""
    *codes, letter = escape.groups()
    code = next((code for code in codes if code is not None), None)
    return _ESCAPED.get(letter, escape[0]) if code is None else chr(int(code, 16))
