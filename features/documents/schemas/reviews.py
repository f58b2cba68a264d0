"""`/v1/reviews`: values that a person should look at, what was decided, and what is learned of it."""

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
    """`sample`: nothing speaks against the value, it was drawn."""
    urgency: float
    evidence: dict[str, Any]
    """As in the record: what was extracted, where it stands, and what speaks against it."""
    value_schema: dict[str, Any]
    """The JSON schema of a correction."""
    claimed_until: int | None
    verdict: Verdict | None
    value: Any
    """What is right; null where the document has no such value, or nobody said what: undecided, or a rejected list."""
    decided_by: str | None
    """The id of a key."""
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
    """The most urgent first."""

    object: Literal["list"] = "list"
    data: list[ReviewObject]
    has_more: bool


class ClaimedReviews(WireModel):
    object: Literal["review.claim"] = "review.claim"
    claim: str
    """What a decision about one of them gives."""
    data: list[ReviewObject]
    """Empty where others have all that are left."""

    @classmethod
    def of(cls, claimed: Claimed, schema: FieldSchema) -> Self:
        return cls(claim=claimed.claim, data=[ReviewObject.of(each, schema) for each in claimed.reviews])


class ReviewCounts(WireModel):
    open: int
    decided: int
    wrong: int
    """Of those decided."""

    @classmethod
    def of(cls, tally: Tally) -> Self:
        return cls(open=tally.num_open, decided=tally.num_decided, wrong=tally.num_wrong)


class ItemCounts(WireModel):
    added: int
    dropped: int
    """Those among them that were added by a person, too."""


class ReviewSummary(WireModel):
    object: Literal["extraction.reviews"] = "extraction.reviews"
    doubt: ReviewCounts
    sample: ReviewCounts
    items: ItemCounts
    """Of lists, by people."""
    unmarked_error_rate: float | None
    """The share of the sample that was wrong: about so much is wrong of all that nobody need look at."""

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
    """False: too few are known, and scores are as before."""
    threshold: float
    """From this score on nobody need look; above 1 where no score is enough."""

    @classmethod
    def of(cls, part: Part) -> Self:
        return cls(num_gold=part.num_gold, is_learned=part.logistic is not None, threshold=part.threshold)


class CalibrationObject(WireModel):
    object: Literal["extraction.calibration"] = "extraction.calibration"
    extraction_id: str
    values: LearnedPart
    nulls: LearnedPart
    calibration: dict[str, Any]
    """What `calibration` of `POST /v1/extractions` takes."""

    @classmethod
    def of(cls, extraction_id: str, fitted: Calibration) -> Self:
        return cls(
            extraction_id=extraction_id,
            values=LearnedPart.of(fitted.values),
            nulls=LearnedPart.of(fitted.nulls),
            calibration=orjson.loads(fitted.to_json()),
        )


class GoldLine(WireModel):
    """What people know of a document, as `tokenmill extract evaluate | calibrate` reads it."""

    document: str
    document_id: str
    """Tells documents of one name apart."""
    fields: dict[str, Any]
    known: Sequence[str]
    """The paths that somebody decided about; no other counts."""
    absent: dict[str, list[Any]]
    """By the path of their list: items that were extracted and that the document does not have."""
