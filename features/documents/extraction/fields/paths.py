"""Paths and places of values in an answer: `lines[0].amount`, and for every item `lines[].amount`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

ITEM = "*"
"""In a path: any item of an array."""

Path = tuple[str, ...]
"""Path of a leaf: names of properties, and ITEM."""

Place = tuple[str | int, ...]
"""Place of a value: names of properties, and indexes from 0."""

_PART = re.compile(r"([^.\[\]]+)|\[(\d{1,9})\]")


def spell(path: Sequence[str | int]) -> str:
    """Return a path or a place in readable form."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part == ITEM:
            text += "[]"
        else:
            text += f".{part}" if text else part
    return text


def place_of(text: str) -> Place:
    """Return the place that `spell` spells like this. Raises ValueError if there is none."""
    parts = _PART.findall(text)
    place = tuple(int(index) if index else name for name, index in parts)
    if not place or spell(place) != text:
        raise ValueError(f"{text[:100]!r} is no place")
    return place


def path_of(place: Sequence[str | int]) -> Path:
    """Return the path of the leaf at a place."""
    return tuple(ITEM if isinstance(part, int) else part for part in place)


def build(values: Iterable[tuple[Place, Any]], arrays: Iterable[Path] = ()) -> dict[str, Any]:
    """Return the object with each value at its place; arrays at `arrays` exist even without items.

    Items must have the indexes 0, 1, 2 …; objects inside items are created as needed.
    """
    root: dict[str, Any] = {}
    for array in arrays:
        if ITEM not in array:
            _put(root, array, [])
    for place, value in values:
        _put(root, place, value)
    return root


def _put(root: dict[str, Any], place: Sequence[str | int], value: Any) -> None:
    node: Any = root
    for part, following in zip(place, (*place[1:], None), strict=True):
        new = value if following is None else [] if isinstance(following, int) else {}
        if isinstance(part, int):
            node.extend([None] * (part + 1 - len(node)))
            if following is None or node[part] is None:
                node[part] = new
        elif following is None or part not in node:
            node[part] = new
        node = node[part]
