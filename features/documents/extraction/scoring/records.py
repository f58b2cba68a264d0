"""The record of one document for users: its fields with the evidence of each value, or an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from features.documents.extraction.documents.document import Document
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import ITEM, Path, Place
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.covering import CoveredReading
from features.documents.extraction.passes.examples import values_at
from features.documents.extraction.passes.findings import Finding, Reading
from features.documents.extraction.passes.merging import Candidate, Merged, record
from features.documents.extraction.passes.validators import Violation, violations
from features.documents.extraction.passes.withholding import withhold
from features.documents.extraction.scoring.calibration import Calibration
from features.documents.extraction.scoring.captions import Captions
from features.documents.extraction.scoring.evidence import evidence_of, ocr_scores
from features.documents.extraction.scoring.features import features_of
from features.documents.extraction.scoring.rivals import Rival, rivals_of
from features.documents.extraction.scoring.score import HIGH_FROM, scored

UNANSWERED = "nothing was answered about it"
UNENDED = "its list may lack something"
"""Such a null was not read by anybody, and such a list may be incomplete: both need a review."""


def done_record(
    schema: FieldSchema,
    merged: Sequence[Merged],
    document: Document,
    *,
    name: str,
    sha256: str,
    usage: Mapping[str, Any],
    calibration: Calibration | None = None,
    unanswered: Mapping[Path, str] | None = None,
    retrieval_ranks: Mapping[int, int] | None = None,
    covered: Mapping[Place, CoveredReading] | None = None,
    headings: str = "",
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the record of a document that was read; spans of `merged` refer to its text.

    A copied value that occurs neither there nor in `headings`, which were shown with it, becomes null: `withhold`.

    `unanswered` are the leaves without an answer, or without a complete list, each with the reason. An empty list among
    them has its own evidence.
    `retrieval_ranks` are the ranks of passages by their start, for a document that was read in parts.
    `covered` are the answers with values covered. `notes` say what was not read or not asked.
    """
    merged = withhold(merged, f"{document.text}\n{headings}")
    fields, missing = record(schema, merged), unanswered or {}
    against = violations(schema, fields)
    evidence = []
    claims = [(entry, entry.candidates[0].spans) for entry in merged if entry.value is not None]
    of_fields = [(entry.place, span) for entry, spans in claims if ITEM not in entry.leaf.path for span in spans]
    captions = Captions(document.text)
    free = captions.unclaimed(span for _, spans in claims for span in spans)
    for entry, left_out in (*_as_said(merged, missing), *_left_out(schema, fields, merged, missing)):
        spans = entry.candidates[0].spans
        rivals, behind = rivals_of(entry, document.text), (covered or {}).get(entry.place)
        features = features_of(
            entry,
            document.text,
            violations=[*against, *left_out],
            num_rivals=len(rivals),
            covered=behind,
            ocr_scores=ocr_scores(spans, document),
            retrieval_rank=_rank(spans[0].start, retrieval_ranks) if spans and retrieval_ranks else None,
            claimed=() if ITEM in entry.leaf.path else [span for place, span in of_fields if place != entry.place],
            captions=captions,
            free=free,
        )
        score = None if calibration is None else calibration.score(features)
        threshold = HIGH_FROM if calibration is None else calibration.threshold(features)
        scored_value = scored(features, entry.leaf, score=score, threshold=threshold, is_nowhere=entry.is_nowhere)
        others = [*rivals, *_other(behind, rivals)]
        evidence.append(evidence_of(entry, scored_value, features, document, rivals=others))
    head = {"document": name, "sha256": sha256, "status": "done", "error": None, "notes": list(notes)}
    return {**head, "fields": fields, "evidence": evidence, "usage": dict(usage)}


def failed_record(
    error: Mapping[str, Any], *, name: str, sha256: str, usage: Mapping[str, Any], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the record of a document that was not read, or not answered; `error` has a code and a message.

    `notes` are those of a document that was read.
    """
    problem = {"code": error["code"], "message": error["message"], "page": error.get("page")}
    head = {"document": name, "sha256": sha256, "status": "failed", "error": problem, "notes": list(notes)}
    return {**head, "fields": None, "evidence": [], "usage": dict(usage)}


def _other(behind: CoveredReading | None, rivals: Sequence[Rival]) -> list[Rival]:
    """Return the value found with this one covered, unless it is one of the rivals."""
    if behind is None or behind.span is None or any(behind.span.overlaps(rival.span) for rival in rivals):
        return []
    return [Rival(value=behind.value, span=behind.span)]


def _as_said(merged: Sequence[Merged], unanswered: Mapping[Path, str]) -> Iterator[tuple[Merged, list[Violation]]]:
    """Yield the answered entries, with a violation if their list may be incomplete."""
    for entry in merged:
        is_unended = ITEM in entry.leaf.path and entry.leaf.path in unanswered
        yield entry, [_violation(entry, UNENDED, unanswered[entry.leaf.path])] if is_unended else []


def _left_out(
    schema: FieldSchema, fields: Mapping[str, Any], merged: Sequence[Merged], unanswered: Mapping[Path, str]
) -> Iterator[tuple[Merged, list[Violation]]]:
    """Yield each null without an answer, in items too, and each empty list that was not answered."""
    answered = {entry.place for entry in merged}
    for leaf in schema.leaves:
        for place, value in values_at(fields, leaf.path):
            if place not in answered:
                entry = _entry(leaf, place, value)
                yield entry, [_violation(entry, UNANSWERED, unanswered.get(leaf.path))]
    for array in schema.arrays():
        inside = [leaf for leaf in schema.leaves if leaf.path[: len(array) + 1] == (*array, ITEM)]
        why = next((unanswered[leaf.path] for leaf in inside if leaf.path in unanswered), None)
        is_required = any(leaf.required_for_auto for leaf in inside)
        for place, items in values_at(fields, array) if why is not None else ():
            if not items:
                # Scored as a value of its first field would be, since the record has none.
                entry = _entry(replace(inside[0], path=array, required_for_auto=is_required), place, items)
                yield entry, [_violation(entry, UNENDED, why)]


def _entry(leaf: Leaf, place: Place, value: Any) -> Merged:
    finding = Finding(reading=Reading(place=place, value=value))
    return Merged(place=place, leaf=leaf, candidates=(Candidate(findings=(finding,)),))


def _violation(entry: Merged, problem: str, why: str | None) -> Violation:
    return Violation(
        paths=(entry.leaf.path,), place=entry.place, reason=problem if why is None else f"{problem}: {why}"
    )


def _rank(offset: int, ranks: Mapping[int, int]) -> int | None:
    """Return the rank of the last passage that begins at or before an offset."""
    starts = [start for start in ranks if start <= offset]
    return ranks[max(starts)] if starts else None
