"""Operators' actions on tenants."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from jobs.accounts import budgets, limits, tenants
from jobs.accounts.tenants import find_tenant
from jobs.admin_log import Admin, Administration, Shown
from jobs.batches import deletion
from jobs.states import AskedPriority
from jobs.tables import Tenant


class TenantChanges(TypedDict, total=False):
    """Changes of a tenant; fields left out stay as they are."""

    limit_tokens: int | None
    """Limit of its token budget; None for no limit."""
    limits: dict[str, int | None]
    """By name; None resets to the setting."""
    best_priority: AskedPriority
    may_overflow: bool
    may_leave_house: bool
    retention_days: int | None
    """None for the service's default."""


def create(
    admin: Admin,
    name: str,
    *,
    weight: float = 1.0,
    limit_tokens: int | None = None,
    best_priority: AskedPriority = AskedPriority.NORMAL,
) -> Tenant:
    """Create a tenant: `jobs.accounts.tenants.create_tenant`."""
    tenant = tenants.create_tenant(
        admin.session, name, weight=weight, limit_tokens=limit_tokens, best_priority=best_priority
    )
    admin.note("tenant.create", tenant.id, tenant_id=tenant.id, after=shown(admin, tenant))
    return tenant


def change(admin: Admin, tenant: Tenant, **changes: Unpack[TenantChanges]) -> None:
    """Change a tenant's rights and limits. Raise InputError; then nothing is changed."""
    session = admin.session
    _lock(admin, tenant)
    with admin.noting("tenant.change", tenant.id, tenant_id=tenant.id, look=lambda: shown(admin, tenant)):
        if "limit_tokens" in changes:
            budgets.set_limit(session, tenant.id, changes["limit_tokens"])
        if "limits" in changes:
            limits.set_limits(session, tenant.id, changes["limits"])
        if "best_priority" in changes:
            limits.set_best_priority(session, tenant.id, changes["best_priority"])
        if "may_overflow" in changes:
            limits.set_overflow(session, tenant.id, is_allowed=changes["may_overflow"])
        if "may_leave_house" in changes:
            limits.set_leaving(session, tenant.id, is_allowed=changes["may_leave_house"])
        if "retention_days" in changes:
            tenants.set_retention(session, tenant, changes["retention_days"])
        session.refresh(tenant)


def disable(admin: Admin, tenant: Tenant) -> None:
    """Refuse a tenant's submissions from now on. Accepted work continues."""
    _set_disabled(admin, tenant, is_disabled=True)


def cancel_batches(administration: Administration, tenant_id: str) -> int:
    """Cancel the open batches of a disabled tenant, a hundred per transaction; return their number.

    Each transaction has its own log entry. If one fails, the earlier ones stay, and another call continues.
    """
    total = 0
    while True:
        with administration() as admin:
            num_cancelled = _cancel_some(admin, find_tenant(admin.session, tenant_id))
        if not num_cancelled:
            return total
        total += num_cancelled


def _cancel_some(admin: Admin, tenant: Tenant) -> int:
    _lock(admin, tenant)  # so that concurrent calls count no batch twice
    num_cancelled = deletion.cancel_open(admin.session, tenant.id)
    if num_cancelled:
        after = {"cancelled_batches": num_cancelled}
        admin.note("tenant.cancel_batches", tenant.id, tenant_id=tenant.id, before={}, after=after)
    return num_cancelled


def enable(admin: Admin, tenant: Tenant) -> None:
    """Accept a tenant's submissions again."""
    _set_disabled(admin, tenant, is_disabled=False)


def _set_disabled(admin: Admin, tenant: Tenant, *, is_disabled: bool) -> None:
    _lock(admin, tenant)
    action = "tenant.disable" if is_disabled else "tenant.enable"
    with admin.noting(action, tenant.id, tenant_id=tenant.id, look=lambda: shown(admin, tenant)):
        tenants.set_disabled(admin.session, tenant, is_disabled=is_disabled)


def delete(admin: Admin, tenant: Tenant) -> None:
    """Delete a tenant for good: `jobs.batches.deletion.delete_tenant`."""
    _lock(admin, tenant)
    before = shown(admin, tenant)
    deletion.delete_tenant(admin.session, tenant, by=admin.actor.as_deleter)
    admin.note("tenant.delete", tenant.id, tenant_id=tenant.id, before=before)


def _lock(admin: Admin, tenant: Tenant) -> None:
    """Lock a tenant against concurrent changes, so that each logs the true old values; its work continues."""
    admin.session.refresh(tenant, with_for_update={"key_share": True})


def shown(admin: Admin, tenant: Tenant) -> Shown:
    """Return a tenant's values for the log."""
    columns: dict[str, Any] = {name: getattr(tenant, f"max_{name}") for name in limits.NAMES}
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "limit_tokens": budgets.quota(admin.session, tenant.id).limit,
        "best_priority": tenant.best_priority,
        "may_overflow": tenant.may_overflow,
        "may_leave_house": tenant.may_leave_house,
        "retention_days": tenant.retention_days,
        "disabled_at": tenant.disabled_at,
        **columns,
    }
