"""Limits of a tenant: the operator's number or the setting's default, and the classes it may use.

Defines which limits exist and their values for a tenant; the counting is done elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from sqlalchemy import update
from sqlalchemy.orm import Session

from jobs.accounts import reading
from jobs.errors import ForbiddenError, InputError
from jobs.settings import Settings
from jobs.states import AskedPriority
from jobs.tables import Tenant

MAX_LIMIT = 10**15


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Inclusive. Each has a column `max_…` of the tenant and a setting `tenant_…`."""

    requests_per_minute: int
    """API requests; bursts may use a sixth of it at once."""
    tokens_per_minute: int
    """Estimated tokens of submitted batches."""
    bytes_per_minute: int
    """Request bodies, uploads included."""
    open_batches: int
    """Batches that have not ended."""
    enqueued_tokens: int
    """Estimated tokens of the open batches."""
    files: int
    """Stored files, outputs included."""
    stored_bytes: int
    """Size of these files."""
    uploads: int
    """Concurrent, per API process."""
    downloads: int
    """Concurrent, per API process."""
    urgent_tokens: int
    """Estimated tokens of one model's running urgent work; work beyond it queues as normal."""
    reading_seconds_per_day: int | None
    """Document reading time per UTC day; lines beyond it wait for the next day. None: no limit."""


NAMES = tuple(field.name for field in fields(Limits))


def limits_of(tenant: Tenant, settings: Settings) -> Limits:
    """Return the limits of a tenant."""
    own = {name: getattr(tenant, f"max_{name}") for name in NAMES}
    return Limits(
        **{name: getattr(settings, f"tenant_{name}") if value is None else value for name, value in own.items()}
    )


def set_limits(session: Session, tenant_id: str, changes: dict[str, int | None]) -> None:
    """Set limits of a tenant by name; None restores the setting. Raises InputError."""
    for name, value in changes.items():
        assert name in NAMES, name
        if value is not None and not 0 <= value <= MAX_LIMIT:
            raise InputError(f"{name} is {value}; give 0 to {MAX_LIMIT}", param=name)
    if changes:
        values = {f"max_{name}": value for name, value in changes.items()}
        session.execute(update(Tenant).where(Tenant.id == tenant_id).values(values))
    if "reading_seconds_per_day" in changes:
        reading.look_again(session, tenant_id)


def allowed_priorities(tenant: Tenant) -> list[AskedPriority]:
    """Return the classes that a tenant may request, best first."""
    classes = list(AskedPriority)
    return classes[classes.index(AskedPriority(tenant.best_priority)) :]


def check_priority(tenant: Tenant, priority: AskedPriority) -> None:
    """Raise ForbiddenError where a class is better than the tenant may request."""
    allowed = allowed_priorities(tenant)
    if priority not in allowed:
        raise ForbiddenError(
            f"priority is {priority.value!r} and you may ask for {' or '.join(allowed)}. Lower it, or ask your "
            f"operator for the right (`tokenmill tenants priority {tenant.id} {priority.value}`).",
            param="priority",
            code="priority_not_allowed",
        )


def set_overflow(session: Session, tenant_id: str, *, is_allowed: bool) -> None:
    """Set whether a tenant's future batches beyond its token limit run in class overflow."""
    session.execute(update(Tenant).where(Tenant.id == tenant_id).values(may_overflow=is_allowed))


def set_leaving(session: Session, tenant_id: str, *, is_allowed: bool) -> None:
    """Set whether a tenant's lines may go to servers outside the house, from the next claim on."""
    session.execute(update(Tenant).where(Tenant.id == tenant_id).values(may_leave_house=is_allowed))


def set_best_priority(session: Session, tenant_id: str, priority: AskedPriority) -> None:
    """Set the best class that a tenant's future batches may request; accepted ones keep theirs."""
    session.execute(update(Tenant).where(Tenant.id == tenant_id).values(best_priority=priority.value))
