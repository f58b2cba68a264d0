"""Which values of a record a person should look at, and what their decisions make of it.

Knows no reviewer and no table.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import Place, place_of, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.fields.values import is_same_for
from features.documents.extraction.passes.examples import values_at
from features.documents.extraction.scoring.items import ItemChange, Items, at
from features.documents.extraction.scoring.verdicts import Reason, Verdict

SAMPLED = 0.05
"""Of the values that nobody need look at: the share that is looked at all the same, to know how many are wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewable:
    """A value, or null, that a person should look at."""

    path: str
    """The place as it is spelled."""
    place: Place
    reason: Reason
    urgency: float
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """A value that somebody has looked at; `value` is what is right."""

    place: Place
    verdict: Verdict
    value: Any
    by: str
    at: int
    """Unix seconds."""
    is_known: bool = True
    """Whether `value` is known: not of a list of which only was said that it has items."""


def reviewable(schema: FieldSchema, record: Mapping[str, Any], *, seed: str) -> Iterator[Reviewable]:
    """Yield what of a record is to be looked at; the same for the same seed.

    What is doubtful has the urgency unsureness × weight. What is drawn has one that is drawn, too: then those of the
    sample that are looked at first are themselves a fair draw.
    """
    places = _places(schema, record)
    for evidence in record["evidence"]:
        weight, place = places[path := evidence["path"]]
        if evidence["review"]:
            urgency = weight * (1 - evidence["score"])
            yield Reviewable(path=path, place=place, reason=Reason.DOUBT, urgency=urgency, evidence=evidence)
        elif (drawn := _drawn(seed, record["document_id"], path)) < SAMPLED:
            urgency = drawn / SAMPLED
            yield Reviewable(path=path, place=place, reason=Reason.SAMPLE, urgency=urgency, evidence=evidence)


def is_right(leaf: Leaf, extracted: Any, verdict: Verdict, correction: Any) -> bool:
    """Tell whether what was extracted is right by a verdict; another way to write the same is."""
    return verdict is Verdict.ACCEPT or (verdict is Verdict.CORRECT and is_same_for(leaf, extracted, correction))


def as_reviewed(
    record: Mapping[str, Any], decided: Sequence[Reviewed], changes: Sequence[ItemChange] = ()
) -> dict[str, Any]:
    """Return a record with the values and items that people found right; its evidence keeps what was extracted.

    A list whose items nobody said stays empty. Evidence names where its value stands now; that of items that were
    dropped is told with the change.
    """
    items = Items(record["fields"] or {}, changes)
    of_path = {spell(each.place): each for each in decided}
    evidence = [_told(each, of_path.get(each["path"])) for each in record["evidence"]]
    found = {**record, "evidence": evidence}
    if decided:
        found["fields"] = corrected(record["fields"], decided)
    if changes:
        found["fields"] = items.left(found["fields"])
        found["evidence"] = list(_recounted(items, evidence))
        found["item_changes"] = items.told(evidence)
    return found


def corrected(fields: Mapping[str, Any], decided: Sequence[Reviewed]) -> dict[str, Any]:
    """Return fields with the values that people found right."""
    found = copy.deepcopy(dict(fields))
    for each in decided:
        if each.is_known and not isinstance(each.value, list):  # items that a list has are changes of their own
            at(found, each.place[:-1])[each.place[-1]] = each.value
    return found


def gold_of(
    record: Mapping[str, Any], decided: Sequence[Reviewed], changes: Sequence[ItemChange] = ()
) -> dict[str, Any]:
    """Return a record as a line of a gold file, in which only what people have looked at counts."""
    names = {name: record[name] for name in ("document", "document_id") if name in record}
    fields = as_reviewed(record, decided, changes)["fields"]
    items = Items(record["fields"] or {}, changes)
    values = [
        spell(items.recounted(each.place)) for each in decided if each.is_known and not items.is_dropped(each.place)
    ]
    return {**names, "fields": fields, "known": [*values, *items.known()], "absent": items.absent()}


def _recounted(items: Items, evidence: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the evidence of what is left, under the place where its value stands now."""
    for each in evidence:
        if not items.is_dropped(place := place_of(each["path"])):
            yield {**each, "path": spell(items.recounted(place))}


def _places(schema: FieldSchema, record: Mapping[str, Any]) -> dict[str, tuple[float, Place]]:
    """Return the weight and the place of each value of a record, null and lists too, by the place as it is spelled."""
    weights = {leaf.path: leaf.weight for leaf in schema.leaves}
    for array in schema.arrays():
        weights[array] = max(leaf.weight for leaf in schema.leaves if leaf.path[: len(array)] == array)
    found = ((weight, place) for path, weight in weights.items() for place, _ in values_at(record["fields"], path))
    return {spell(place): (weight, place) for weight, place in found}


def _told(evidence: Mapping[str, Any], reviewed: Reviewed | None) -> Mapping[str, Any]:
    if reviewed is None:
        return evidence
    told = {"verdict": reviewed.verdict.value, "value": reviewed.value, "by": reviewed.by, "at": reviewed.at}
    return {**evidence, "reviewed": told}


def _drawn(*seeds: str) -> float:
    """Return a number in 0..1 that is as good as random, and the same for the same seeds."""
    digest = hashlib.sha256("\0".join(seeds).encode()).digest()
    return float(int.from_bytes(digest[:6]) / 2**48)
