"""Advances due pipeline runs in turns between tenants, and starts queued ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import lifecycle
from features.pipelines.advancing import Runs
from features.pipelines.runs import claims
from jobs.database import transaction
from jobs.graphs.due import Due
from workers.control_work import ControlParts, ControlWork
from workers.turns.tenant_turns import CONNECTIONS, TenantTurns


def run_turns(sessions: sessionmaker[Session], *, advance: Callable[[str], bool], look_seconds: float) -> TenantTurns:
    """Return the turns that start queued runs and advance due ones."""

    def find(session: Session) -> Sequence[Due]:
        if lifecycle.is_any_to_start(session):
            with transaction(sessions) as starting:
                lifecycle.start_queued(starting)
        return claims.due_runs(session)

    return TenantTurns("run", sessions=sessions, find=find, advance=advance, look_seconds=look_seconds)


def _turns(parts: ControlParts) -> TenantTurns:
    runs = Runs(
        parts.sessions,
        parts.storage,
        parts.settings,
        hold_sessions=parts.hold_sessions,
        traces=parts.traces,
        is_stopping=parts.is_stopping,
    )
    return run_turns(parts.sessions, advance=runs.advance, look_seconds=parts.settings.claim_alone_seconds)


WORK = ControlWork(connections=CONNECTIONS, make=_turns)
