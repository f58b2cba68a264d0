"""Selects the values of a record that a person should review, and applies people's decisions to it."""

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
"""Share of the values not marked for review that is reviewed anyway, to estimate their error rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewable:
    """A value, possibly null, that a person should review."""

    path: str
    """The place, spelled as a path."""
    place: Place
    reason: Reason
    urgency: float
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reviewed:
    """A value that somebody has reviewed; `value` is the right one."""

    place: Place
    verdict: Verdict
    value: Any
    by: str
    at: int
    """Unix seconds."""
    is_known: bool = True
    """Whether `value` is known; it is not if a list was only said to have items."""


def reviewable(schema: FieldSchema, record: Mapping[str, Any], *, seed: str) -> Iterator[Reviewable]:
    """Yield the values of a record to review; deterministic for a seed.

    Doubtful values have the urgency uncertainty × weight. Sampled values have a random urgency, so that those of the
    sample that are reviewed first are a fair sample themselves.
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
    """Tell whether the extracted value is right by a verdict; another spelling of the right value is."""
    return verdict is Verdict.ACCEPT or (verdict is Verdict.CORRECT and is_same_for(leaf, extracted, correction))


def as_reviewed(
    record: Mapping[str, Any], decided: Sequence[Reviewed], changes: Sequence[ItemChange] = ()
) -> dict[str, Any]:
    """Return a record with people's corrections of values and items; its evidence keeps the extracted values.

    A list for which no items were given stays empty. Evidence names the current place of its value; the evidence of
    dropped items is in the change.
    """
    items = Items(record["fields"] or {}, changes)
    of_path = {spell(each.place): each for each in decided}
    evidence = [_with_decision(each, of_path.get(each["path"])) for each in record["evidence"]]
    reviewed_record = {**record, "evidence": evidence}
    if decided:
        reviewed_record["fields"] = corrected(record["fields"], decided)
    if changes:
        reviewed_record["fields"] = items.left(reviewed_record["fields"])
        reviewed_record["evidence"] = list(_recounted(items, evidence))
        reviewed_record["item_changes"] = items.told(evidence)
    return reviewed_record


def corrected(fields: Mapping[str, Any], decided: Sequence[Reviewed]) -> dict[str, Any]:
    """Return fields with people's corrections."""
    amended = copy.deepcopy(dict(fields))
    for each in decided:
        if each.is_known and not isinstance(each.value, list):  # items of a list are separate changes
            at(amended, each.place[:-1])[each.place[-1]] = each.value
    return amended


def gold_of(
    record: Mapping[str, Any], decided: Sequence[Reviewed], changes: Sequence[ItemChange] = ()
) -> dict[str, Any]:
    """Return a record as a line of a gold file in which only decided values count."""
    names = {name: record[name] for name in ("document", "document_id") if name in record}
    fields = as_reviewed(record, decided, changes)["fields"]
    items = Items(record["fields"] or {}, changes)
    values = [
        spell(items.recounted(each.place)) for each in decided if each.is_known and not items.is_dropped(each.place)
    ]
    return {**names, "fields": fields, "known": [*values, *items.known()], "absent": items.absent()}


def _recounted(items: Items, evidence: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the evidence of remaining values with their current places."""
    for each in evidence:
        if not items.is_dropped(place := place_of(each["path"])):
            yield {**each, "path": spell(items.recounted(place))}


def _places(schema: FieldSchema, record: Mapping[str, Any]) -> dict[str, tuple[float, Place]]:
    """Return the weight and place of each value of a record, nulls and lists included, by spelled place."""
    weights = {leaf.path: leaf.weight for leaf in schema.leaves}
    for array in schema.arrays():
        weights[array] = max(leaf.weight for leaf in schema.leaves if leaf.path[: len(array)] == array)
    weighted = ((weight, place) for path, weight in weights.items() for place, _ in values_at(record["fields"], path))
    return {spell(place): (weight, place) for weight, place in weighted}


def _with_decision(evidence: Mapping[str, Any], reviewed: Reviewed | None) -> Mapping[str, Any]:
    if reviewed is None:
        return evidence
    decision = {"verdict": reviewed.verdict.value, "value": reviewed.value, "by": reviewed.by, "at": reviewed.at}
    return {**evidence, "reviewed": decision}


def _drawn(*seeds: str) -> float:
    """Return a pseudorandom number in 0..1, the same for the same seeds."""
    digest = hashlib.sha256("\0".join(seeds).encode()).digest()
    return float(int.from_bytes(digest[:6]) / 2**48)
