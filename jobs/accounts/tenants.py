"""Tenants: create, find, disable, and set their retention. Keys are in `jobs.accounts.keys`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.accounts import browser_sessions
from jobs.accounts.budgets import check_limit
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.ids import new_id
from jobs.settings import MAX_DAYS
from jobs.states import AskedPriority
from jobs.tables import Budget, Tenant

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
"""Tokens divided by a weight add up to a tenant's virtual time, which must stay a number that others can reach."""


def create_tenant(
    session: Session,
    name: str,
    *,
    weight: float = 1.0,
    limit_tokens: int | None = None,
    best_priority: AskedPriority = AskedPriority.NORMAL,
) -> Tenant:
    """Create a tenant with its budget; `limit_tokens` None means unlimited. Raises ConflictError on a taken name."""
    if not name.strip():
        raise InputError("the tenant's name is empty; give it one", param="name")
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        allowed = f"{MIN_WEIGHT:g} to {MAX_WEIGHT:g} (1 is the usual share)"
        raise InputError(f"weight is {weight}; give {allowed}", param="weight")
    check_limit(limit_tokens)
    tenant: Tenant | None = session.scalar(
        insert(Tenant)
        .values(id=new_id("tenant"), name=name, weight=weight, best_priority=best_priority.value)
        .on_conflict_do_nothing(index_elements=[Tenant.name])
        .returning(Tenant)
    )
    if tenant is None:
        raise ConflictError(f"a tenant named {name!r} exists already; choose another name", param="name")
    session.add(Budget(tenant_id=tenant.id, limit_tokens=limit_tokens))
    session.flush()
    return tenant


def find_tenant(session: Session, name: str) -> Tenant:
    """Return the tenant of this name or id. Raises NotFoundError."""
    is_named = (Tenant.name == name) | (Tenant.id == name)
    tenant = session.scalar(select(Tenant).where(is_named, Tenant.deleted_at.is_(None)))
    if tenant is None:
        raise NotFoundError(f"there is no tenant {name!r}; `tokenmill tenants create {name}` makes it")
    return tenant


def list_tenants(session: Session) -> Sequence[Tenant]:
    """Return all tenants that are not deleted, oldest first."""
    return session.scalars(
        select(Tenant).where(Tenant.deleted_at.is_(None)).order_by(Tenant.created_at, Tenant.id)
    ).all()


def set_retention(session: Session, tenant: Tenant, days: int | None) -> None:
    """Set for how many days a tenant's results are kept line by line; None: the service's default.

    Raises InputError.
    """
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise InputError(f"the retention is {days} days; give 1 to {MAX_DAYS}", param="retention_days")
    tenant.retention_days = days
    session.flush()


def set_disabled(session: Session, tenant: Tenant, *, is_disabled: bool) -> None:
    """Refuse a tenant's new submits, or accept them again; accepted work continues. The first time is kept.

    Disabling ends its browser sessions.
    """
    if is_disabled != (tenant.disabled_at is not None):
        now = session.scalar(select(func.now()))
        tenant.disabled_at = now if is_disabled else None
        tenant.enabled_at = None if is_disabled else now
        session.flush()
    if is_disabled:
        browser_sessions.end_of_tenant(session, tenant.id)
