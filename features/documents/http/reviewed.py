"""`/v1/extractions/{id}/…`: progress of reviews, the gold that they make, and a calibration fitted to it."""

from __future__ import annotations

from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Response
from pydantic import Field

from api.auth import TenantDep
from api.fields import StrictModel
from api.openapi import failures, lines_of
from api.services import Services, ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_ESTIMATE, ONE_LISTING
from features.documents import records
from features.documents.extraction.scoring.calibration import TARGET, Judged
from features.documents.http.record_pages import ResultsQuery, records_page, sent
from features.documents.reviewing import items, reviewed, reviews
from features.documents.schemas.reviews import CalibrationObject, GoldLine, ReviewSummary
from jobs.database import transaction

router = APIRouter(
    prefix="/v1/extractions/{extraction_id}", tags=["extractions"], responses=failures(401, 403, 404, 409, 429, 503)
)


class CalibrationBody(StrictModel):
    target: Annotated[float, Field(ge=0.5, lt=1.0)] = TARGET
    """Share of right values to reach among those that nobody reviews. 1 is unreachable, since one more wrong value is
    counted than was seen."""


@router.get("/reviews", operation_id="summariseReviews")
def summary(extraction_id: str, session: SessionDep, *, tenant: TenantDep) -> ReviewSummary:
    """Count open and decided reviews, and estimate the share of wrong values among those not marked for review."""
    extraction = reviews.completed(session, tenant.id, extraction_id)
    return ReviewSummary.of(reviewed.tallies(session, extraction), items.tally(session, extraction))


_GOLD = lines_of(
    GoldLine,
    {
        "x-next-after": "The `after` of the next page.",
        "x-has-more": "`true` where there is a next page, else `false`.",
    },
)


@router.get(
    "/gold",
    operation_id="listGold",
    response_class=Response,
    responses={200: _GOLD, **failures(410)},
    dependencies=[ONE_LISTING],
)
async def gold(
    extraction_id: str, *, tenant: TenantDep, services: ServicesDep, query: Annotated[ResultsQuery, Query()]
) -> Response:
    """Return people's decisions as a gold file, one document per line.

    A page covers `limit` documents; documents without decisions are left out.
    """
    find, amend = records.records_file, reviewed.gold
    return sent(await records_page(services, tenant.id, extraction_id, query, find=find, amend=amend))


@router.post(
    "/calibration", operation_id="calibrateExtraction", responses=failures(408, 413), dependencies=[ONE_ESTIMATE]
)
async def calibrate(
    extraction_id: str, body: CalibrationBody, *, tenant: TenantDep, services: ServicesDep
) -> CalibrationObject:
    """Fit a calibration to the newest 20,000 decisions; the result is not stored."""
    async with services.session_slots:
        decisions = await run_sync(_known, services, tenant.id, extraction_id)
    fitted = await run_sync(
        lambda: reviewed.fitted(decisions, target=body.target), limiter=services.store.estimate_threads
    )
    return CalibrationObject.of(extraction_id, fitted)


def _known(services: Services, tenant_id: str, extraction_id: str) -> list[Judged]:
    with transaction(services.sessions) as session:
        return reviewed.judged(session, reviews.completed(session, tenant_id, extraction_id))
