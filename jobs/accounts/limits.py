"""What a tenant may have and do: how much at once, the operator's number for it or the setting's, and how urgently.

Knows which limits there are and what they are for a tenant; whoever counts what is limited asks here.
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
    """Of the API; a sixth of it at once."""
    tokens_per_minute: int
    """Estimated tokens of the batches that are submitted."""
    bytes_per_minute: int
    """Of the bodies of requests, uploads included."""
    open_batches: int
    """That have not ended."""
    enqueued_tokens: int
    """Estimated tokens of the open batches."""
    files: int
    """That are kept, outputs included."""
    stored_bytes: int
    """Of these files."""
    uploads: int
    """At once, in one API process."""
    downloads: int
    """At once, in one API process."""
    urgent_tokens: int
    """Estimated tokens of one model's urgent work that runs; what is beyond takes its turn as normal work."""
    reading_seconds_per_day: int | None
    """For which readers of documents work, by the day of UTC; beyond it lines wait for the next one. None: no limit."""


NAMES = tuple(field.name for field in fields(Limits))


def limits_of(tenant: Tenant, settings: Settings) -> Limits:
    """Return what holds for a tenant."""
    own = {name: getattr(tenant, f"max_{name}") for name in NAMES}
    return Limits(
        **{name: getattr(settings, f"tenant_{name}") if value is None else value for name, value in own.items()}
    )


def set_limits(session: Session, tenant_id: str, changes: dict[str, int | None]) -> None:
    """Set limits of a tenant by name; None goes back to the setting. Raises InputError."""
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
    """Return the classes that a tenant may ask for, the best one first."""
    classes = list(AskedPriority)
    return classes[classes.index(AskedPriority(tenant.best_priority)) :]


def check_priority(tenant: Tenant, priority: AskedPriority) -> None:
    """Raise ForbiddenError where a class is better than the tenant may ask for."""
    allowed = allowed_priorities(tenant)
    if priority not in allowed:
        raise ForbiddenError(
            f"priority is {priority.value!r} and you may ask for {' or '.join(allowed)}. Lower it, or ask your "
            f"operator for the right (`tokenmill tenants priority {tenant.id} {priority.value}`).",
            param="priority",
            code="priority_not_allowed",
        )


def set_overflow(session: Session, tenant_id: str, *, is_allowed: bool) -> None:
    """Set whether a tenant's coming batches that its token limit does not cover run in class overflow."""
    session.execute(update(Tenant).where(Tenant.id == tenant_id).values(may_overflow=is_allowed))


def set_best_priority(session: Session, tenant_id: str, priority: AskedPriority) -> None:
    """Set the best class that a tenant's coming batches may ask for; accepted ones keep theirs."""
    session.execute(update(Tenant).where(Tenant.id == tenant_id).values(best_priority=priority.value))
