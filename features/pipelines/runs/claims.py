"""Claims on runs: which control worker advances a run and until when; and the due runs."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines.lifecycle import lock_run
from features.pipelines.states import RunState
from features.pipelines.tables import Run, Schedule
from jobs.chunks.used_caps import CAP_IS_REACHED
from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.graphs.due import Due, due_query, find_due

RunWork = ClaimedWork[Run]


def due_runs(session: Session) -> Sequence[Due]:
    """Return due runs, a few per tenant, those that have waited longest first."""
    return find_due(session, _DUE)


def _lock(session: Session, run_id: str) -> Run | None:
    """Return a locked run, after locking its schedule."""
    schedule_id = session.scalar(text("SELECT schedule_id FROM run WHERE id = :run_id"), {"run_id": run_id})
    if schedule_id is not None:
        session.get(Schedule, schedule_id, with_for_update={"key_share": True}, populate_existing=True)
    return lock_run(session, run_id)


RUNS = Claims(Run, [RunState.RUNNING, RunState.CANCELLING], lock=_lock)

# A run that waits for a batch that has used up the run's caps is due as well: it fails.
_DUE = due_query("run", parts="run_step", under_way=RunState.RUNNING, goes_on=CAP_IS_REACHED)
