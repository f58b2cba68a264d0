"""`/v1/pipelines/{id}/report`: what became of a pipeline's day."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Query

from api.auth import TenantDep
from api.fields import StrictModel
from api.openapi import failures
from api.services import ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_LISTING
from features.reports.reading import read_report
from features.reports.schemas import ReportObject

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"], responses=failures(401, 403, 404, 429, 503))


class ReportQuery(StrictModel):
    day: date | None = None
    """In the time zone of the pipeline's first schedule; by default the latest day whose runs were all due."""


@router.get("/{pipeline_id}/report", operation_id="retrieveReport", dependencies=[ONE_LISTING])
def retrieve(
    pipeline_id: str,
    session: SessionDep,
    *,
    tenant: TenantDep,
    services: ServicesDep,
    query: Annotated[ReportQuery, Query()],
) -> ReportObject:
    """Return the report of a pipeline's day, by its id or its name; drift is beside the last seven nights."""
    report = read_report(session, tenant.id, pipeline_id, query.day)
    return ReportObject.of(report, currency=services.settings.currency)
