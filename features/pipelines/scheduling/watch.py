"""Since when dispatchers look at schedules without a pause: what was due before, and not made, nobody looked at.

Says nothing of what becomes of such a run: `features.pipelines.planning`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines.planning import LATE

_NOTED_EVERY = timedelta(seconds=10)
"""A look is noted so often at most: dispatchers look every two seconds, and a stack at rest is to write little."""
PAUSE = LATE + _NOTED_EVERY
"""A time without a noted look that is longer is a pause: nobody looked for at least LATE of it."""


def note_look(session: Session) -> None:
    """Note that a dispatcher looks at schedules now, where there are any; after a pause it looks since now only."""
    session.execute(_NOTE, {"noted_every": _NOTED_EVERY, "pause": PAUSE})


def watched_since(session: Session, *, now: datetime) -> datetime:
    """Return since when dispatchers have looked without a pause; `now` where none has."""
    since: datetime | None = session.scalar(_SINCE, {"now": now, "pause": PAUSE})
    return now if since is None else since


# Between looks that are noted the statement only reads: a row that is locked would be a transaction to write down.
_NOTE = text("""
    INSERT INTO schedule_watch (since, seen_at)
    SELECT clock_timestamp(), clock_timestamp()
    WHERE NOT EXISTS (SELECT FROM schedule_watch WHERE seen_at > clock_timestamp() - CAST(:noted_every AS interval))
        AND EXISTS (SELECT FROM schedule WHERE due_at IS NOT NULL AND paused_at IS NULL AND deleted_at IS NULL)
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at,
        since = CASE WHEN schedule_watch.seen_at < excluded.seen_at - CAST(:pause AS interval) THEN excluded.since
            ELSE schedule_watch.since END
""")

# A dispatcher that was frozen after its look goes on with a look that is old.
_SINCE = text("SELECT since FROM schedule_watch WHERE seen_at >= :now - CAST(:pause AS interval)")
