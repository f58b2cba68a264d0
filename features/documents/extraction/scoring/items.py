"""Items that people added to lists of a record or dropped from them, and the resulting record.

Items keep their numbers: extracted ones count from 0, added ones follow, and the number of a dropped item is not
reused, so that `lines[3]` means the same to everybody. Only in the final record the remaining items are renumbered.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.fields.allowed import problem_of
from features.documents.extraction.fields.paths import ITEM, Path, Place, place_of, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.examples import values_at
from features.documents.extraction.scoring.verdicts import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemChange:
    """An item that somebody added or dropped; `value` is that of an added one."""

    place: Place
    """Of the item, by its number."""
    change: Change
    value: Any
    by: str
    at: int
    """Unix seconds."""


@dataclass(frozen=True)
class Items:
    """The lists of one record with all changes, in the order in which they were made."""

    extracted: Mapping[str, Any]
    """The fields of the record, as extracted."""
    changes: Sequence[ItemChange]

    @cached_property
    def dropped(self) -> frozenset[Place]:
        return frozenset(each.place for each in self.changes if each.change is Change.DROP)

    @cached_property
    def added(self) -> Mapping[Place, ItemChange]:
        """Return additions by place, the items of each list in the order of their numbers."""
        additions = (each for each in self.changes if each.change is Change.ADD)
        return {each.place: each for each in sorted(additions, key=lambda each: int(each.place[-1]))}

    def with_added(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields that include the added items, each at its number, and still the dropped ones."""
        extended = copy.deepcopy(dict(fields))
        for place, each in self.added.items():
            at(extended, place[:-1]).append(copy.deepcopy(each.value))
        return extended

    def is_dropped(self, place: Place) -> bool:
        """Tell whether a place is a dropped item or inside one."""
        return any(place[:end] in self.dropped for end in range(1, len(place) + 1))

    def recounted(self, place: Place) -> Place:
        """Return a place after removal of the dropped items."""
        return tuple(
            part if isinstance(part, str) else part - self._num_dropped_before(place[: end + 1])
            for end, part in enumerate(place)
        )

    def left(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with the added items and without the dropped ones."""
        remaining = self.with_added(fields)
        for place in sorted(self.dropped, key=lambda place: (-len(place), -int(place[-1]))):
            del at(remaining, place[:-1])[place[-1]]
        return remaining

    def told(self, evidence: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return each change as shown in a record, with the evidence of dropped values."""
        stood = self.with_added(self.extracted) if self.changes else {}
        return [
            {
                "item": spell(each.place),
                "change": each.change.value,
                "path": None if self.is_dropped(each.place) else spell(self.recounted(each.place)),
                "value": at(stood, each.place),
                "evidence": [one for one in evidence if _is_in(place_of(one["path"]), each.place)],
                "by": each.by,
                "at": each.at,
            }
            for each in self.changes
        ]

    def known(self) -> Iterator[str]:
        """Yield the final places of the values of added items, and of lists in them."""
        for place, each in self.added.items():
            if not self.is_dropped(place):
                yield from map(spell, _places(each.value, self.recounted(place)))

    def absent(self) -> dict[str, list[Any]]:
        """Return extracted items that the document does not have, by the final place of their list."""
        absent: dict[str, list[Any]] = {}
        for place in sorted(self.dropped - self.added.keys(), key=spell):
            if not self.is_dropped(place[:-1]):
                absent.setdefault(spell(self.recounted(place[:-1])), []).append(at(self.extracted, place))
        return absent

    def _num_dropped_before(self, place: Place) -> int:
        return sum(1 for one in self.dropped if one[:-1] == place[:-1] and int(one[-1]) < int(place[-1]))


def lists_of(schema: FieldSchema, items: Items) -> Iterator[tuple[Place, Path]]:
    """Yield the place and path of each list that items can be added to; added items are complete, lists included."""
    for array in schema.arrays():
        for place, value in values_at(items.extracted, array):
            if isinstance(value, list) and not items.is_dropped(place):
                yield place, array


def item_of(schema: FieldSchema, array: Path, item: Any, *, name: str) -> Any:
    """Return an item in the form of a record; missing parts become null. Raises ExtractionError."""
    value = _read(schema, (*array, ITEM), item, name)
    if not _has_value(schema, (*array, ITEM), value):
        raise ExtractionError(f"{name} has no value. Give the values that the document has.")
    return value


def at(fields: Any, place: Place) -> Any:
    """Return the value at a place."""
    for part in place:
        fields = fields[part]
    return fields


def _read(schema: FieldSchema, path: Path, value: Any, name: str) -> Any:
    leaf = next((leaf for leaf in schema.leaves if leaf.path == path), None)
    if leaf is not None:
        problem = None if value is None else problem_of(leaf, value)
        if problem is not None:
            raise ExtractionError(f"{name} cannot be {str(value)[:100]!r}: {problem}.")
        return value
    names = list(dict.fromkeys(one.path[len(path)] for one in schema.leaves if one.path[: len(path)] == path))
    if names == [ITEM]:
        return _read_list(schema, path, [] if value is None else value, name)
    value = {} if value is None else value
    if not isinstance(value, Mapping) or not value.keys() <= set(names):
        raise ExtractionError(f"{name} cannot be {str(value)[:100]!r}: it must be an object of {', '.join(names)}.")
    return {part: _read(schema, (*path, part), value.get(part), f"{name}.{part}") for part in names}


def _read_list(schema: FieldSchema, path: Path, items: Any, name: str) -> list[Any]:
    max_items = schema.containers[path].max_items
    if not isinstance(items, list) or (max_items is not None and len(items) > max_items):
        most = "" if max_items is None else f" of at most {max_items:,} items"
        raise ExtractionError(f"{name} cannot be {str(items)[:100]!r}: it must be a list{most}.")
    return [item_of(schema, path, item, name=f"{name}[{index}]") for index, item in enumerate(items)]


def _places(value: Any, place: Place) -> Iterator[Place]:
    """Yield the places of the values in an item; a nested list counts as a whole."""
    if not isinstance(value, Mapping):
        yield place
        return
    for name, inner in value.items():
        yield from _places(inner, (*place, name))


def _has_value(schema: FieldSchema, path: Path, value: Any) -> bool:
    """Tell whether an item has any value: an empty text counts if it is one of a leaf's choices."""
    if isinstance(value, Mapping):
        return any(_has_value(schema, (*path, name), inner) for name, inner in value.items())
    if value == "":
        return "" in (schema.leaf(path).enum or ())
    return value is not None and value != []


def _is_in(place: Place, item: Place) -> bool:
    return place[: len(item)] == item
