"""Daily partitions of the `result` table: made before a batch is accepted, dropped when retention ends.

There is no DEFAULT partition: attaching a day would scan it under an exclusive lock, and rows of a forgotten
day would pile up in it out of retention's reach. Instead `create_batch` ensures the day in its own transaction.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.database import advisory_lock
from jobs.states import TERMINAL_BATCH_STATES

_NAME = re.compile(r"result_(\d{8})")


def batch_day(created_at: datetime) -> date:
    """Return the UTC day that a batch's results are filed under."""
    return created_at.astimezone(UTC).date()


def partition_name(day: date) -> str:
    return f"result_{day:%Y%m%d}"


def is_partition_name(table: str) -> bool:
    """Tell whether a table is a day of `result`: migrations leave those alone."""
    return _NAME.fullmatch(table) is not None


def ensure_result_partition(session: Session, day: date) -> bool:
    """Create the partition of `day` where it is missing; return whether it was.

    CREATE and then ATTACH takes a SHARE UPDATE EXCLUSIVE lock on `result`, which stops neither reads nor inserts;
    CREATE … PARTITION OF would take ACCESS EXCLUSIVE.
    """
    if has_partition(session, day):
        return False
    advisory_lock(session, "result partitions")
    if has_partition(session, day):
        return False
    name, following = partition_name(day), day + timedelta(days=1)
    session.execute(text(f"CREATE TABLE {name} (LIKE result INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"))
    session.execute(text(f"ALTER TABLE result ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{following}')"))
    return True


def has_partition(session: Session, day: date) -> bool:
    """Tell whether results of `day` are kept, or can be."""
    # A scan of the catalogue under this statement's snapshot. `to_regclass` answers from the backend's cache, and that
    # may still say "missing" after the wait for the advisory lock (seen: six processes at once, five DuplicateTable).
    query = text("""
        SELECT EXISTS (
            SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
            WHERE pg_inherits.inhparent = 'result'::regclass AND pg_class.relname = :name
        )
    """)
    return session.scalar(query, {"name": partition_name(day)}) is True


def partition_days(session: Session) -> list[date]:
    """Return the days that have a partition, oldest first."""
    names = session.scalars(
        text("SELECT relid::regclass::text FROM pg_partition_tree('result') WHERE isleaf AND parentrelid IS NOT NULL")
    )
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(datetime.strptime(match[1], "%Y%m%d").date() for match in matches if match)


def drop_partitions_before(session: Session, day: date) -> list[date]:
    """Drop the partitions older than `day` whose batches have all ended; return the days dropped.

    DROP needs ACCESS EXCLUSIVE on `result`; it gives up after 2 s of waiting so that flushes never queue behind it
    for long (sqlalchemy.exc.OperationalError: try again later).
    """
    dropped = []
    session.execute(text("SET LOCAL lock_timeout = '2s'"))
    for candidate in partition_days(session):
        if candidate < day and not _has_live_batch(session, candidate):
            session.execute(text(f"DROP TABLE {partition_name(candidate)}"))
            dropped.append(candidate)
    return dropped


def _has_live_batch(session: Session, day: date) -> bool:
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    query = text(
        "SELECT EXISTS (SELECT FROM batch WHERE created_at >= :start AND created_at < :end AND state <> ALL(:ended))"
    )
    values = {
        "start": start,
        "end": start + timedelta(days=1),
        "ended": [state.value for state in TERMINAL_BATCH_STATES],
    }
    return session.scalar(query, values) is True
