"""Compares one record with its gold, value by value.

Items of arrays are paired with the most similar gold items in any order, and so are the values of sets.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from features.documents.extraction.evaluation.gold import GoldDocument, Spend, unbounded
from features.documents.extraction.evaluation.metrics import text_likeness
from features.documents.extraction.fields.leaf import Leaf, Metric
from features.documents.extraction.fields.paths import ITEM, Path, Place, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.values import is_same_for
from features.documents.extraction.grounding.spans import Span


@dataclass(frozen=True, kw_only=True)
class Compared:
    """An extracted value, possibly null, and the gold value; either is null if its item is missing on that side."""

    leaf: Leaf
    document: str
    given: Any
    gold: Any
    evidence: Mapping[str, Any] | None = None
    """The record's evidence for the extracted value."""
    gold_spans: tuple[Span, ...] = ()
    is_in_gold: bool = True
    """Whether gold has the item that contains the value, if there is one."""

    @cached_property
    def likeness(self) -> float:
        """Return 1 or 0, or for texts their similarity in between."""
        if self.given is None or self.gold is None:
            return float(self.given is self.gold)
        if self.leaf.metric is Metric.ANLS:
            return text_likeness(str(self.given), str(self.gold))
        return float(is_same_for(self.leaf, self.given, self.gold))

    @cached_property
    def is_right(self) -> bool:
        """Tell whether the values count as the same; texts are compared after normalisation."""
        if self.given is None or self.gold is None:
            return self.given is self.gold
        return is_same_for(self.leaf, self.given, self.gold)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Return the recorded places of the extracted value."""
        spans = (self.evidence or {}).get("spans") or []
        return tuple(Span(span["start"], span["end"]) for span in spans)


def compare(
    schema: FieldSchema, record: Mapping[str, Any], gold: GoldDocument, *, spend: Spend = unbounded
) -> list[Compared]:
    """Return pairs of the values of a record and of gold, as far as they count; a failed record has no values.

    `spend` receives the number of values, and of comparisons made to pair items.
    """
    fields = record.get("fields") or {}
    evidence = {each["path"]: each for each in record.get("evidence") or []}
    pairs = _Pairs(schema, fields, gold, spend=spend)
    return [
        Compared(
            leaf=leaf,
            document=gold.key,
            given=None if own is None else _value(fields, own),
            gold=None if other is None else _value(gold.fields, other),
            evidence=None if own is None else evidence.get(spell(own)),
            gold_spans=() if other is None else gold.spans.get(spell(other), ()),
            is_in_gold=other is not None,
        )
        for leaf in schema.leaves
        for own, other, known_by in pairs.places(leaf)
        if gold.tells_of(known_by)
    ]


def _value(fields: Any, place: Place) -> Any:
    """Return the value at a place, or null if there is none."""
    for part in place:
        if isinstance(part, int):
            fields = fields[part] if isinstance(fields, list) and part < len(fields) else None
        else:
            fields = fields.get(part) if isinstance(fields, Mapping) else None
    return fields


class _Pairs:
    """The pairing of items of a record with items of gold; found once for each array, outer arrays first."""

    def __init__(self, schema: FieldSchema, fields: Mapping[str, Any], gold: GoldDocument, *, spend: Spend) -> None:
        self._leaves = schema.leaves
        self._spend = spend
        self._fields, self._gold = fields, gold.fields
        self._absent = gold.absent
        self._invented: set[Place] = set()  # items of the record listed as absent in gold
        self._found: dict[tuple[Path, Place | None, Place | None], list[tuple[Place | None, Place | None]]] = {}

    def places(self, leaf: Leaf) -> Iterator[tuple[Place | None, Place | None, Place | None]]:
        """Yield the places of a leaf in the record and in gold; None on the side where its item is missing.

        The third place is the one in gold, or else the innermost gold list that would contain the item; None inside an
        item listed as absent.
        """
        for places in self._below((), (), (), leaf.path, ()):
            self._spend(1)
            yield places

    def _below(
        self, path: Path, own: Place | None, other: Place | None, rest: Path, within: Place | None
    ) -> Iterator[tuple[Place | None, Place | None, Place | None]]:
        if ITEM not in rest:
            here = None if other is None else (*other, *rest)
            yield (None if own is None else (*own, *rest)), here, here or within
            return
        end = rest.index(ITEM)
        array = (*path, *rest[:end])
        sides = (None if own is None else (*own, *rest[:end])), (None if other is None else (*other, *rest[:end]))
        for one, two in self._items(array, *sides):
            known_by = None if one in self._invented else sides[1] or within
            yield from self._below((*array, ITEM), one, two, rest[end + 1 :], known_by)

    def _items(self, array: Path, own: Place | None, other: Place | None) -> list[tuple[Place | None, Place | None]]:
        if (array, own, other) not in self._found:
            self._found[array, own, other] = list(self._paired(array, own, other))
        return self._found[array, own, other]

    def _paired(
        self, array: Path, own: Place | None, other: Place | None
    ) -> Iterator[tuple[Place | None, Place | None]]:
        ones = dict.fromkeys(_indexes(self._fields, own))  # ordered sets
        others = dict.fromkeys(_indexes(self._gold, other))
        for one, two in _identical(
            self._fields, own, self._gold, other
        ):  # most are; only the rest needs all comparisons
            del ones[one], others[two]
            yield (*(own or ()), one), (*(other or ()), two)
        for one in self._invented_of(own, other, ones):
            del ones[one]
            yield (*(own or ()), one), None
        leaves = self._leaves_of((*array, ITEM))
        self._spend(len(ones) * len(others) * max(1, len(leaves)))
        likeness = {
            (one, two): self._likeness(leaves, (*(own or ()), one), (*(other or ()), two), depth=len(array) + 1)
            for one in ones
            for two in others
        }
        for one, two in sorted(likeness, key=lambda pair: (-likeness[pair], abs(pair[0] - pair[1]), pair)):
            if one in ones and two in others and likeness[one, two] > 0:
                del ones[one], others[two]
                yield (*(own or ()), one), (*(other or ()), two)
        yield from (((*(own or ()), one), None) for one in ones)
        yield from ((None, (*(other or ()), two)) for two in others)

    def _invented_of(self, own: Place | None, other: Place | None, ones: Iterable[int]) -> list[int]:
        """Return and remember the items of a list that gold lists as absent, compared by `_spelled`."""
        waiting = Counter(_spelled(item) for item in self._absent.get(spell(other or ()), ()))
        invented = []
        for one in ones:
            item = (*(own or ()), one)
            if waiting[key := _spelled(_value(self._fields, item))]:
                waiting[key] -= 1
                self._invented.add(item)
                invented.append(one)
        return invented

    def _leaves_of(self, path: Path) -> list[Leaf]:
        """Return the leaves of an item, without those of nested arrays."""
        return [leaf for leaf in self._leaves if leaf.path[: len(path)] == path and ITEM not in leaf.path[len(path) :]]

    def _likeness(self, leaves: Sequence[Leaf], own: Place, other: Place, *, depth: int) -> float:
        """Return the summed similarity of an item's own values; keys count twice."""
        total = 0.0
        for leaf in leaves:
            extracted, gold = (
                _value(side, (*place, *leaf.path[depth:])) for side, place in ((self._fields, own), (self._gold, other))
            )
            if extracted is not None and gold is not None:
                pair = Compared(leaf=leaf, document="", given=extracted, gold=gold)
                total += pair.likeness * (2 if leaf.key else 1)
        return total


def _indexes(fields: Any, array: Place | None) -> list[int]:
    items = None if array is None else _value(fields, array)
    return list(range(len(items))) if isinstance(items, Sequence) and not isinstance(items, str) else []


def _identical(fields: Any, own: Place | None, gold: Any, other: Place | None) -> list[tuple[int, int]]:
    """Return the pairs of equal items, compared by `_spelled`, in order."""
    waiting: dict[str, list[int]] = {}
    for two in reversed(_indexes(gold, other)):
        waiting.setdefault(_spelled(_value(gold, (*(other or ()), two))), []).append(two)
    pairs = []
    for one in _indexes(fields, own):
        same = waiting.get(_spelled(_value(fields, (*(own or ()), one))))
        if same:
            pairs.append((one, same.pop()))
    return pairs


def _spelled(item: Any) -> str:
    """Return one spelling for all equal items: `6` equals `6.0`, and null equals `[]`, `{}` and a missing key."""
    return json.dumps(_plain(item), sort_keys=True)


def _plain(item: Any) -> Any:
    if isinstance(item, Mapping):
        values = {name: _plain(value) for name, value in item.items()}
        return {name: value for name, value in values.items() if value not in (None, [], {})}
    if isinstance(item, list):
        return [_plain(value) for value in item]
    return int(item) if isinstance(item, float) and item.is_integer() else item
