"""Schedules at a glance: the next run, the result of the last one, and problems."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from jobs.overview.owned import OwnedQuery, Owner

_MOST = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """A schedule and its runs."""

    schedule_id: str
    name: str
    pipeline: str
    pipeline_id: str
    cron: str
    time_zone: str
    next_at: datetime | None
    """None: there is none any more."""
    paused_at: datetime | None
    pause_reason: str | None
    num_failures: int
    """In a row."""
    num_skipped: int
    last_run_id: str | None
    last_state: str | None
    last_reason: str | None
    last_at: datetime | None


def next_runs(session: Session, owners: Collection[Owner], *, limit: int = _MOST) -> dict[Owner, Sequence[NextRun]]:
    """Return schedules, those in trouble first, then by their next run."""
    rows = _NEXT_RUNS.rows(session, owners, limit=limit)
    return {owner: [_next_run(**row._mapping) for row in of_owner] for owner, of_owner in rows.items()}


def _next_run(*, owner_id: Owner, **values: Any) -> NextRun:
    return NextRun(**values)


_ORDER = "(schedule.num_failures > 0 OR schedule.num_skipped > 0) DESC, schedule.next_at NULLS LAST, schedule.id"
_NEXT_RUNS = OwnedQuery(
    f"""
    SELECT owner.id AS owner_id, schedule.id AS schedule_id, schedule.name, pipeline.name AS pipeline,
        pipeline.id AS pipeline_id, schedule.cron, schedule.time_zone, schedule.next_at, schedule.paused_at,
        schedule.pause_reason, schedule.num_failures, schedule.num_skipped,
        last.id AS last_run_id, last.state AS last_state, last.reason AS last_reason, last.created_at AS last_at
    FROM {{owners}}
    CROSS JOIN LATERAL (
        SELECT * FROM schedule WHERE deleted_at IS NULL AND {{is_theirs}} ORDER BY {_ORDER} LIMIT :limit
    ) AS schedule
    JOIN pipeline ON pipeline.id = schedule.pipeline_id
    LEFT JOIN LATERAL (
        SELECT id, state, reason, created_at FROM flow JOIN run USING (id)
        WHERE run.schedule_id = schedule.id ORDER BY scheduled_for DESC LIMIT 1
    ) AS last ON TRUE
    ORDER BY {_ORDER}
    """,
    table="schedule",
)
