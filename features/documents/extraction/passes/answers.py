"""Reads the text of an answer, even if it is cut or not quite what was asked.

A value of the wrong type is converted if it has one meaning; otherwise its leaf is asked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Any

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.leaf import Leaf, LeafType
from features.documents.extraction.fields.numbers import LARGEST, numbers
from features.documents.extraction.fields.paths import ITEM, Path, Place
from features.documents.extraction.fields.values import normal_forms
from features.documents.extraction.passes.findings import Answer, Reading
from features.documents.extraction.passes.partial_json import Node, parse

_UNREADABLE = object()


class _Gap(Enum):
    """Why there is no reading."""

    MISSING = auto()
    UNREADABLE = auto()


def read_answer(text: str, group: Group, *, quotes: bool = True) -> Answer:
    """Return what an answer states for each leaf of a group, in the group's order, and the leaves it leaves out."""
    root = parse(text)
    readings: list[Reading] = []
    missing: list[Path] = []
    unreadable: list[Path] = []
    for leaf in group.leaves:
        results = list(_readings(root, (), leaf.path, leaf, quotes=quotes))
        readings += [reading for reading in results if isinstance(reading, Reading)]
        gaps = {gap for gap in results if isinstance(gap, _Gap)}
        if gaps:
            missing.append(leaf.path)
        if gaps == {_Gap.UNREADABLE}:
            unreadable.append(leaf.path)
    readings.sort(key=lambda reading: reading.answer_start)
    is_cut = root is not None and not root.is_whole  # leaves are in order: the grammar enforces it
    cut_at = next((path for path in missing if path not in unreadable), None) if is_cut else None
    return Answer(readings=tuple(readings), missing=tuple(missing), unreadable=tuple(unreadable), cut_at=cut_at)


def _readings(node: Node | None, place: Place, path: Path, leaf: Leaf, *, quotes: bool) -> Iterator[Reading | _Gap]:
    """Yield the readings below a node, and a gap for each missing one."""
    if node is None:
        yield _Gap.MISSING
    elif not path:
        yield _reading(node, place, leaf, quotes=quotes)
    elif path[0] == ITEM:
        if not isinstance(node.value, list):
            yield _Gap.MISSING
            return
        for index, item in enumerate(node.value):
            yield from _readings(item, (*place, index), path[1:], leaf, quotes=quotes)
        if not node.is_whole:
            yield _Gap.MISSING
    elif isinstance(node.value, dict):
        yield from _readings(node.value.get(path[0]), (*place, path[0]), path[1:], leaf, quotes=quotes)
    else:
        yield _Gap.MISSING


def _reading(node: Node, place: Place, leaf: Leaf, *, quotes: bool) -> Reading | _Gap:
    quote, said_at = None, None
    if quotes and isinstance(node.value, dict):
        quote_node = node.value.get("quote")
        quote = (
            quote_node.value
            if quote_node is not None and isinstance(quote_node.value, str) and quote_node.value.strip()
            else None
        )
        value_node = node.value.get("value")
        if value_node is None:
            return _Gap.MISSING
        node, said_at = value_node, node.start
    value = typed(node.value, leaf)
    if value is _UNREADABLE:
        return _Gap.UNREADABLE
    inset = 1 if isinstance(node.value, str) else 0
    return Reading(
        place=place,
        value=value,
        quote=quote,
        answer_start=node.start + inset,
        answer_end=node.end - inset,
        said_at=said_at,
    )


def typed(value: Any, leaf: Leaf) -> Any:
    """Return a value converted to its leaf's type, or _UNREADABLE if ambiguous. A text of only blanks is null."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if leaf.enum is not None:
        return value if value in leaf.enum else _UNREADABLE
    if leaf.type is LeafType.STRING:
        return value if isinstance(value, str) else _UNREADABLE
    if leaf.type is LeafType.BOOLEAN:
        forms = normal_forms(value, leaf.kind)
        return next(iter(forms)) if len(forms) == 1 else _UNREADABLE
    return _number(value, leaf)


def _number(value: Any, leaf: Leaf) -> Any:
    if isinstance(value, str):
        forms = numbers(value)
        if len(forms) != 1:
            return _UNREADABLE
        number = next(iter(forms))
        value = int(number) if number == number.to_integral_value() else float(number)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        return _UNREADABLE
    if leaf.type is LeafType.INTEGER:
        return int(value) if value == int(value) else _UNREADABLE
    return value if value == float(value) else _UNREADABLE  # JSON readers would change such a number
