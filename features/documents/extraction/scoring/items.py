"""Items of lists that people added to a record, or dropped from it, and what they make of it.

An item keeps its number: those extracted have theirs from 0 on, those added the next ones, and one that is dropped
leaves its own to nobody. So two people who say `lines[3]` mean the same. Only in what is read at the end the items that
are left are counted anew. Knows no table.
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
    """The lists of one record with all that was done to them, in the order in which it was done."""

    extracted: Mapping[str, Any]
    """The fields of the record, as they were extracted."""
    changes: Sequence[ItemChange]

    @cached_property
    def dropped(self) -> frozenset[Place]:
        return frozenset(each.place for each in self.changes if each.change is Change.DROP)

    @cached_property
    def added(self) -> Mapping[Place, ItemChange]:
        """Return what was added by its place, the items of each list in the order of their numbers."""
        additions = (each for each in self.changes if each.change is Change.ADD)
        return {each.place: each for each in sorted(additions, key=lambda each: int(each.place[-1]))}

    def with_added(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields in which the added items stand too, each at its number, and those dropped still do."""
        found = copy.deepcopy(dict(fields))
        for place, each in self.added.items():
            at(found, place[:-1]).append(copy.deepcopy(each.value))
        return found

    def is_dropped(self, place: Place) -> bool:
        """Tell whether something stands in an item that was dropped, or is one."""
        return any(place[:end] in self.dropped for end in range(1, len(place) + 1))

    def recounted(self, place: Place) -> Place:
        """Return where something stands once what was dropped is away."""
        return tuple(
            part if isinstance(part, str) else part - self._num_dropped_before(place[: end + 1])
            for end, part in enumerate(place)
        )

    def left(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return fields with what was added, and without what was dropped."""
        found = self.with_added(fields)
        for place in sorted(self.dropped, key=lambda place: (-len(place), -int(place[-1]))):
            del at(found, place[:-1])[place[-1]]
        return found

    def told(self, evidence: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return each change as a record tells it, with the evidence of what was dropped."""
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
        """Yield where the values of added items stand at the end, and lists in them."""
        for place, each in self.added.items():
            if not self.is_dropped(place):
                yield from map(spell, _places(each.value, self.recounted(place)))

    def absent(self) -> dict[str, list[Any]]:
        """Return what was extracted and is no item of the document, by where its list stands at the end."""
        found: dict[str, list[Any]] = {}
        for place in sorted(self.dropped - self.added.keys(), key=spell):
            if not self.is_dropped(place[:-1]):
                found.setdefault(spell(self.recounted(place[:-1])), []).append(at(self.extracted, place))
        return found

    def _num_dropped_before(self, place: Place) -> int:
        return sum(1 for one in self.dropped if one[:-1] == place[:-1] and int(one[-1]) < int(place[-1]))


def lists_of(schema: FieldSchema, items: Items) -> Iterator[tuple[Place, Path]]:
    """Yield the place and the path of each list to which items can be added; what is added is given whole."""
    for array in schema.arrays():
        for place, value in values_at(items.extracted, array):
            if isinstance(value, list) and not items.is_dropped(place):
                yield place, array


def item_of(schema: FieldSchema, array: Path, given: Any, *, name: str) -> Any:
    """Return an item as a record has it: what was left out of it is null. Raises ExtractionError."""
    found = _read(schema, (*array, ITEM), given, name)
    if not _has_value(schema, (*array, ITEM), found):
        raise ExtractionError(f"{name} has no value. Give what the document has of it.")
    return found


def at(fields: Any, place: Place) -> Any:
    """Return what stands at a place."""
    for part in place:
        fields = fields[part]
    return fields


def _read(schema: FieldSchema, path: Path, given: Any, name: str) -> Any:
    leaf = next((leaf for leaf in schema.leaves if leaf.path == path), None)
    if leaf is not None:
        problem = None if given is None else problem_of(leaf, given)
        if problem is not None:
            raise ExtractionError(f"{name} cannot be {str(given)[:100]!r}: {problem}.")
        return given
    names = list(dict.fromkeys(one.path[len(path)] for one in schema.leaves if one.path[: len(path)] == path))
    if names == [ITEM]:
        return _read_list(schema, path, [] if given is None else given, name)
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not given.keys() <= set(names):
        raise ExtractionError(f"{name} cannot be {str(given)[:100]!r}: it must be an object of {', '.join(names)}.")
    return {part: _read(schema, (*path, part), given.get(part), f"{name}.{part}") for part in names}


def _read_list(schema: FieldSchema, path: Path, given: Any, name: str) -> list[Any]:
    max_items = schema.containers[path].max_items
    if not isinstance(given, list) or (max_items is not None and len(given) > max_items):
        most = "" if max_items is None else f" of at most {max_items:,} items"
        raise ExtractionError(f"{name} cannot be {str(given)[:100]!r}: it must be a list{most}.")
    return [item_of(schema, path, item, name=f"{name}[{index}]") for index, item in enumerate(given)]


def _places(value: Any, place: Place) -> Iterator[Place]:
    """Yield where the values in an item stand; a list in it is known as a whole."""
    if not isinstance(value, Mapping):
        yield place
        return
    for name, inner in value.items():
        yield from _places(inner, (*place, name))


def _has_value(schema: FieldSchema, path: Path, value: Any) -> bool:
    """Tell whether an item says anything: an empty text does where it is one of a leaf's choices."""
    if isinstance(value, Mapping):
        return any(_has_value(schema, (*path, name), inner) for name, inner in value.items())
    if value == "":
        return "" in (schema.leaf(path).enum or ())
    return value is not None and value != []


def _is_in(place: Place, item: Place) -> bool:
    return place[: len(item)] == item
