"""`/v1/pipelines/{id}/report/subscription`: when a pipeline's reports are due, and who gets them by mail."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from api.auth import TenantDep
from api.fields import Storable, StrictModel
from api.openapi import failures
from api.services import ServicesDep
from api.sessions import SessionDep
from features.reports import subscriptions
from features.reports.schemas import DeletedReportSubscription, ReportSubscriptionObject
from features.reports.settings import ReportSettings
from features.reports.subscriptions import DEFAULT_TIME, MOST_RECIPIENTS, Wish

_PATH = "/{pipeline_id}/report/subscription"

router = APIRouter(prefix="/v1/pipelines", tags=["pipelines"], responses=failures(401, 403, 404, 429, 503))

Address = Annotated[Storable, Field(max_length=254)]


class ReportSubscriptionBody(StrictModel):
    at: Annotated[Storable, Field(max_length=5)] = DEFAULT_TIME
    """When a report is due each day, in the time zone of the pipeline's days."""
    mail_to: Annotated[list[Address], Field(max_length=MOST_RECIPIENTS)] = Field(default_factory=list)
    """Addresses in domains that the operator allows."""
    include_rows: bool = False
    """Whether mails hold texts of failed rows."""


@router.get(_PATH, operation_id="retrieveReportSubscription")
def retrieve(pipeline_id: str, session: SessionDep, *, tenant: TenantDep) -> ReportSubscriptionObject:
    found = subscriptions.get_subscription(session, tenant.id, pipeline_id)
    return ReportSubscriptionObject.of(found, subscriptions.last_due(session, found.pipeline_id))


@router.put(_PATH, operation_id="setReportSubscription", responses=failures(408, 413))
def put(
    pipeline_id: str, body: ReportSubscriptionBody, session: SessionDep, *, tenant: TenantDep, services: ServicesDep
) -> ReportSubscriptionObject:
    """Set when the reports of a pipeline are due and who gets them, from now on."""
    wish = Wish(at=body.at, mail_to=body.mail_to, include_rows=body.include_rows)
    settings = services.settings.of(ReportSettings)
    made = subscriptions.set_subscription(session, tenant.id, pipeline_id, wish, settings)
    return ReportSubscriptionObject.of(made, subscriptions.last_due(session, made.pipeline_id))


@router.delete(_PATH, operation_id="deleteReportSubscription")
def delete(pipeline_id: str, session: SessionDep, *, tenant: TenantDep) -> DeletedReportSubscription:
    """End the reports of a pipeline; a mail that waits is not sent."""
    return DeletedReportSubscription(pipeline_id=subscriptions.delete_subscription(session, tenant.id, pipeline_id))
