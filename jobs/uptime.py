"""Since when the database has answered without a pause: a lease lost before that says nothing about its lines.

Recorded by processes that poll the database. The server's start time alone does not change when a standby is promoted,
nor when the server recovers from the crash of one of its processes.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

ANSWERS_SINCE = "greatest((SELECT since FROM uptime), pg_postmaster_start_time())"
"""SQL to compare times with."""


def note(session: Session, *, pause: timedelta) -> None:
    """Record that the database answers; after a gap longer than `pause` it counts as up only from now on.

    A gap in which no process polled counts as a pause too.
    """
    session.execute(_NOTE, {"pause": pause})


_NOTE = text("""
    INSERT INTO uptime (since, seen_at) VALUES ('-infinity', clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(),
        since = CASE WHEN uptime.seen_at < clock_timestamp() - CAST(:pause AS interval) THEN clock_timestamp()
            ELSE uptime.since END
""")
