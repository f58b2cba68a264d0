"""The record of one document, as users get it: its fields, the evidence of each value, or why there are none.

Knows no file and no order of documents.
"""

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
from features.documents.extraction.scoring.evidence import evidence_of, ocr_scores
from features.documents.extraction.scoring.features import features_of
from features.documents.extraction.scoring.rivals import Rival, rivals_of
from features.documents.extraction.scoring.score import HIGH_FROM, scored

UNANSWERED = "nothing was answered about it"
UNENDED = "its list may lack something"
"""Such a null is none that somebody read, and such a list may lack items, or have them: neither is let go unseen."""


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
    """Return the record of a document that was read; spans of `merged` are of its text.

    A copied value that stands neither there nor in `headings`, which were shown with it, is null: `withhold`.

    `unanswered` are the leaves that no answer came to, or none to the end of their list, each with why. A list of them
    without any item has evidence of its own.
    `retrieval_ranks` are those of the passages in a document that was read in parts, by where each begins.
    `covered` is what was answered behind covers. `notes` tell what was not read of it, and not asked.
    """
    merged = withhold(merged, f"{document.text}\n{headings}")
    fields, missing = record(schema, merged), unanswered or {}
    against = violations(schema, fields)
    evidence = []
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
        )
        score = None if calibration is None else calibration.score(features)
        threshold = HIGH_FROM if calibration is None else calibration.threshold(features)
        told = scored(features, entry.leaf, score=score, threshold=threshold, is_nowhere=entry.is_nowhere)
        others = [*rivals, *_other(behind, rivals)]
        evidence.append(evidence_of(entry, told, features, document, rivals=others))
    known = {"document": name, "sha256": sha256, "status": "done", "error": None, "notes": list(notes)}
    return {**known, "fields": fields, "evidence": evidence, "usage": dict(usage)}


def failed_record(
    error: Mapping[str, Any], *, name: str, sha256: str, usage: Mapping[str, Any], notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the record of a document that was not read, or not answered; `error` has a code and a message.

    `notes` are those of a document that was read.
    """
    told = {"code": error["code"], "message": error["message"], "page": error.get("page")}
    known = {"document": name, "sha256": sha256, "status": "failed", "error": told, "notes": list(notes)}
    return {**known, "fields": None, "evidence": [], "usage": dict(usage)}


def _other(behind: CoveredReading | None, rivals: Sequence[Rival]) -> list[Rival]:
    """Return the value that was found behind a cover, unless it is one of the rivals."""
    if behind is None or behind.span is None or any(behind.span.overlaps(rival.span) for rival in rivals):
        return []
    return [Rival(value=behind.value, span=behind.span)]


def _as_said(merged: Sequence[Merged], unanswered: Mapping[Path, str]) -> Iterator[tuple[Merged, list[Violation]]]:
    """Yield what was answered, and that its list may lack something where that was not answered to its end."""
    for entry in merged:
        is_unended = ITEM in entry.leaf.path and entry.leaf.path in unanswered
        yield entry, [_violation(entry, UNENDED, unanswered[entry.leaf.path])] if is_unended else []


def _left_out(
    schema: FieldSchema, fields: Mapping[str, Any], merged: Sequence[Merged], unanswered: Mapping[Path, str]
) -> Iterator[tuple[Merged, list[Violation]]]:
    """Yield each null of which nothing was said, in items too, and each list that has no item and was not answered."""
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
                # Told as a value of its first field would be, which the record has none of.
                entry = _entry(replace(inside[0], path=array, required_for_auto=is_required), place, items)
                yield entry, [_violation(entry, UNENDED, why)]


def _entry(leaf: Leaf, place: Place, value: Any) -> Merged:
    finding = Finding(reading=Reading(place=place, value=value))
    return Merged(place=place, leaf=leaf, candidates=(Candidate(findings=(finding,)),))


def _violation(entry: Merged, said: str, why: str | None) -> Violation:
    return Violation(paths=(entry.leaf.path,), place=entry.place, reason=said if why is None else f"{said}: {why}")


def _rank(offset: int, ranks: Mapping[int, int]) -> int | None:
    """Return the rank of the last passage that begins at or before an offset."""
    starts = [start for start in ranks if start <= offset]
    return ranks[max(starts)] if starts else None
