"""Calls that create a course and are repeated: what the first of them has made."""

from __future__ import annotations

from typing import Protocol, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.database import advisory_lock
from jobs.errors import ConflictError
from jobs.tables.courses import CourseRow

Course = TypeVar("Course", bound=CourseRow)


class RepeatableCall(Protocol):
    """A create call that may be repeated under its key."""

    @property
    def idempotency_key(self) -> str | None: ...

    def fingerprint(self) -> str:
        """Return a hash of what is asked for, equal for a repeated call."""


def find_earlier(
    session: Session, table: type[Course], tenant_id: str, wanted: RepeatableCall, *, kind: str
) -> Course | None:
    """Return the course that a call with this idempotency key has made. Raises ConflictError for another call."""
    if wanted.idempotency_key is None:
        return None
    advisory_lock(session, f"{kind} {tenant_id} {wanted.idempotency_key}")
    is_it = (table.tenant_id == tenant_id) & (table.idempotency_key == wanted.idempotency_key)
    found = session.scalar(select(table).where(is_it))
    if found is not None and found.fingerprint != wanted.fingerprint():
        raise ConflictError(
            f"The Idempotency-Key {wanted.idempotency_key!r} was used for another request, which made {kind} "
            f"{found.id!r}. Repeat that request unchanged, or use a new key.",
            code="idempotency_key_reused",
        )
    return found
