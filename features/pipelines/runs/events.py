"""Webhook events of runs, each emitted once, in the transaction that makes it true."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines.tables import Run, Schedule
from jobs.hooks import emit
from jobs.states import EventType

SKIPS = 3
"""Number of runs skipped in a row at which a schedule's owner is notified."""
_RUNS_AT_ONCE = 100


def tell(session: Session, run: Run, event: EventType) -> None:
    """Emit an event of a run."""
    about = {"id": run.id, "pipeline_id": run.pipeline_id, "schedule_id": run.schedule_id}
    emit(session, run.tenant_id, event, about)


def tell_of_skips(session: Session, schedule: Schedule, *, is_reported: bool) -> None:
    """Emit an event if SKIPS runs in a row were skipped, unless it `is_reported` already."""
    if schedule.num_skipped >= SKIPS and not is_reported:
        about = {"id": schedule.id, "pipeline_id": schedule.pipeline_id, "num_skipped": schedule.num_skipped}
        emit(session, schedule.tenant_id, EventType.SCHEDULE_SKIPPING, about)


def is_any_late(session: Session) -> bool:
    """Return whether `tell_of_late_runs` may find a run; changes nothing."""
    return bool(session.scalar(_IS_ANY_LATE, {"run_id": None, "now": None}))


def tell_of_late_runs(session: Session, *, of_run: str | None = None, now: datetime | None = None) -> list[str]:
    """Emit an event for each run that has become late and mark it as reported; return their ids.

    Locked runs are left for the next call, or for their end, which checks only its own run (`of_run`).
    """
    rows = session.execute(_MARK_LATE, {"run_id": of_run, "now": now, "limit": _RUNS_AT_ONCE}).all()
    for row in rows:
        tell(session, session.get_one(Run, row.id), EventType.RUN_LATE)
    return [row.id for row in rows]


# Only scheduled runs can be late, not those that were triggered or backfilled.
_LATE = """
    FROM flow JOIN run ON run.id = flow.id JOIN schedule ON schedule.id = run.schedule_id
    WHERE flow.recipe = 'run' AND flow.ended_at IS NULL AND flow.state IN ('queued', 'running')
        AND run.kind = 'cron' AND run.late_at IS NULL
        AND run.scheduled_for + make_interval(secs => schedule.late_after_seconds)
            <= coalesce(CAST(:now AS timestamptz), now())
        AND (CAST(:run_id AS text) IS NULL OR run.id = :run_id)
"""
_IS_ANY_LATE = text(f"SELECT EXISTS (SELECT {_LATE})")
_MARK_LATE = text(f"""
    WITH found AS (
        SELECT run.id {_LATE}
        ORDER BY run.id LIMIT :limit FOR NO KEY UPDATE OF flow, run SKIP LOCKED
    )
    UPDATE run SET late_at = now() FROM found WHERE run.id = found.id RETURNING run.id
""")
