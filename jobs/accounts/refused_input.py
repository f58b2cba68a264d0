"""Invalid lines of a tenant's batches: they cost nothing to the tenant, so they are counted."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.tables import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedInput:
    """How much of a tenant's input was refused."""

    lines: int
    size_bytes: int


def count_refused(session: Session, tenant_id: str, refused: RefusedInput) -> None:
    """Add to a tenant's refused input. Takes the lock of the budget row: last, as everywhere."""
    if refused.lines:
        added = {
            "refused_lines": Budget.refused_lines + refused.lines,
            "refused_bytes": Budget.refused_bytes + refused.size_bytes,
        }
        session.execute(update(Budget).where(Budget.tenant_id == tenant_id).values(added))


def refused_input(session: Session, tenant_id: str) -> RefusedInput:
    """Return a tenant's refused input so far."""
    query = select(Budget.refused_lines, Budget.refused_bytes).where(Budget.tenant_id == tenant_id)
    lines, size_bytes = session.execute(query).one()
    return RefusedInput(lines=lines, size_bytes=size_bytes)
