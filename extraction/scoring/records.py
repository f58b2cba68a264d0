"""The record of one document, as users get it: its fields, the evidence of each value, or why there are none.

Knows no file and no order of documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from extraction.documents.document import Document
from extraction.fields.leaf import Leaf
from extraction.fields.paths import ITEM, Path, Place
from extraction.fields.schema import FieldSchema
from extraction.passes.covering import CoveredReading
from extraction.passes.findings import Finding, Reading
from extraction.passes.merging import Candidate, Merged, record
from extraction.passes.validators import Violation, violations
from extraction.scoring.calibration import Calibration
from extraction.scoring.evidence import evidence_of, ocr_scores
from extraction.scoring.features import features_of
from extraction.scoring.rivals import Rival, rivals_of
from extraction.scoring.score import HIGH_FROM, scored

UNANSWERED = "nothing was answered about it"
UNENDED = "its list may lack something"
"""Such a null is none that somebody read, and such a list may lack items: neither is ever let go unseen."""


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
) -> dict[str, Any]:
    """Return the record of a document that was read; spans of `merged` are of its text.

    `unanswered` are the leaves that no answer came to, or none to the end of their list, each with why.
    `retrieval_ranks` are those of the passages in a document that was read in parts, by where each begins.
    `covered` is what was answered behind covers.
    """
    fields = record(schema, merged)
    evidence = []
    answered = {entry.place for entry in merged}
    nulls = [_null(leaf) for leaf in schema.leaves if ITEM not in leaf.path and leaf.path not in answered]
    wrong = [*violations(schema, fields), *_left_out(unanswered or {}, [entry.leaf.path for entry in nulls])]
    for entry in (*merged, *nulls):
        spans = entry.candidates[0].spans
        rivals, behind = rivals_of(entry, document.text), (covered or {}).get(entry.place)
        features = features_of(
            entry,
            document.text,
            violations=wrong,
            num_rivals=len(rivals),
            covered=behind,
            ocr_scores=ocr_scores(spans, document),
            retrieval_rank=_rank(spans[0].start, retrieval_ranks) if spans and retrieval_ranks else None,
        )
        score = None if calibration is None else calibration.score(features)
        threshold = HIGH_FROM if calibration is None else calibration.threshold(features)
        told = scored(features, entry.leaf, score=score, threshold=threshold)
        others = [*rivals, *_other(behind, rivals)]
        evidence.append(evidence_of(entry, told, features, document, rivals=others))
    known = {"document": name, "sha256": sha256, "status": "done", "error": None, "fields": fields}
    return {**known, "evidence": evidence, "usage": dict(usage)}


def failed_record(error: Mapping[str, Any], *, name: str, sha256: str, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a document that was not read, or not answered; `error` has a code and a message."""
    told = {"code": error["code"], "message": error["message"], "page": error.get("page")}
    known = {"document": name, "sha256": sha256, "status": "failed", "error": told, "fields": None}
    return {**known, "evidence": [], "usage": dict(usage)}


def _other(behind: CoveredReading | None, rivals: Sequence[Rival]) -> list[Rival]:
    """Return the value that was found behind a cover, unless it is one of the rivals."""
    if behind is None or behind.span is None or any(behind.span.overlaps(rival.span) for rival in rivals):
        return []
    return [Rival(value=behind.value, span=behind.span)]


def _left_out(unanswered: Mapping[Path, str], nulls: Sequence[Path]) -> list[Violation]:
    """Return what speaks against leaves that have no answer, and against the items of lists that were not ended."""
    lists = [path for path in unanswered if ITEM in path]
    told = dict.fromkeys(nulls, UNANSWERED) | dict.fromkeys(lists, UNENDED)
    reasons = {path: f"{said}: {unanswered[path]}" if path in unanswered else said for path, said in told.items()}
    return [Violation(paths=(path,), reason=reason) for path, reason in reasons.items()]


def _null(leaf: Leaf) -> Merged:
    finding = Finding(reading=Reading(place=leaf.path, value=None))
    return Merged(place=leaf.path, leaf=leaf, candidates=(Candidate(findings=(finding,)),))


def _rank(offset: int, ranks: Mapping[int, int]) -> int | None:
    """Return the rank of the last passage that begins at or before an offset."""
    starts = [start for start in ranks if start <= offset]
    return ranks[max(starts)] if starts else None
