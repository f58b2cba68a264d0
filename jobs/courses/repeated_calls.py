"""Repeated create calls of courses: find what the first call created."""

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
        """Return a hash of the request, equal for a repeated call."""


def find_earlier(
    session: Session, table: type[Course], tenant_id: str, call: RepeatableCall, *, kind: str
) -> Course | None:
    """Return the course that a call with this idempotency key made. Raises ConflictError for a different call."""
    if call.idempotency_key is None:
        return None
    advisory_lock(session, f"{kind} {tenant_id} {call.idempotency_key}")
    is_it = (table.tenant_id == tenant_id) & (table.idempotency_key == call.idempotency_key)
    course = session.scalar(select(table).where(is_it))
    if course is not None and course.fingerprint != call.fingerprint():
        raise ConflictError(
            f"The Idempotency-Key {call.idempotency_key!r} was used for another request, which made {kind} "
            f"{course.id!r}. Repeat that request unchanged, or use a new key.",
            code="idempotency_key_reused",
        )
    return course
