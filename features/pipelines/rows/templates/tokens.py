"""Tokenises a template's code without running it: names, strings and signs with their positions.

It splits as minijinja does; invalid code is left for minijinja's own error message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPENING = re.compile(r"\{[{%#]")
_COMMENT_END = re.compile(r"#\}")
_RAW = re.compile(r"\{%[-+]?\s*raw\s*[-+]?%\}")
_END_OF_RAW = re.compile(r"\{%[-+]?\s*endraw\s*[-+]?%\}")
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<name>[^\W\d]\w*)
    |(?P<number>\d[\w.]*)
    |(?P<sign>\*\*|//|==|!=|<=|>=|.)""",
    re.VERBOSE | re.DOTALL,
)
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, slots=True)
class Token:
    """One word of code."""

    kind: str
    """string, name, number or sign."""
    text: str
    position: int
    """Characters from the start of the source."""


@dataclass(frozen=True, slots=True)
class Block:
    """The code between `{{` and `}}`, or `{%` and `%}`."""

    is_statement: bool
    tokens: tuple[Token, ...]


def blocks_of(source: str) -> Iterator[Block]:
    """Yield the code of a template block by block, without comments and raw text."""
    position = 0
    while (opening := _OPENING.search(source, position)) is not None:
        start = opening.start()
        if opening.group() == "{#":
            position = _end_of(_COMMENT_END, source, start)
        elif (raw := _RAW.match(source, start)) is not None:
            position = _end_of(_END_OF_RAW, source, raw.end())
        else:
            tokens, position = _code(source, start + 2, closing="%}" if opening.group() == "{%" else "}}")
            yield Block(opening.group() == "{%", tokens)


def _end_of(pattern: re.Pattern[str], source: str, start: int) -> int:
    match = pattern.search(source, start)
    return len(source) if match is None else match.end()


def _code(source: str, position: int, *, closing: str) -> tuple[tuple[Token, ...], int]:
    """Return the tokens up to the sign that ends the block, and the position after it."""
    tokens: list[Token] = []
    depth = 0
    while position < len(source):
        if depth == 0 and source.startswith(closing, position):
            return tuple(tokens), position + 2
        match = _TOKEN.match(source, position)
        assert match is not None  # the last alternative matches any character
        kind, text = str(match.lastgroup), match.group()
        if kind == "sign":
            depth += (text in _BRACKETS) - (text in _BRACKETS.values() and depth > 0)
        if kind != "space":
            tokens.append(Token(kind, text, position))
        position = match.end()
    return tuple(tokens), position
