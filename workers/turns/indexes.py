"""Indexes that are due, taken up in turns between tenants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.graphs.due import Due
from jobs.indexes import claims
from workers.turns.tenant_turns import TenantTurns


def index_turns(sessions: sessionmaker[Session], *, advance: Callable[[str], bool], look_seconds: float) -> TenantTurns:
    """Return what goes on with the indexes that are due."""

    def find() -> Sequence[Due]:
        with transaction(sessions) as session:
            return claims.due_indexes(session)

    return TenantTurns("index", find=find, advance=advance, look_seconds=look_seconds)
