r"""Rewrite `\d`, `\w`, `\s` and their opposites in regexes as the ASCII classes that they are in most engines.

llguidance uses Rust's regexes, in which they cover all of Unicode: a date may be written in Devanagari digits. With the
flag `u`, `(?u)` or `(?u:…)` in a regex or behind one of Lark, they keep that meaning. Under `(?i)` a class that lists
one among others also has the two letters that fold to ASCII, ſ and the Kelvin sign. Invalid regexes are left to
llguidance to refuse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

_INSIDE = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\x09-\x0D\x20"}
_INSIDE |= {name.upper(): f"[^{members}]" for name, members in _INSIDE.items()}
_OUTSIDE = {name: members if name.isupper() else f"[{members}]" for name, members in _INSIDE.items()}

_FLAGS = re.compile(r"\(\?([A-Za-z]*)(?:-([A-Za-z]*))?([:)])")
_OPERATORS = ("&&", "--", "~~")
_LITERAL = re.compile(r"\\.|.", re.DOTALL)
_ITEM = re.compile(r"\[\^?(?:\]|-*)|&&|--|~~|\\.|.", re.DOTALL)
"""Items in brackets: the opening, with what is literal only there; operators that join two sets; a character."""
_RANGE = re.compile(r"-(?![\]-])")
_SPACED_RANGE = re.compile(r"\s*-\s*(?![\]\s-])")

_LARK = re.compile(
    r"""
    "(?: [^"\\\n] | \\. )*"
  | (?: \# | // ) [^\n]*
  | (?P<json> % (?: json | llguidance | regex ) \b \s* )
  | / (?P<regex> (?: [^/\\] | \\. )+ ) / (?P<flags> [imslux]* )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flags:
    """The flags that are set at the current position."""

    has_unicode: bool = False
    ignores_case: bool = False
    is_verbose: bool = False

    def changed(self, names: str, *, to: bool) -> _Flags:
        fields = {"u": "has_unicode", "i": "ignores_case", "x": "is_verbose"}
        return replace(self, **{fields[name]: to for name in names if name in fields})


def ascii_regex(regex: str) -> str:
    """Return a regex in Rust's syntax with ASCII classes."""
    return "".join(_written(regex, _Flags()))


def ascii_lark(grammar: str) -> str:
    """Return a Lark grammar whose regexes have ASCII classes."""
    written: list[str] = []
    position = 0
    while (match := _LARK.search(grammar, position)) is not None:
        regex, end = match["regex"], match.end()
        text = match[0]
        if match["json"] is not None:
            end = _end_of_json(grammar, end)
            text = grammar[match.start() : end]
        elif regex is not None:
            flags = _Flags().changed(match["flags"], to=True)
            text = f"/{''.join(_written(regex, flags))}/{match['flags']}"
        written += grammar[position : match.start()], text
        position = end
    return "".join([*written, grammar[position:]])


def _end_of_json(text: str, start: int) -> int:
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return start  # llguidance reports the error


def _written(regex: str, flags: _Flags) -> Iterator[str]:
    """Yield a regex in pieces, with its classes rewritten."""
    outer: list[_Flags] = []  # of the open groups
    position = 0
    while position < len(regex):
        start, sign = position, regex[position]
        position += 1
        if sign == "\\":
            position += 1
            yield _outside(regex[start:position], flags)
            continue
        if sign == "[":
            text, position = _bracketed(regex, start, flags)
            yield text
            continue
        if sign == "(":
            outer.append(flags)
            if (match := _FLAGS.match(regex, start)) is not None:
                position = match.end()
                flags = flags.changed(match[1], to=True).changed(match[2] or "", to=False)
                if match[3] == ")":
                    outer.pop()
        elif sign == ")" and outer:
            flags = outer.pop()
        elif sign == "#" and flags.is_verbose:
            position = (regex + "\n").index("\n", start)
        yield regex[start:position]


def _outside(escape: str, flags: _Flags) -> str:
    members = _OUTSIDE.get(escape[1:])
    if members is None or flags.has_unicode:
        return escape
    return f"(?-i:{members})" if flags.ignores_case else members


def _bracketed(regex: str, start: int, flags: _Flags) -> tuple[str, int]:
    """Return a class in brackets, with the classes in it rewritten, and where it ends.

    An escape at an end of a range is kept: llguidance refuses it.
    """
    behind = _SPACED_RANGE if flags.is_verbose else _RANGE
    written: list[str] = []
    depth, position = 0, start
    while position < len(regex):
        item = _ITEM.match(regex, position)
        assert item is not None, "any character is an item"
        position, text = item.end(), item[0]
        if text[0] == "[":
            depth += 1
        elif text == "]":
            depth -= 1
        elif text not in _OPERATORS and (sign := behind.match(regex, position)) is not None:
            last = _LITERAL.match(regex, sign.end())
            position = sign.end() if last is None else last.end()
            text = regex[item.start() : position]
        elif text[0] == "\\" and not flags.has_unicode:
            text = _INSIDE.get(text[1:], text)
        written.append(text)
        if depth == 0:
            break
    return "".join(written), position
