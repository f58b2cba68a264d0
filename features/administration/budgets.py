"""What operators do to budgets of days, months and keys; a tenant's token budget is changed with the tenant."""

from __future__ import annotations

from jobs.accounts import window_budgets
from jobs.accounts.allowances import Allowance
from jobs.accounts.window_budgets import NewBudget
from jobs.admin_log import Admin, Shown
from jobs.tables import WindowBudget


def put(admin: Admin, tenant_id: str, wanted: NewBudget) -> Allowance:
    """Set a budget: `jobs.accounts.window_budgets.set_budget`."""
    before = {found.budget_id: found for found in window_budgets.allowances(admin.session, tenant_id)}
    made = window_budgets.set_budget(admin.session, tenant_id, wanted)
    old = before.get(made.budget_id)
    admin.note(
        "budget.set",
        made.budget_id,
        tenant_id=tenant_id,
        before=None if old is None else _shown(old),
        after=_shown(made),
    )
    return made


def remove(admin: Admin, budget_id: str) -> None:
    """Take a budget away: `jobs.accounts.window_budgets.remove_budget`."""
    row = admin.session.get(WindowBudget, budget_id)
    tenant_id = None if row is None else row.tenant_id
    known = [] if tenant_id is None else window_budgets.allowances(admin.session, tenant_id)
    window_budgets.remove_budget(admin.session, budget_id)
    for found in known:
        if found.budget_id == budget_id:
            admin.note("budget.remove", budget_id, tenant_id=tenant_id, before=_shown(found))


def _shown(found: Allowance) -> Shown:
    return {
        "unit": found.unit.value,
        "window": found.window.value,
        "time_zone": found.time_zone,
        "key_id": found.key_id,
        "limit": found.limit,
        "warn_percent": found.warn_percent,
    }
