"""Decisions about reviewed values: checked against the value, and stored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.documents.extraction.fields.allowed import problem_of
from features.documents.extraction.fields.paths import path_of
from features.documents.extraction.scoring.reviews import is_right
from features.documents.extraction.scoring.verdicts import Verdict
from features.documents.lifecycle import EXTRACTIONS
from features.documents.reviewing import items
from features.documents.reviewing.reviews import require_unclaimed, schema_of
from features.documents.tables import Extraction, Review
from jobs.counted import counted
from jobs.errors import ConflictError, InputError, NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecideReview:
    """A person's decision about a value; `claim` is their claim on it, if any."""

    verdict: Verdict
    correction: Any = None
    claim: str | None = None


def decide(session: Session, tenant_id: str, review_id: str, wish: DecideReview, *, by: str) -> Review:
    """Store a verdict; repeating the same one has no effect. Raises NotFoundError, InputError, ConflictError."""
    review = _find(session, tenant_id, review_id)
    extraction = EXTRACTIONS.get(session, tenant_id, review.extraction_id)
    if review.evidence["value"] == []:
        EXTRACTIONS.lock_own(session, tenant_id, extraction.id)  # before the review: the lock order of all item changes
    review = _find(session, tenant_id, review_id, is_locked=True)
    correction = None if wish.verdict is not Verdict.CORRECT else {"value": wish.correction}
    if review.verdict is not None:
        if (review.verdict, review.correction) == (wish.verdict, correction):
            return review
        raise ConflictError(
            f"Review {review_id!r} is decided: {review.verdict}, by {review.decided_by}.", code="review_decided"
        )
    require_unclaimed(session, review, wish.claim)
    review.is_right = _checked(session, extraction, review, wish, by=by)
    now = session.scalar(select(func.clock_timestamp()))
    review.verdict, review.correction = wish.verdict.value, correction
    review.decided_by, review.decided_at = by, now
    session.flush()
    return review


def _checked(session: Session, extraction: Extraction, review: Review, wish: DecideReview, *, by: str) -> bool:
    """Return whether the extracted value is right. Raises InputError for a verdict that does not apply to it."""
    extracted = review.evidence["value"]
    if extracted == []:
        return _is_empty_list(session, extraction, review, wish, by=by)
    if wish.verdict is Verdict.REJECT and extracted is None:
        if "answer" in review.evidence:  # it was not located; null already says that the document has none
            return True
        raise InputError(
            f"Nothing was found for {review.path!r}: accept that, or correct it with the value.",
            param="verdict",
            code="invalid_value",
        )
    leaf = schema_of(extraction).leaf(path_of(review.place))
    if wish.verdict is Verdict.CORRECT and (problem := problem_of(leaf, wish.correction)) is not None:
        raise InputError(
            f"{review.path!r} cannot be {str(wish.correction)[:100]!r}: {problem}.",
            param="value",
            code="invalid_value",
        )
    return is_right(leaf, extracted, wish.verdict, wish.correction)


def _is_empty_list(session: Session, extraction: Extraction, review: Review, wish: DecideReview, *, by: str) -> bool:
    """Return whether a list is really empty; given items are added. Raises InputError, ConflictError."""
    if wish.verdict is Verdict.CORRECT:
        items.add_all(session, extraction, review, wish.correction, by=by)
    elif wish.verdict is Verdict.ACCEPT and (remaining := items.added_to(session, review)[0]):
        raise ConflictError(
            f"{review.path!r} has {counted(len(remaining), 'added item')}: correct it with all its items.",
            param="verdict",
            code="item_changed",
        )
    return wish.verdict is Verdict.ACCEPT


def _find(session: Session, tenant_id: str, review_id: str, *, is_locked: bool = False) -> Review:
    is_it = (Review.id == review_id) & (Review.tenant_id == tenant_id)
    query = select(Review).where(is_it)
    options = {"populate_existing": True}
    review = session.scalar(query.with_for_update() if is_locked else query, execution_options=options)
    if review is None:
        raise NotFoundError(f"No review found with id {review_id[:100]!r}.", param="review_id")
    return review
