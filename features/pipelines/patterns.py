"""Patterns of keys: `*` and `?` stay within a part, `**` is any number of parts. Pure, and never slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_WILD = "*?"


def prefix_of(pattern: str) -> str:
    """Return how every key that matches begins, up to the last whole part: what has to be listed."""
    plain: list[str] = []
    for part in pattern.split("/"):
        if any(sign in part for sign in _WILD):
            return "".join(f"{each}/" for each in plain)
        plain.append(part)
    return pattern


def is_pattern(key: str) -> bool:
    """Tell whether it may mean other keys than itself."""
    return key.endswith("/") or any(sign in key for sign in _WILD)


def matches(pattern: str, key: str) -> bool:
    """Tell whether a key is meant by a pattern; one that ends in / means all that is below it."""
    return _parts_match((pattern + "**" if pattern.endswith("/") else pattern).split("/"), key.split("/"))


def _parts_match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return _fits(pattern, parts, many="**", fits_one=_text_matches)


def _text_matches(pattern: str, text: str) -> bool:
    return _fits(pattern, text, many="*", fits_one=lambda sign, letter: sign in ("?", letter))


def _fits(pattern: Sequence[str], given: Sequence[str], *, many: str, fits_one: Callable[[str, str], bool]) -> bool:
    """Tell whether all that is given is meant, where `many` means any number of them.

    Greedy: after a `many` only the last one that was met is tried again, so the time is the lengths' product at most.
    """
    at = index = 0
    met: int | None = None
    retry = 0
    while index < len(given):
        if at < len(pattern) and pattern[at] == many:
            met, retry = at, index
            at += 1
        elif at < len(pattern) and fits_one(pattern[at], given[index]):
            at += 1
            index += 1
        elif met is not None:
            retry += 1
            at, index = met + 1, retry
        else:
            return False
    return all(each == many for each in pattern[at:])
