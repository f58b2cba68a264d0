"""`/v1/admin/…/budgets`: budgets of a tenant or a key for a day, a month or in total."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import Field

from api.fields import WHOLE, ObjectId, Storable, StrictModel
from api.openapi import failures
from api.schemas.quota import BudgetObject
from features.administration import budgets
from features.administration.http.access import AdminDep
from features.administration.schemas import BudgetList, DeletedBudget
from jobs.accounts import budgets as token_budgets
from jobs.accounts import window_budgets
from jobs.accounts.money import PICOS_A_MICRO
from jobs.accounts.tenants import find_tenant
from jobs.accounts.window_budgets import LEFT_OUT, NewBudget
from jobs.states import BudgetUnit, BudgetWindow

router = APIRouter(prefix="/v1/admin", tags=["admin"], responses=failures(401, 403, 503))

MAX_AMOUNT = 10**15


class BudgetBody(StrictModel):
    """There is one budget for each tenant or key, unit and window; when set again, fields left out stay."""

    unit: Literal["tokens", "micros"]
    limit: Annotated[int, WHOLE, Field(ge=0, le=MAX_AMOUNT)]
    window: BudgetWindow = BudgetWindow.TOTAL
    time_zone: Annotated[Storable, Field(max_length=100)] | None = None
    """The time zone in which a day or month begins; null for UTC."""
    key_id: ObjectId | None = None
    """Null for all keys of the tenant together."""
    warn_percent: Annotated[int, WHOLE, Field(ge=1, le=100)] | None = None
    """Null for no warning."""

    def wanted(self) -> NewBudget:
        is_money = self.unit == "micros"
        return NewBudget(
            unit=BudgetUnit.MONEY if is_money else BudgetUnit.TOKENS,
            window=self.window,
            limit=self.limit * PICOS_A_MICRO if is_money else self.limit,
            time_zone=self.time_zone if "time_zone" in self.model_fields_set else LEFT_OUT,
            key_id=self.key_id,
            warn_percent=self.warn_percent if "warn_percent" in self.model_fields_set else LEFT_OUT,
        )


@router.get("/tenants/{tenant_id}/budgets", operation_id="listBudgets", responses=failures(404))
def list_all(tenant_id: str, admin: AdminDep) -> BudgetList:
    tenant = find_tenant(admin.session, tenant_id)
    windows = window_budgets.allowances(admin.session, tenant.id)
    quota = token_budgets.quota(admin.session, tenant.id)
    return BudgetList(data=[BudgetObject.of(quota), *(BudgetObject.of_window(allowance) for allowance in windows)])


@router.post("/tenants/{tenant_id}/budgets", operation_id="setBudget", responses=failures(404, 408, 413))
def put(tenant_id: str, body: BudgetBody, admin: AdminDep) -> BudgetObject:
    """Set a hard limit for the usage in a window; lines beyond it wait for the next window."""
    tenant = find_tenant(admin.session, tenant_id)
    return BudgetObject.of_window(budgets.put(admin, tenant.id, body.wanted()))


@router.delete("/budgets/{budget_id}", operation_id="removeBudget", responses=failures(404))
def remove(budget_id: str, admin: AdminDep) -> DeletedBudget:
    """Remove a budget; lines that wait for it continue."""
    budgets.remove(admin, budget_id)
    return DeletedBudget(id=budget_id)
