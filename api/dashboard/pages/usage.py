"""`/usage`: the usage of a tenant by day, model or key; for operators, that of each tenant."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import Query, Request, Response
from sqlalchemy.orm import Session

from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, Viewer, ViewerDep
from api.fields import StrictModel
from api.schemas.quota import BudgetObject
from api.schemas.usage import UsageObject
from api.services import Services, ServicesDep
from jobs.accounts import budgets, window_budgets
from jobs.accounts.money import in_currency
from jobs.accounts.usage import GroupBy, period, read_usage
from jobs.overview import spending

router = page_router()

_MOST = 500


class UsageQuery(StrictModel):
    by: GroupBy = GroupBy.DAY
    since: date | None = None
    until: date | None = None


@router.get("/usage", name="showUsage")
def show(
    request: Request,
    session: ReadingDep,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[UsageQuery, Query()],
) -> Response:
    if viewer.is_operator:
        return _of_all(request, viewer, session, services)
    tenant_id = viewer.caller.owner().id
    days = period(query.since, query.until)
    page = read_usage(session, tenant_id, days, group_by=[query.by], limit=_MOST)
    windows = [BudgetObject.of_window(allowance) for allowance in window_budgets.allowances(session, tenant_id)]
    return render(
        request,
        viewer,
        "usage.html",
        query=query,
        asked=days,
        groups=list(GroupBy),
        rows=[UsageObject.of(one) for one in page.data],
        has_more=page.next_page is not None,
        budgets=[BudgetObject.of(budgets.quota(session, tenant_id)), *windows],
        currency=services.settings.currency,
    )


def _of_all(request: Request, viewer: Viewer, session: Session, services: Services) -> Response:
    spent = spending.by_tenant(session)
    return render(
        request,
        viewer,
        "usage_of_all.html",
        tenants=[(one, in_currency(one.cost_picos)) for one in spent],
        wasted=spending.wasted_by_model(session),
        spilled=[(one, in_currency(one.picos)) for one in spending.spilled_by_model(session)],
        days=spending.DAYS,
        currency=services.settings.currency,
    )
