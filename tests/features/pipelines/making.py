"""A dispatcher's work for due schedules, in one transaction and without turns."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from features.pipelines.scheduling.due import find_due, insert_due_runs

ALL = 1000


def make_due(session: Session, *, now: datetime | None = None) -> int:
    """Make the runs of all due schedules; return the number of these schedules."""
    found = find_due(session, at_least=ALL, now=now)
    return len(insert_due_runs(session, [each.id for each in found], now=now))
