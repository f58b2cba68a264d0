"""Patterns of keys: `*` and `?` stay within a part, `**` is any number of parts. Pure, and never slow."""

from __future__ import annotations

from collections.abc import Sequence

_WILD = "*?"


def prefix_of(pattern: str) -> str:
    """Return how every key that matches begins, up to the last whole part: what has to be listed."""
    plain: list[str] = []
    for part in pattern.split("/"):
        if any(sign in part for sign in _WILD):
            return "".join(f"{each}/" for each in plain)
        plain.append(part)
    return pattern


def matches(pattern: str, key: str) -> bool:
    """Tell whether a key is meant by a pattern; one that ends in / means all that is below it."""
    return _parts_match((pattern + "**" if pattern.endswith("/") else pattern).split("/"), key.split("/"))


def _parts_match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    """Greedy: after a `**` only the last one that was met is tried again, so the time is their product at most."""
    at = index = 0
    star: int | None = None
    retry = 0
    while index < len(parts):
        if at < len(pattern) and pattern[at] == "**":
            star, retry = at, index
            at += 1
        elif at < len(pattern) and _text_matches(pattern[at], parts[index]):
            at += 1
            index += 1
        elif star is not None:
            retry += 1
            at, index = star + 1, retry
        else:
            return False
    return all(part == "**" for part in pattern[at:])


def _text_matches(pattern: str, text: str) -> bool:
    at = index = 0
    star: int | None = None
    retry = 0
    while index < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, retry = at, index
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[index]):
            at += 1
            index += 1
        elif star is not None:
            retry += 1
            at, index = star + 1, retry
        else:
            return False
    return all(sign == "*" for sign in pattern[at:])
