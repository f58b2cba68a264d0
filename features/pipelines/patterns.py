"""Patterns of keys: `*` and `?` match within a part, `**` matches any number of parts. Pure, in bounded time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_WILD = "*?"


def prefix_of(pattern: str) -> str:
    """Return the longest prefix of whole parts that every matching key has, for listing."""
    plain: list[str] = []
    for part in pattern.split("/"):
        if any(sign in part for sign in _WILD):
            return "".join(f"{each}/" for each in plain)
        plain.append(part)
    return pattern


def is_pattern(key: str) -> bool:
    """Tell whether a key may match other keys than itself."""
    return key.endswith("/") or any(sign in key for sign in _WILD)


def matches(pattern: str, key: str) -> bool:
    """Tell whether a key matches a pattern; a pattern that ends in / matches everything below it."""
    return _parts_match((pattern + "**" if pattern.endswith("/") else pattern).split("/"), key.split("/"))


def _parts_match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return _fits(pattern, parts, many="**", fits_one=_text_matches)


def _text_matches(pattern: str, text: str) -> bool:
    return _fits(pattern, text, many="*", fits_one=lambda sign, letter: sign in ("?", letter))


def _fits(pattern: Sequence[str], items: Sequence[str], *, many: str, fits_one: Callable[[str, str], bool]) -> bool:
    """Tell whether all items match, where `many` matches any number of them.

    Greedy: only the last `many` is retried, so the time is bounded by the product of the lengths.
    """
    at = index = 0
    met: int | None = None
    retry = 0
    while index < len(items):
        if at < len(pattern) and pattern[at] == many:
            met, retry = at, index
            at += 1
        elif at < len(pattern) and fits_one(pattern[at], items[index]):
            at += 1
            index += 1
        elif met is not None:
            retry += 1
            at, index = met + 1, retry
        else:
            return False
    return all(each == many for each in pattern[at:])
