"""Since when the database has answered without a pause: what a lease that was lost before says nothing of its lines.

Noted by those who look at it all the time. The server's own start moves neither when a standby is promoted nor when it
recovers from the crash of one of its processes.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

ANSWERS_SINCE = "greatest((SELECT since FROM uptime), pg_postmaster_start_time())"
"""What a statement compares times with."""


def note(session: Session, *, pause: timedelta) -> None:
    """Note that the database answers; one that was not seen for longer than `pause` has answered since now only.

    Where nobody has looked for so long that is taken for a pause of the database, too.
    """
    session.execute(_NOTE, {"pause": pause})


_NOTE = text("""
    INSERT INTO uptime (since, seen_at) VALUES ('-infinity', clock_timestamp())
    ON CONFLICT (id) DO UPDATE SET seen_at = clock_timestamp(),
        since = CASE WHEN uptime.seen_at < clock_timestamp() - CAST(:pause AS interval) THEN clock_timestamp()
            ELSE uptime.since END
""")
