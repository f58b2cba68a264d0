"""Parser for JSON that may be truncated: keeps complete values and their positions.

An answer that ran out of tokens, or has a syntax error, is read up to that point.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_BLANKS = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_STRINGS = json.JSONDecoder(strict=False)
_WORDS = {"true": True, "false": False, "null": None}
_AFTER_A_NUMBER = (" ", "\t", "\r", "\n", ",", "]", "}")
_MAX_NUMBER_CHARACTERS = 1_000
"""Well below the 4,300 digits at which Python refuses integers."""
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Node:
    """A value at [start, end) of the text: an object or array of nodes, or a scalar, which is always whole."""

    value: Any
    start: int
    end: int
    is_whole: bool = True


def parse(text: str) -> Node | None:
    """Return the first object of a text, as far as it can be read; None if there is none."""
    start = text.find("{")
    return None if start < 0 else _Reader(text).read(start, 0)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text

    def read(self, start: int, depth: int) -> Node | None:
        """Return the value at an index; None for a truncated scalar or a syntax error."""
        start = self._skip(start)
        first = self._text[start : start + 1]
        if first == "{" and depth < _MAX_DEPTH:
            return self._object(start, depth)
        if first == "[" and depth < _MAX_DEPTH:
            return self._array(start, depth)
        return self._string(start) if first == '"' else self._other(start)

    def _skip(self, index: int) -> int:
        match = _BLANKS.match(self._text, index)
        return match.end() if match else index

    def _object(self, start: int, depth: int) -> Node:
        members: dict[str, Node] = {}
        index = self._skip(start + 1)
        if self._text[index : index + 1] == "}":
            return Node(members, start, index + 1)
        while True:
            begin = self._skip(index)
            key = self._string(begin) if self._text[begin : begin + 1] == '"' else None
            colon = self._skip(key.end) if key else index
            if key is None or self._text[colon : colon + 1] != ":":
                return Node(members, start, index, is_whole=False)
            member = self.read(colon + 1, depth + 1)
            if member is not None:
                members[key.value] = member
            end = self._end_of(member, "}")
            if end is None or member is None:
                return Node(members, start, len(self._text), is_whole=False)
            index, is_last = end
            if is_last:
                return Node(members, start, index)

    def _array(self, start: int, depth: int) -> Node:
        items: list[Node] = []
        index = self._skip(start + 1)
        if self._text[index : index + 1] == "]":
            return Node(items, start, index + 1)
        while True:
            item = self.read(index, depth + 1)
            if item is not None:
                items.append(item)
            end = self._end_of(item, "]")
            if end is None:
                return Node(items, start, len(self._text), is_whole=False)
            index, is_last = end
            if is_last:
                return Node(items, start, index)

    def _end_of(self, inner: Node | None, closing: str) -> tuple[int, bool] | None:
        """Return the index after an inner value, and whether its container ends there; None if truncated."""
        if inner is None or not inner.is_whole:
            return None
        index = self._skip(inner.end)
        sign = self._text[index : index + 1]
        return (index + 1, sign == closing) if sign in (",", closing) and sign else None

    def _string(self, start: int) -> Node | None:
        try:
            value, end = _STRINGS.raw_decode(self._text, start)
        except json.JSONDecodeError:
            return None
        return Node(_without_halves(value), start, end)

    def _other(self, start: int) -> Node | None:
        for word, value in _WORDS.items():
            if self._text.startswith(word, start):
                return Node(value, start, start + len(word))
        match = _NUMBER.match(self._text, start)
        if match is None or self._text[match.end() : match.end() + 1] not in _AFTER_A_NUMBER:  # 1. is not 1
            return None
        if match.end() - start > _MAX_NUMBER_CHARACTERS:
            return None
        return Node(json.loads(match.group()), start, match.end())


def _without_halves(text: str) -> str:
    """Return a text with U+FFFD for unpaired surrogates, which JSON can escape but nothing can encode."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
