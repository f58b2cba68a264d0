"""Runs of pipelines that are due, taken up in turns between tenants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session, sessionmaker

from jobs.database import transaction
from jobs.graphs.due import Due
from jobs.pipelines import lifecycle
from jobs.pipelines.runs import claims
from workers.turns.tenant_turns import TenantTurns


def run_turns(sessions: sessionmaker[Session], *, advance: Callable[[str], bool], look_seconds: float) -> TenantTurns:
    """Return what begins queued runs, and goes on with those that are due."""

    def find(session: Session) -> Sequence[Due]:
        if lifecycle.is_any_to_start(session):
            with transaction(sessions) as starting:
                lifecycle.start_queued(starting)
        return claims.due_runs(session)

    return TenantTurns("run", sessions=sessions, find=find, advance=advance, look_seconds=look_seconds)
