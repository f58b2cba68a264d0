"""`/v1/reviews`: list, claim and decide values that a person should review."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field, StrictInt

from api.auth import KeyIdDep, TenantDep
from api.fields import WHOLE, ObjectId, StrictModel
from api.openapi import failures
from api.sessions import SessionDep
from features.documents.extraction.scoring.verdicts import Verdict
from features.documents.http.values import Value
from features.documents.reviewing import deciding, reviews
from features.documents.reviewing.deciding import DecideReview
from features.documents.schemas.reviews import ClaimedReviews, ReviewList, ReviewObject
from jobs.errors import InputError

router = APIRouter(prefix="/v1/reviews", tags=["extractions"], responses=failures(401, 403, 404, 409, 429, 503))


class ListQuery(StrictModel):
    extraction_id: ObjectId
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class ClaimBody(StrictModel):
    extraction_id: ObjectId
    limit: Annotated[StrictInt, Field(ge=1, le=100), WHOLE] = 10
    seconds: Annotated[StrictInt, Field(ge=10, le=86_400), WHOLE] = 600
    """Duration of the claim."""


class DecisionBody(StrictModel):
    verdict: Verdict
    """`reject`: the document has no such value."""
    value: Value = None
    """The right value, as `value_schema` requires; for a list all its items. Only with `correct`."""
    claim: ObjectId | None = None
    """The claim on the value, if there is one."""


@router.get("", operation_id="listReviews")
def list_open(session: SessionDep, *, tenant: TenantDep, query: Annotated[ListQuery, Query()]) -> ReviewList:
    """List the open reviews of a completed extraction, claimed or not, by urgency: uncertainty × weight.

    They include a random twentieth of the values not marked for review, with the reason `sample`, at random places.
    """
    extraction = reviews.completed(session, tenant.id, query.extraction_id)
    open_reviews, has_more = reviews.list_open(session, extraction, limit=query.limit)
    schema = reviews.schema_of(extraction)
    return ReviewList(data=[ReviewObject.of(each, schema) for each in open_reviews], has_more=has_more)


@router.post("/claim", operation_id="claimReviews", responses=failures(408, 413))
def claim(body: ClaimBody, session: SessionDep, *, tenant: TenantDep) -> ClaimedReviews:
    """Claim the most urgent values that no other reviewer has claimed.

    A separate call, since listing may be repeated, cached and prefetched, and would block values. A key may have
    several reviewers, so each claim has its own name. A single reviewer needs no claims.
    """
    extraction = reviews.completed(session, tenant.id, body.extraction_id)
    lasts = timedelta(seconds=body.seconds)
    claimed = reviews.claim(session, extraction, limit=body.limit, lasts=lasts)
    return ClaimedReviews.of(claimed, reviews.schema_of(extraction))


@router.post("/{review_id}", operation_id="decideReview", responses=failures(408, 413))
def decide(
    review_id: str, body: DecisionBody, session: SessionDep, *, tenant: TenantDep, key_id: KeyIdDep
) -> ReviewObject:
    """Accept an extracted value, correct it, or reject it: the document has none. Repeating it has no effect.

    An expired claim still counts unless somebody else has claimed the value.
    """
    _check_value(body)
    wish = DecideReview(verdict=body.verdict, correction=body.value, claim=body.claim)
    decided = deciding.decide(session, tenant.id, review_id, wish, by=key_id)
    extraction = reviews.completed(session, tenant.id, decided.extraction_id)
    return ReviewObject.of(decided, reviews.schema_of(extraction))


def _check_value(body: DecisionBody) -> None:
    if body.verdict is Verdict.CORRECT and body.value is None:
        raise InputError(
            "Missing required parameter: 'value', the right value. If the document has none, reject it.",
            param="value",
            code="missing_required_parameter",
        )
    if body.verdict is not Verdict.CORRECT and body.value is not None:
        raise InputError(
            f"A value is given with {body.verdict.value!r}; give it with 'correct', or leave it out.",
            param="value",
            code="invalid_value",
        )
