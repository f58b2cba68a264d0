"""Values of completed extractions that people review: written with the records, and claimed by one person at a time.

`features.documents.extraction.scoring.reviews` decides which values these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import Session

from features.documents.claims import ExtractionWork
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.reviews import reviewable
from features.documents.lifecycle import EXTRACTIONS
from features.documents.states import ExtractionState
from features.documents.tables import Extraction, Review
from jobs.claims.statements import ClaimSql
from jobs.errors import ConflictError
from jobs.ids import new_id

_WRITTEN_AT_ONCE = 500


def noting(work: ExtractionWork, schema: FieldSchema, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pass records on, and write their reviews; a repeated call starts over.

    Nobody sees the rows before the extraction is completed.
    """
    with work.writing() as (session, extraction):
        forget(session, [extraction.id])
    waiting: list[dict[str, Any]] = []
    for record in records:
        if record["fields"] is not None:
            waiting += _rows(work, schema, record)
        if len(waiting) >= _WRITTEN_AT_ONCE:
            _write(work, waiting)
            waiting = []
        yield record
    _write(work, waiting)


def forget(session: Session, extraction_ids: Sequence[str]) -> None:
    """Delete all reviews and decisions of some extractions."""
    session.execute(delete(Review).where(Review.extraction_id.in_(extraction_ids)))


def forget_some(session: Session, extraction_ids: Sequence[str], *, limit: int) -> int:
    """Delete up to `limit` reviews of some extractions; return how many."""
    some = select(Review.id).where(Review.extraction_id.in_(extraction_ids)).limit(limit)
    return len(session.scalars(delete(Review).where(Review.id.in_(some)).returning(Review.id)).all())


def _rows(work: ExtractionWork, schema: FieldSchema, record: dict[str, Any]) -> list[dict[str, Any]]:
    extraction_id = work.claim.id
    return [
        {
            "id": new_id("review"),
            "extraction_id": extraction_id,
            "document_id": record["document_id"],
            "document": record["document"],
            "path": each.path,
            "place": each.place,
            "reason": each.reason.value,
            "urgency": each.urgency,
            "evidence": each.evidence,
        }
        for each in reviewable(schema, record, seed=extraction_id)
    ]


def _write(work: ExtractionWork, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        with work.writing() as (session, extraction):
            session.execute(insert(Review), [row | {"tenant_id": extraction.tenant_id} for row in rows])


def completed(session: Session, tenant_id: str, extraction_id: str) -> Extraction:
    """Return a completed extraction of this tenant. Raises NotFoundError, or ConflictError if it is not completed."""
    extraction = EXTRACTIONS.get(session, tenant_id, extraction_id)
    if extraction.state != ExtractionState.COMPLETED:
        raise ConflictError(
            f"Extraction {extraction.id!r} is {extraction.state}: reviews exist once it is completed.",
            code="no_results",
        )
    return extraction


def schema_of(extraction: Extraction) -> FieldSchema:
    """Return the schema that its documents were asked."""
    return FieldSchema.parse(extraction.plan["schema"])


def list_open(session: Session, extraction: Extraction, *, limit: int) -> tuple[list[Review], bool]:
    """Return the open reviews, most urgent first, and whether there are more."""
    is_open = (Review.extraction_id == extraction.id) & Review.decided_at.is_(None)
    query = select(Review).where(is_open).order_by(Review.urgency.desc(), Review.id).limit(limit + 1)
    open_reviews = list(session.scalars(query))
    return open_reviews[:limit], len(open_reviews) > limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Values claimed by one reviewer for a while; empty if others have claimed all that are left."""

    claim: str
    reviews: Sequence[Review]


def claim(session: Session, extraction: Extraction, *, limit: int, lasts: timedelta) -> Claimed:
    """Claim the most urgent unclaimed values."""
    name = new_id("claim")
    values = {"extraction_id": extraction.id, "limit": limit, "claim": name, "lease": lasts}
    ids = session.scalars(_CLAIM, values).all()
    query = select(Review).where(Review.id.in_(ids)).order_by(Review.urgency.desc(), Review.id)
    return Claimed(claim=name, reviews=list(session.scalars(query, execution_options={"populate_existing": True})))


def require_unclaimed(session: Session, review: Review, claim: str | None) -> None:
    """Raise ConflictError if somebody else has claimed a value that is not decided."""
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None, "the database has a clock"
    is_others = review.claim != claim and review.claimed_until is not None and review.claimed_until > now
    if review.verdict is None and is_others:
        raise ConflictError(
            f"Review {review.id!r} of {review.path!r} is claimed by another reviewer until "
            f"{review.claimed_until:%H:%M:%S} UTC. Claim others with POST /v1/reviews/claim.",
            code="review_claimed",
        )


_CLAIMS = ClaimSql("review")  # by people, without a fence: after the claim expires anybody may decide

_CLAIM = text(f"""
    UPDATE review SET claim = :claim, {_CLAIMS.renewed}
    WHERE id IN (
        SELECT id FROM review
        WHERE extraction_id = :extraction_id AND decided_at IS NULL
            AND {_CLAIMS.is_free}
        ORDER BY urgency DESC, id LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    RETURNING id
""")
