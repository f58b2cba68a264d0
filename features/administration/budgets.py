"""Operators' actions on budgets of days, months and keys; a tenant's token budget is changed with the tenant."""

from __future__ import annotations

from jobs.accounts import window_budgets
from jobs.accounts.allowances import Allowance
from jobs.accounts.window_budgets import NewBudget
from jobs.admin_log import Admin, Shown
from jobs.tables import WindowBudget


def put(admin: Admin, tenant_id: str, new: NewBudget) -> Allowance:
    """Set a budget: `jobs.accounts.window_budgets.set_budget`."""
    before = {allowance.budget_id: allowance for allowance in window_budgets.allowances(admin.session, tenant_id)}
    budget = window_budgets.set_budget(admin.session, tenant_id, new)
    old = before.get(budget.budget_id)
    admin.note(
        "budget.set",
        budget.budget_id,
        tenant_id=tenant_id,
        before=None if old is None else _shown(old),
        after=_shown(budget),
    )
    return budget


def remove(admin: Admin, budget_id: str) -> None:
    """Remove a budget: `jobs.accounts.window_budgets.remove_budget`."""
    row = admin.session.get(WindowBudget, budget_id)
    tenant_id = None if row is None else row.tenant_id
    known = [] if tenant_id is None else window_budgets.allowances(admin.session, tenant_id)
    window_budgets.remove_budget(admin.session, budget_id)
    for allowance in known:
        if allowance.budget_id == budget_id:
            admin.note("budget.remove", budget_id, tenant_id=tenant_id, before=_shown(allowance))


def _shown(allowance: Allowance) -> Shown:
    return {
        "unit": allowance.unit.value,
        "window": allowance.window.value,
        "time_zone": allowance.time_zone,
        "key_id": allowance.key_id,
        "limit": allowance.limit,
        "warn_percent": allowance.warn_percent,
    }
