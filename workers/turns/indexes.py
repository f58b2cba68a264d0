"""Indexes that are due, taken up in turns between tenants."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.orm import Session, sessionmaker

from jobs.indexes import claims
from workers.turns.tenant_turns import TenantTurns


def index_turns(sessions: sessionmaker[Session], *, advance: Callable[[str], bool], look_seconds: float) -> TenantTurns:
    """Return what goes on with the indexes that are due."""
    return TenantTurns("index", sessions=sessions, find=claims.due_indexes, advance=advance, look_seconds=look_seconds)
