"""Records since when dispatchers check schedules without a pause; a run due before that may have been missed.

`features.pipelines.scheduling.planning` decides on missed runs.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines.scheduling.planning import LATE

_NOTED_EVERY = timedelta(seconds=10)
"""Minimum interval of records: dispatchers check every two seconds, and an idle stack should write little."""
PAUSE = LATE + _NOTED_EVERY
"""A longer time without a record is a pause: for at least LATE of it no dispatcher checked."""


def note_look(session: Session) -> None:
    """Record that a dispatcher checks schedules now, if there are any; after a pause the watch starts anew."""
    session.execute(_NOTE, {"noted_every": _NOTED_EVERY, "pause": PAUSE})


def watched_since(session: Session, *, now: datetime) -> datetime:
    """Return since when dispatchers have checked without a pause; `now` if none has."""
    since: datetime | None = session.scalar(_SINCE, {"now": now, "pause": PAUSE})
    return now if since is None else since


# Between records the statement only reads, as locking a row would make it a write transaction.
_NOTE = text("""
    INSERT INTO schedule_watch (since, seen_at)
    SELECT now, now FROM clock_timestamp() AS now
    WHERE NOT EXISTS (SELECT FROM schedule_watch WHERE seen_at > now - CAST(:noted_every AS interval))
        AND EXISTS (SELECT FROM schedule WHERE due_at IS NOT NULL AND paused_at IS NULL AND deleted_at IS NULL)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at,
        since = CASE WHEN schedule_watch.seen_at < excluded.seen_at - CAST(:pause AS interval) THEN excluded.since
            ELSE schedule_watch.since END
""")

# A dispatcher that was frozen after its check continues with an old record.
_SINCE = text("SELECT since FROM schedule_watch WHERE seen_at >= :now - CAST(:pause AS interval)")
