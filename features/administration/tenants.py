"""What operators do to tenants. Knows of their work only that disabling or deleting one may cancel it."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from jobs.accounts import budgets, limits, tenants
from jobs.accounts.tenants import find_tenant
from jobs.admin_log import Admin, Administration, Shown
from jobs.batches import deletion
from jobs.states import AskedPriority
from jobs.tables import Tenant


class TenantChanges(TypedDict, total=False):
    """What of a tenant is to be changed; what is left out stays."""

    limit_tokens: int | None
    """Of its token budget; None: no limit."""
    limits: dict[str, int | None]
    """By name; None goes back to the setting."""
    best_priority: AskedPriority
    may_overflow: bool
    retention_days: int | None
    """None: as long as the service keeps results."""


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
    """Change what a tenant may have and do. Raises InputError; then nothing is changed."""
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
        if "retention_days" in changes:
            tenants.set_retention(session, tenant, changes["retention_days"])
        session.refresh(tenant)


def disable(admin: Admin, tenant: Tenant) -> None:
    """Refuse what a tenant submits from now on. What was accepted runs on: it is nobody's to lose."""
    _set_disabled(admin, tenant, is_disabled=True)


def cancel_batches(administration: Administration, tenant_id: str) -> int:
    """Cancel the open batches of a tenant that is disabled, a hundred in a transaction; return how many.

    Each transaction has its own entry in the log. Where one fails those before it stay, and another call goes on.
    """
    total = 0
    while True:
        with administration() as admin:
            num_cancelled = _cancel_some(admin, find_tenant(admin.session, tenant_id))
        if not num_cancelled:
            return total
        total += num_cancelled


def _cancel_some(admin: Admin, tenant: Tenant) -> int:
    _lock(admin, tenant)  # two who cancel at once count no batch twice
    num_cancelled = deletion.cancel_open(admin.session, tenant.id)
    if num_cancelled:
        after = {"cancelled_batches": num_cancelled}
        admin.note("tenant.cancel_batches", tenant.id, tenant_id=tenant.id, before={}, after=after)
    return num_cancelled


def enable(admin: Admin, tenant: Tenant) -> None:
    """Accept what a tenant submits again."""
    _set_disabled(admin, tenant, is_disabled=False)


def _set_disabled(admin: Admin, tenant: Tenant, *, is_disabled: bool) -> None:
    _lock(admin, tenant)
    action = "tenant.disable" if is_disabled else "tenant.enable"
    with admin.noting(action, tenant.id, tenant_id=tenant.id, look=lambda: shown(admin, tenant)):
        tenants.set_disabled(admin.session, tenant, is_disabled=is_disabled)


def delete(admin: Admin, tenant: Tenant) -> None:
    """Close a tenant for good: `jobs.batches.deletion.delete_tenant`."""
    _lock(admin, tenant)
    before = shown(admin, tenant)
    deletion.delete_tenant(admin.session, tenant, by=admin.actor.as_deleter)
    admin.note("tenant.delete", tenant.id, tenant_id=tenant.id, before=before)


def _lock(admin: Admin, tenant: Tenant) -> None:
    """Have other changes of a tenant wait, so that each notes what it found; its work goes on."""
    admin.session.refresh(tenant, with_for_update={"key_share": True})


def shown(admin: Admin, tenant: Tenant) -> Shown:
    """Return what the log shows of a tenant."""
    columns: dict[str, Any] = {name: getattr(tenant, f"max_{name}") for name in limits.NAMES}
    return {
        "name": tenant.name,
        "weight": tenant.weight,
        "limit_tokens": budgets.quota(admin.session, tenant.id).limit,
        "best_priority": tenant.best_priority,
        "may_overflow": tenant.may_overflow,
        "retention_days": tenant.retention_days,
        "disabled_at": tenant.disabled_at,
        **columns,
    }
