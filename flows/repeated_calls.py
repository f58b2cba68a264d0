"""Repeated create calls of flows: find what the first call created."""

from __future__ import annotations

from typing import Protocol, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from flows.tables import Flow
from jobs.database import advisory_lock
from jobs.errors import ConflictError

AnyFlow = TypeVar("AnyFlow", bound=Flow)


class RepeatableCall(Protocol):
    """A create call that may be repeated under its key."""

    @property
    def idempotency_key(self) -> str | None: ...

    def fingerprint(self) -> str:
        """Return a hash of the request, equal for a repeated call."""


def find_earlier(
    session: Session, kind: type[AnyFlow], tenant_id: str, call: RepeatableCall, *, name: str
) -> AnyFlow | None:
    """Return the flow that a call with this idempotency key made. Raises ConflictError for a different call."""
    if call.idempotency_key is None:
        return None
    advisory_lock(session, f"{name} {tenant_id} {call.idempotency_key}")
    is_it = (kind.tenant_id == tenant_id) & (kind.idempotency_key == call.idempotency_key)
    flow = session.scalar(select(kind).where(is_it))
    if flow is not None and flow.fingerprint != call.fingerprint():
        raise ConflictError(
            f"The Idempotency-Key {call.idempotency_key!r} was used for another request, which made {name} "
            f"{flow.id!r}. Repeat that request unchanged, or use a new key.",
            code="idempotency_key_reused",
        )
    return flow
