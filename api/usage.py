"""`/v1/usage`: sums of a tenant's usage and cost."""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BeforeValidator, Field

from api.auth import TenantDep
from api.fields import Storable, StrictModel
from api.openapi import csv_of, failures
from api.schemas.usage import UsageObject, UsagePageObject, as_csv
from api.services import ServicesDep
from api.sessions import SessionDep
from api.spending import ONE_SUM
from jobs.accounts.usage import MAX_PAGE, parse_group_by, period, read_usage

router = APIRouter(prefix="/v1/usage", tags=["usage"], responses=failures(401, 403, 429, 503))


class Form(StrEnum):
    JSON = "json"
    CSV = "csv"


def _written_as_day(value: object) -> object:
    """Refuse values that pydantic would read as seconds since 1970."""
    if isinstance(value, str) and not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise ValueError("Give a day such as 2026-05-01")
    return value


Day = Annotated[date, BeforeValidator(_written_as_day)]


class UsageQuery(StrictModel):
    since: Day | None = None
    """The first day in UTC; by default, 30 days up to `until`."""
    until: Day | None = None
    """The last day; today by default."""
    group_by: Annotated[Storable, Field(max_length=80)] = "day"
    """One or more of day, model, key and batch, separated by commas."""
    page: Annotated[Storable | None, Field(max_length=4000)] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 1000
    format: Form = Form.JSON


@router.get(
    "",
    operation_id="readUsage",
    response_model=UsagePageObject,
    responses={200: csv_of("`x-next-page` has the `page` of the next one, if there is one."), **failures(413)},
    dependencies=[ONE_SUM],
)
def read(
    session: SessionDep, *, tenant: TenantDep, services: ServicesDep, query: Annotated[UsageQuery, Query()]
) -> UsagePageObject | Response:
    """Return the tenant's usage by day, model, key and batch, in the order of the groups."""
    days = period(query.since, query.until)
    group_by = parse_group_by(query.group_by)
    sums = read_usage(session, tenant.id, days, group_by=group_by, page=query.page, limit=query.limit)
    data = [UsageObject.of(usage) for usage in sums.data]
    currency = services.settings.currency
    if query.format is Form.CSV:
        headers = {} if sums.next_page is None else {"x-next-page": sums.next_page}
        return Response(as_csv(data, currency=currency), media_type="text/csv", headers=headers)
    return UsagePageObject(
        since=days.since.isoformat(),
        until=days.until.isoformat(),
        currency=currency,
        data=data,
        has_more=sums.next_page is not None,
        next_page=sums.next_page,
    )
