"""`/v1/reviews`: bodies of reviews, decisions, and what is learned from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import orjson

from api.schemas.wire import ListedObject, WireModel, unix_seconds_or_none
from features.documents.extraction.fields.paths import path_of
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.calibration import Calibration, Part
from features.documents.extraction.scoring.verdicts import Change, Reason, Verdict
from features.documents.reviewing.reviewed import Tally, right_value
from features.documents.reviewing.reviews import Claimed
from features.documents.tables import Review


class ReviewObject(ListedObject):
    object: Literal["review"] = "review"
    extraction_id: str
    document_id: str
    document: str
    """Its name."""
    path: str
    reason: Reason
    """`sample`: nothing speaks against the value; it was drawn at random."""
    urgency: float
    evidence: dict[str, Any]
    """As in the record: the extracted value, its place, and what speaks against it."""
    value_schema: dict[str, Any]
    """The JSON schema of a correction."""
    claimed_until: int | None
    verdict: Verdict | None
    value: Any
    """The right value; null if the document has none, or it is not known: undecided, or a rejected list."""
    decided_by: str | None
    """Id of a key."""
    decided_at: int | None

    @classmethod
    def of(cls, row: Review, schema: FieldSchema) -> Self:
        return cls(
            id=row.id,
            extraction_id=row.extraction_id,
            document_id=row.document_id,
            document=row.document,
            path=row.path,
            reason=Reason(row.reason),
            urgency=row.urgency,
            evidence=row.evidence,
            value_schema=schema.value_schema(path_of(row.place)),
            claimed_until=unix_seconds_or_none(row.claimed_until),
            verdict=None if row.verdict is None else Verdict(row.verdict),
            value=right_value(row),
            decided_by=row.decided_by,
            decided_at=unix_seconds_or_none(row.decided_at),
        )


class ReviewList(WireModel):
    """Most urgent first."""

    object: Literal["list"] = "list"
    data: list[ReviewObject]
    has_more: bool


class ClaimedReviews(WireModel):
    object: Literal["review.claim"] = "review.claim"
    claim: str
    """To be given with decisions about these reviews."""
    data: list[ReviewObject]
    """Empty if others have claimed all that are left."""

    @classmethod
    def of(cls, claimed: Claimed, schema: FieldSchema) -> Self:
        return cls(claim=claimed.claim, data=[ReviewObject.of(each, schema) for each in claimed.reviews])


class ReviewCounts(WireModel):
    open: int
    decided: int
    wrong: int
    """Number of wrong values among those decided."""

    @classmethod
    def of(cls, tally: Tally) -> Self:
        return cls(open=tally.num_open, decided=tally.num_decided, wrong=tally.num_wrong)


class ItemCounts(WireModel):
    added: int
    dropped: int
    """Including items that were added by a person."""


class ReviewSummary(WireModel):
    object: Literal["extraction.reviews"] = "extraction.reviews"
    doubt: ReviewCounts
    sample: ReviewCounts
    items: ItemCounts
    """Items of lists that people changed."""
    unmarked_error_rate: float | None
    """Share of the sample that was wrong: an estimate for all values not marked for review."""

    @classmethod
    def of(cls, tallies: Mapping[Reason, Tally], changes: Mapping[Change, int]) -> Self:
        drawn = tallies[Reason.SAMPLE]
        return cls(
            doubt=ReviewCounts.of(tallies[Reason.DOUBT]),
            sample=ReviewCounts.of(drawn),
            items=ItemCounts(added=changes[Change.ADD], dropped=changes[Change.DROP]),
            unmarked_error_rate=drawn.num_wrong / drawn.num_decided if drawn.num_decided else None,
        )


class LearnedPart(WireModel):
    num_gold: int
    is_learned: bool
    """False: too few values are known, and scores are unchanged."""
    threshold: float
    """Values from this score on need no review; above 1 if no score suffices."""

    @classmethod
    def of(cls, part: Part) -> Self:
        return cls(num_gold=part.num_gold, is_learned=part.logistic is not None, threshold=part.threshold)


class CalibrationObject(WireModel):
    object: Literal["extraction.calibration"] = "extraction.calibration"
    extraction_id: str
    values: LearnedPart
    nulls: LearnedPart
    calibration: dict[str, Any]
    """Accepted as `calibration` by `POST /v1/extractions`."""

    @classmethod
    def of(cls, extraction_id: str, fitted: Calibration) -> Self:
        return cls(
            extraction_id=extraction_id,
            values=LearnedPart.of(fitted.values),
            nulls=LearnedPart.of(fitted.nulls),
            calibration=orjson.loads(fitted.to_json()),
        )


class GoldLine(WireModel):
    """What people know of a document, in the format that `tokenmill extract evaluate | calibrate` reads."""

    document: str
    document_id: str
    """Distinguishes documents with the same name."""
    fields: dict[str, Any]
    known: Sequence[str]
    """The paths that somebody decided; no other path counts."""
    absent: dict[str, list[Any]]
    """By the path of their list: extracted items that the document does not have."""
