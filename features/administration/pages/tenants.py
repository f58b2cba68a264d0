"""`/tenants` and `/log`, for operators: tenants with their rights, keys and budgets, and the admin log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import Field

from api.dashboard import formats
from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.fields import StrictModel
from api.schemas.quota import BudgetObject
from api.services import ServicesDep
from features.administration.schemas import KeyObject, TenantObject
from jobs.accounts import budgets, tenants, window_budgets
from jobs.accounts.keys import list_keys
from jobs.accounts.limits import NAMES
from jobs.accounts.money import in_currency
from jobs.admin_log import entries
from jobs.states import AskedPriority, BudgetUnit, BudgetWindow, Scope

router = page_router()

_ENTRIES = 50


class LogQuery(StrictModel):
    before: Annotated[int, Field(ge=1, lt=2**62)] | None = None


@router.get("/tenants", name="showTenants")
def show(request: Request, session: ReadingDep, *, viewer: ViewerDep) -> Response:
    viewer.caller.require(Scope.ADMIN)
    rows = tenants.list_tenants(session)
    quotas = budgets.quotas(session, [tenant.id for tenant in rows])
    objects = [TenantObject.of(tenant, quotas[tenant.id]) for tenant in rows]
    return render(request, viewer, "tenants.html", tenants=objects, classes=_CLASSES)


@router.get("/tenants/{tenant_id}", name="showTenant")
def show_one(
    tenant_id: str, request: Request, session: ReadingDep, *, viewer: ViewerDep, services: ServicesDep
) -> Response:
    viewer.caller.require(Scope.ADMIN)
    tenant = tenants.find_tenant(session, tenant_id)
    quota = budgets.quota(session, tenant.id)
    windows = [BudgetObject.of_window(allowance) for allowance in window_budgets.allowances(session, tenant.id)]
    return render(
        request,
        viewer,
        "tenant.html",
        tenant=TenantObject.of(tenant, quota),
        keys=[KeyObject.of(key) for key in list_keys(session, tenant.id)],
        budgets=[BudgetObject.of(quota), *windows],
        currency=services.settings.currency,
        classes=_CLASSES,
        defaults={name: getattr(services.settings, f"tenant_{name}") for name in NAMES},
        windows=BudgetWindow,
    )


@router.get("/log", name="showAdminLog")
def show_log(
    request: Request, session: ReadingDep, *, viewer: ViewerDep, query: Annotated[LogQuery, Query()]
) -> Response:
    viewer.caller.require(Scope.ADMIN)
    rows = entries(session, before_id=query.before, limit=_ENTRIES + 1)
    more = rows[_ENTRIES - 1].id if len(rows) > _ENTRIES else None
    changed = [(entry, _changes(entry.before or {}, entry.after or {})) for entry in rows[:_ENTRIES]]
    return render(request, viewer, "log.html", entries=changed, more=more)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The change of one field in a log entry."""

    name: str
    before: str | None
    after: str | None


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[_Change]:
    """Return the changed fields; for a created or removed object, all its fields."""
    names = dict.fromkeys((*before, *after))
    changes = [_Change(name=name, before=_written(name, before), after=_written(name, after)) for name in names]
    return [change for change in changes if change.before != change.after]


def _written(name: str, fields: Mapping[str, Any]) -> str | None:
    value = fields.get(name)
    if value in ({}, []):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name == "limit" and fields.get("unit") == BudgetUnit.MONEY and isinstance(value, int):
        return in_currency(value)
    return formats.exact(value) if isinstance(value, int) else None if value is None else str(value)


_CLASSES = [priority.value for priority in AskedPriority]
