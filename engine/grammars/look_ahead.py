r"""Rewrite a pattern that begins with look-aheads, which llguidance lacks, as several patterns that must all match.

`^(?=A)B` is `^(?:A)` and `^B`. `^(?!A)B` is `^B` and a pattern of what does not begin with A, where A is characters and
classes one after the other (`org\.`), one class repeated to the end (`[-+.]*$`) or anywhere in the first line (`.*\.`),
or a choice of such. A pattern with another look-ahead, or one that is repeated, is kept, to be refused.
"""

from __future__ import annotations

import re

_SET = r"\[\^?\]?(?:\\.|[^\\\[\]])*\]|\\[^\dbBckpPux]|[^\\.^$|()\[\]{}*+?]"
"""A class, an escaped character or class, or a character."""
_OF_SETS = re.compile(f"(?:{_SET})+", re.DOTALL)
_REPEATED = re.compile(rf"(?P<set>{_SET})(?P<sign>[*+])", re.DOTALL)
_ANYWHERE = re.compile(rf"\.\*(?P<set>{_SET})", re.DOTALL)
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|.", re.DOTALL)
_OPPOSITES = {"d": "D", "w": "W", "s": "S", "D": "d", "W": "w", "S": "s"}
_REST = r"[\s\S]*"
_QUANTIFIERS = ("*", "+", "?", "{")
_SET_OPERATION = re.compile(r"--|&&|~~|\|\|")
"""Within a class; dialects differ on what it means."""


def without_look_ahead(pattern: str) -> list[str] | None:
    """Return patterns of which all must match where `pattern` does; None if it cannot be rewritten."""
    if not pattern.startswith(("^(?=", "^(?!")):
        return None
    written: list[str] = []
    rest = pattern[1:]
    while rest.startswith(("(?=", "(?!")):
        end = _end_of_group(rest)
        if end is None or rest.startswith(_QUANTIFIERS, end):
            return None
        inner, is_negative, rest = rest[3 : end - 1], rest[2] == "!", rest[end:]
        others = _not_beginning_with(inner) if is_negative else [f"^(?:{inner})"]
        if others is None:
            return None
        written += others
    if len(_alternatives(rest)) > 1:
        return None  # only the first one would begin with ^
    return [f"^{rest}", *written]


def _not_beginning_with(pattern: str) -> list[str] | None:
    """Return patterns that all match the texts whose beginning this one does not match."""
    others = [_opposite(part) for part in _alternatives(pattern)]
    return None if None in others else [other for other in others if other is not None]


def _opposite(pattern: str) -> str | None:
    pattern = pattern.removeprefix("^")
    to_end = pattern.endswith("$") and not pattern.endswith("\\$")
    pattern = pattern.removesuffix("$") if to_end else pattern
    if _OF_SETS.fullmatch(pattern):
        return f"^{_other_beginnings(re.findall(_SET, pattern, re.DOTALL), to_end=to_end)}$"
    if to_end and (repeated := _REPEATED.fullmatch(pattern)):
        other = f"{_REST}{_other(repeated['set'])}{_REST}"
        return f"^({other}){'?' if repeated['sign'] == '+' else ''}$"
    if not to_end and (anywhere := _ANYWHERE.fullmatch(pattern)):
        return _without_in_first_line(anywhere["set"])
    return None


def _without_in_first_line(characters: str) -> str | None:
    """Return a regex of whole texts that `.*` and a character of a class do not begin, as `.` matches no line break.

    None if the class is not known here. A class with the line break matches the first one behind the line.
    """
    if _SET_OPERATION.search(characters):
        return None
    try:
        has_break = re.fullmatch(characters, "\n") is not None
    except re.error:
        return None
    further_lines = "" if has_break else f"(\\n{_REST})?"
    return f"^{_other(characters)}*{further_lines}$"


def _other_beginnings(sets: list[str], *, to_end: bool) -> str:
    """Return a regex of whole texts that do not begin with a character of each set; with `to_end`, are not of them."""
    written = ""
    for index, each in reversed(list(enumerate(sets))):
        is_last = index == len(sets) - 1
        further = [f"{each}[\\s\\S]+"] if is_last and to_end else [] if is_last else [f"{each}{written}"]
        written = f"({'|'.join([f'{_other(each)}{_REST}', *further])})?"
    return written


def _other(characters: str) -> str:
    """Return the class of all other characters."""
    if characters.startswith("[^"):
        return f"[{characters[2:]}"
    if characters.startswith("["):
        return f"[^{characters[1:]}"
    if characters[0] != "\\":
        return f"[^{re.escape(characters)}]"
    if characters[1] in _OPPOSITES:
        return f"\\{_OPPOSITES[characters[1]]}"
    return f"[^{characters}]"


def _end_of_group(text: str) -> int | None:
    """Return the end of the group that a text begins with."""
    depth = 0
    for token in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return None


def _alternatives(pattern: str) -> list[str]:
    """Return the parts between the outermost |."""
    parts, depth = [""], 0
    for token in _TOKEN.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += token[0]
    return parts
