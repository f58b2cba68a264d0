"""Values of completed extractions that people look at: written with the records, claimed by one at a time, decided.

Knows not which values these are; that is `extraction.scoring.reviews`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import Session

from extraction.fields.paths import path_of
from extraction.fields.schema import FieldSchema
from extraction.scoring.reviews import is_right, problem_of, reviewable
from extraction.scoring.verdicts import Verdict
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.extractions.claims import ExtractionWork
from jobs.extractions.lifecycle import get_extraction
from jobs.ids import new_id
from jobs.states import ExtractionState
from jobs.tables import Extraction, Review

_WRITTEN_AT_ONCE = 500


def noting(work: ExtractionWork, schema: FieldSchema, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pass records on, and write what of them is to be looked at; done again it begins anew.

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
    """Delete all that is to be looked at, and what was decided, of some extractions."""
    session.execute(delete(Review).where(Review.extraction_id.in_(extraction_ids)))


def forget_some(session: Session, extraction_ids: Sequence[str], *, limit: int) -> int:
    """Delete up to `limit` rows of these; return how many it were."""
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
    """Return a completed extraction of this tenant. Raises NotFoundError, or ConflictError while it is not."""
    extraction = get_extraction(session, tenant_id, extraction_id)
    if extraction.state != ExtractionState.COMPLETED:
        raise ConflictError(
            f"Extraction {extraction.id!r} is {extraction.state}: there are reviews once it is completed.",
            code="no_results",
        )
    return extraction


def list_open(session: Session, extraction: Extraction, *, limit: int) -> tuple[list[Review], bool]:
    """Return what is to be looked at, the most urgent first, and whether there is more."""
    is_open = (Review.extraction_id == extraction.id) & Review.decided_at.is_(None)
    query = select(Review).where(is_open).order_by(Review.urgency.desc(), Review.id).limit(limit + 1)
    found = list(session.scalars(query))
    return found[:limit], len(found) > limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Values that one reviewer has for a while; none where others have all that are left."""

    claim: str
    reviews: Sequence[Review]


def claim(session: Session, extraction: Extraction, *, limit: int, lasts: timedelta) -> Claimed:
    """Take the most urgent values that nobody has."""
    name = new_id("claim")
    values = {"extraction_id": extraction.id, "limit": limit, "claim": name, "lasts": lasts}
    ids = session.scalars(_CLAIM, values).all()
    query = select(Review).where(Review.id.in_(ids)).order_by(Review.urgency.desc(), Review.id)
    return Claimed(claim=name, reviews=list(session.scalars(query, execution_options={"populate_existing": True})))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideReview:
    """What a person says of a value; `claim` is that under which they have it, if they took one."""

    verdict: Verdict
    correction: Any = None
    claim: str | None = None


def decide(session: Session, tenant_id: str, review_id: str, wish: DecideReview, *, by: str) -> Review:
    """Note a verdict; said again it is no error. Raises NotFoundError, InputError, ConflictError."""
    review = _lock(session, tenant_id, review_id)
    extraction = get_extraction(session, tenant_id, review.extraction_id)
    correction = None if wish.verdict is not Verdict.CORRECT else {"value": wish.correction}
    if review.verdict is not None:
        if (review.verdict, review.correction) == (wish.verdict, correction):
            return review
        raise ConflictError(
            f"Review {review_id!r} is decided: {review.verdict}, by {review.decided_by}.", code="review_decided"
        )
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None, "the database has a clock"
    if review.claim != wish.claim and review.claimed_until is not None and review.claimed_until > now:
        raise ConflictError(
            f"Review {review_id!r} is claimed by another reviewer until {review.claimed_until:%H:%M:%S} UTC. Claim "
            "others with POST /v1/reviews/claim.",
            code="review_claimed",
        )
    review.is_right = _checked(extraction, review, wish)
    review.verdict, review.correction = wish.verdict.value, correction
    review.decided_by, review.decided_at = by, now
    session.flush()
    return review


def _checked(extraction: Extraction, review: Review, wish: DecideReview) -> bool:
    """Return whether what was extracted is right. Raises InputError for a verdict that cannot be about it."""
    extracted = review.evidence["value"]
    if extracted == []:
        return _is_empty_list(review, wish)
    leaf = FieldSchema.parse(extraction.plan["schema"]).leaf(path_of(review.place))
    if wish.verdict is Verdict.REJECT and extracted is None:
        raise InputError(
            f"Nothing was found for {review.path!r}: accept that, or correct it with the value.",
            param="verdict",
            code="invalid_value",
        )
    if wish.verdict is Verdict.CORRECT and (problem := problem_of(leaf, wish.correction)) is not None:
        raise InputError(
            f"{review.path!r} cannot be {str(wish.correction)[:100]!r}: {problem}.",
            param="value",
            code="invalid_value",
        )
    return is_right(leaf, extracted, wish.verdict, wish.correction)


def _is_empty_list(review: Review, wish: DecideReview) -> bool:
    """Return whether a list has no item, which is all that can be decided about it. Raises InputError."""
    if wish.verdict is Verdict.CORRECT:
        raise InputError(
            f"{review.path!r} is a list of which nothing was answered: accept it where the document has no item, and "
            "reject it where it has some. Items are not given in a review: extract from the document again, with a "
            "higher max_tokens or fewer fields at once.",
            param="verdict",
            code="invalid_value",
        )
    return wish.verdict is Verdict.ACCEPT


def _lock(session: Session, tenant_id: str, review_id: str) -> Review:
    is_it = (Review.id == review_id) & (Review.tenant_id == tenant_id)
    review = session.scalar(select(Review).where(is_it).with_for_update())
    if review is None:
        raise NotFoundError(f"No review found with id {review_id[:100]!r}.", param="review_id")
    return review


_CLAIM = text("""
    UPDATE review SET claim = :claim, claimed_until = clock_timestamp() + CAST(:lasts AS interval)
    WHERE id IN (
        SELECT id FROM review
        WHERE extraction_id = :extraction_id AND decided_at IS NULL
            AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())
        ORDER BY urgency DESC, id LIMIT :limit FOR UPDATE SKIP LOCKED
    )
    RETURNING id
""")
