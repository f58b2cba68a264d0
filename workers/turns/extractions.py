"""Extractions that are due, taken up in turns between tenants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.extractions import claims
from jobs.graphs.due import Due
from workers.turns.tenant_turns import TenantTurns


def extraction_turns(
    sessions: sessionmaker[Session], *, advance: Callable[[str], bool], look_seconds: float
) -> TenantTurns:
    """Return what goes on with the extractions that are due."""

    def find() -> Sequence[Due]:
        with transaction(sessions) as session:
            return claims.due_extractions(session)

    return TenantTurns("extraction", find=find, advance=advance, look_seconds=look_seconds)
