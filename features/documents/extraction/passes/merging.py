"""Merges findings of passages, groups and readings into one record: items are joined by keys, nothing is dropped.

Equal values keep all their spans; conflicting values stay candidates, the likeliest first. Spans must refer to the
document's text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import ITEM, Place, build, path_of
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.values import is_same_for, normal_forms
from features.documents.extraction.grounding.spans import Span, Status
from features.documents.extraction.passes.findings import Finding

_RANKS = {Status.EXACT: 3, Status.NORMALISED: 2, Status.FUZZY: 1, Status.NONE: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A value, and every finding that has it."""

    findings: tuple[Finding, ...]

    @property
    def best(self) -> Finding:
        """Return the most reliably grounded finding."""
        return max(self.findings, key=lambda finding: (_RANKS[finding.grounding.status], finding.grounding.likeness))

    @property
    def value(self) -> Any:
        """Return the value as the best finding has it."""
        return self.best.value

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return all places of the value."""
        return tuple(sorted({span for finding in self.findings for span in finding.spans}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """One leaf at one place of the record: its candidates, the first of which is its value."""

    place: Place
    leaf: Leaf
    candidates: tuple[Candidate, ...]
    is_nowhere: bool = False
    """Whether nothing that was answered occurs in the document: neither a value nor words that support it."""
    answer: Any = None
    """The answer that was replaced by null for that reason."""

    @property
    def value(self) -> Any:
        """Return the value that goes into the record."""
        return self.candidates[0].value


def merge(schema: FieldSchema, passages: Sequence[Sequence[Finding]]) -> list[Merged]:
    """Return one entry for each value of the record, in the schema's order; null only if no value was found."""
    leaves = {leaf.path: leaf for leaf in schema.leaves}
    items = _Items(leaves)
    by_place: dict[Place, list[Finding]] = {}
    for findings in passages:
        for finding, place in items.placed(findings):
            by_place.setdefault(place, []).append(finding)
    order = {path: index for index, path in enumerate(leaves)}
    places = sorted(
        by_place, key=lambda place: ([part for part in place if isinstance(part, int)], order[path_of(place)])
    )
    return [
        Merged(
            place=place, leaf=leaves[path_of(place)], candidates=_candidates(leaves[path_of(place)], by_place[place])
        )
        for place in places
    ]


def record(schema: FieldSchema, merged: Iterable[Merged]) -> dict[str, Any]:
    """Return the fields of a record; a leaf without a finding is null, and a list empty, also in items."""
    entries = list(merged)
    items = {each.place[:end] for each in entries for end, part in enumerate(each.place, 1) if isinstance(part, int)}
    nested = [array for array in schema.arrays() if ITEM in array]
    values: dict[Place, Any] = {}
    for leaf in schema.leaves:
        for array in (each for each in nested if each == leaf.path[: len(each)]):
            for place in _places(array, items):
                values.setdefault(place, [])
        values |= dict.fromkeys(_places(leaf.path, items), None)
    values |= {each.place: each.value for each in entries}
    return build(values.items(), schema.arrays())


def _places(path: Sequence[str], items: set[Place]) -> Iterator[Place]:
    """Yield the places of a leaf or list in existing items; none for an array's own values."""
    inner = len(path) - path[::-1].index(ITEM) if ITEM in path else 0
    if inner == len(path):
        return
    prefixes = [item for item in items if path_of(item) == tuple(path[:inner])] if inner else [()]
    yield from ((*prefix, *path[inner:]) for prefix in sorted(prefixes, key=str))


def _candidates(leaf: Leaf, findings: Sequence[Finding]) -> tuple[Candidate, ...]:
    groups: list[list[Finding]] = []
    for finding in findings:
        if finding.value is None:
            continue
        same = next((group for group in groups if is_same_for(leaf, group[0].value, finding.value)), None)
        if same is None:
            groups.append([finding])
        else:
            same.append(finding)
    candidates = sorted((Candidate(findings=tuple(group)) for group in groups), key=_rank, reverse=True)
    return tuple(candidates) or (Candidate(findings=tuple(findings)),)


def _rank(candidate: Candidate) -> tuple[bool, int, int]:
    status = candidate.best.grounding.status
    return status is not Status.NONE, len(candidate.findings), _RANKS[status]


class _Items:
    """Assigns the items of passages to items of the record."""

    def __init__(self, leaves: dict[Any, Leaf]) -> None:
        self._leaves = leaves
        self._known: dict[tuple[Place, Hashable], list[tuple[int, set[Span]]]] = {}
        self._counts: Counter[Place] = Counter()

    def placed(self, findings: Sequence[Finding]) -> Iterator[tuple[Finding, Place]]:
        """Yield the findings of one passage with their places in the record."""
        moved: dict[Place, Place] = {(): ()}
        seen: Counter[Hashable] = Counter()
        for item in _items_of(findings):
            inside = [finding for finding in findings if finding.place[: len(item)] == item]
            array = self._moved(item[:-1], moved)
            has_key, identity = self._identity(item, inside)
            spans = {span for finding in inside for span in finding.spans}
            if has_key or not spans:
                seen[array, identity] += 1
                identity = (identity, seen[array, identity])  # duplicates in one passage stay duplicates in the record
            index = self._index(array, identity, spans, has_key=has_key)
            moved[item] = (*array, index)
        for finding in findings:
            yield finding, self._moved(finding.place, moved)

    def _moved(self, place: Place, moved: dict[Place, Place]) -> Place:
        """Return a place after moving its innermost item that is in the record."""
        end = next(end for end in range(len(place), -1, -1) if place[:end] in moved)
        return (*moved[place[:end]], *place[end:])

    def _identity(self, item: Place, inside: Sequence[Finding]) -> tuple[bool, Hashable]:
        """Return the identity of an item: its keys, or else its whole content."""
        keys = [each for each in inside if len(each.place) == len(item) + 1 and self._leaves[each.path].key]
        with_key = any(each.value is not None for each in keys)
        parts = keys if with_key else inside
        forms = frozenset(
            (each.place[len(item) :], normal_forms(each.value, self._leaves[each.path].kind)) for each in parts
        )
        return with_key, forms

    def _index(self, array: Place, identity: Hashable, spans: set[Span], *, has_key: bool) -> int:
        """Return an item's index: an item with a key joins its equal, one without only at an overlapping place."""
        equals = self._known.setdefault((array, identity), [])
        for index, places in equals:
            if has_key or not spans or any(one.overlaps(other) for one in spans for other in places):
                places.update(spans)
                return index
        equals.append((self._counts[array], spans))
        self._counts[array] += 1
        return self._counts[array] - 1


def _items_of(findings: Sequence[Finding]) -> list[Place]:
    """Return the places of all items, outer ones first, each array's in order."""
    items = {each.place[:end] for each in findings for end, part in enumerate(each.place, 1) if isinstance(part, int)}
    return sorted(items, key=_outer_first)


def _outer_first(item: Place) -> tuple[int, list[str], list[int]]:
    names = [part for part in item if isinstance(part, str)]
    return len(item), names, [part for part in item if isinstance(part, int)]
