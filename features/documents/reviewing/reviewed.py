"""Results of reviews: records with corrections, gold, error rates, and a calibration.

Read-only: extracted values stay unchanged in their file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.documents.extraction.scoring.calibration import Calibration, Judged, fit
from features.documents.extraction.scoring.features import Features
from features.documents.extraction.scoring.items import ItemChange
from features.documents.extraction.scoring.reviews import Reviewed, as_reviewed, corrected, gold_of
from features.documents.extraction.scoring.verdicts import Reason, Verdict
from features.documents.reviewing import items
from features.documents.tables import Extraction, Review
from jobs.errors import ConflictError

MAX_JUDGED = 20_000
"""Number of newest decisions that a calibration is fitted to: more would hardly change it."""

IS_LIST = func.json_typeof(Review.evidence["value"]) == "array"
"""Condition on a review: it is about a list in which nothing was found."""


def with_decisions(session: Session, extraction: Extraction, content: bytes) -> bytes:
    """Return records, one per line, with people's corrections."""
    return b"".join(
        orjson.dumps(as_reviewed(record, decided, changes)) + b"\n"
        for record, decided, changes in _with_decided(session, extraction, content)
    )


def gold(session: Session, extraction: Extraction, content: bytes) -> bytes:
    """Return the records with decisions as lines of a gold file."""
    return b"".join(
        orjson.dumps(gold_of(record, decided, changes)) + b"\n"
        for record, decided, changes in _with_decided(session, extraction, content)
        if changes or any(each.is_known for each in decided)
    )


def corrected_fields(session: Session, extraction: Extraction, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record with people's corrections; items are as extracted."""
    decided = _decided_of(session, extraction, [record["document_id"]])
    return corrected(record["fields"], decided.get(record["document_id"], []))


def _with_decided(
    session: Session, extraction: Extraction, content: bytes
) -> Iterator[tuple[dict[str, Any], list[Reviewed], list[ItemChange]]]:
    """Yield each record with the decisions about it and the changes of its items."""
    records = [orjson.loads(line) for line in content.splitlines()]
    document_ids = [record["document_id"] for record in records]
    decided = _decided_of(session, extraction, document_ids)
    changes = items.of_documents(session, extraction.id, document_ids)
    for record, document_id in zip(records, document_ids, strict=True):
        yield record, decided.get(document_id, []), changes.get(document_id, [])


def _decided_of(session: Session, extraction: Extraction, document_ids: list[str]) -> dict[str, list[Reviewed]]:
    """Return decisions by document id."""
    of_page = (Review.extraction_id == extraction.id) & Review.document_id.in_(document_ids)
    decisions: dict[str, list[Reviewed]] = {}
    for row in session.scalars(select(Review).where(of_page, Review.decided_at.is_not(None)).order_by(Review.id)):
        decisions.setdefault(row.document_id, []).append(_reviewed(row))
    return decisions


def _reviewed(row: Review) -> Reviewed:
    assert row.verdict is not None, "it is decided"
    assert row.decided_at is not None, "it is decided"
    assert row.decided_by is not None, "it is decided"
    return Reviewed(
        place=tuple(row.place),
        verdict=Verdict(row.verdict),
        value=right_value(row),
        is_known=row.verdict != Verdict.REJECT or row.evidence["value"] != [],
        by=row.decided_by,
        at=int(row.decided_at.timestamp()),
    )


def right_value(row: Review) -> Any:
    """Return the right value by a verdict; null if the document has none, or it is not known."""
    if row.verdict == Verdict.CORRECT:
        return (row.correction or {})["value"]
    return row.evidence["value"] if row.verdict == Verdict.ACCEPT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Numbers of reviews with one reason."""

    num_open: int = 0
    num_decided: int = 0
    num_wrong: int = 0
    """Number of wrong values among those decided."""


def tallies(session: Session, extraction: Extraction) -> dict[Reason, Tally]:
    """Return the progress of an extraction's reviews, by reason."""
    query = (
        select(
            Review.reason,
            func.count().filter(Review.decided_at.is_(None)),
            func.count().filter(Review.decided_at.is_not(None)),
            func.count().filter(Review.is_right.is_(False)),
        )
        .where(Review.extraction_id == extraction.id)
        .group_by(Review.reason)
    )
    by_reason = {
        Reason(reason): Tally(num_open=num_open, num_decided=num_decided, num_wrong=num_wrong)
        for reason, num_open, num_decided, num_wrong in session.execute(query)
    }
    return {reason: by_reason.get(reason, Tally()) for reason in Reason}


def judged(session: Session, extraction: Extraction) -> list[Judged]:
    """Return the data that a calibration is fitted to: decided values and nulls, without empty lists."""
    of_it = (Review.extraction_id == extraction.id) & Review.decided_at.is_not(None) & ~IS_LIST
    columns = (Review.evidence["features"], Review.is_right, Review.document_id)
    newest = select(*columns).where(of_it).order_by(Review.decided_at.desc(), Review.id).limit(MAX_JUDGED)
    return [
        Judged(features=Features.from_json(features), is_right=bool(is_right), document=document_id)
        for features, is_right, document_id in session.execute(newest)
    ]


def fitted(decisions: list[Judged], *, target: float) -> Calibration:
    """Return the calibration fitted to these decisions. Raises ConflictError if there are too few."""
    calibration = fit(decisions, target=target)
    if calibration.values.logistic is None and calibration.nulls.logistic is None:
        raise ConflictError(
            f"{len(decisions):,} values are decided. Learning needs 30 values or 30 nulls, with at least 5 right and 5 "
            "wrong ones among them. Review more.",
            code="too_few_reviews",
        )
    return calibration
