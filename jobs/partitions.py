"""Daily partitions of the `result` table: made before a batch is accepted, dropped when retention ends.

There is no DEFAULT partition: attaching a day would scan it under an exclusive lock, and rows of a forgotten
day would pile up in it out of retention's reach. Instead `create_batch` ensures the day in its own transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.database import advisory_lock, run_alone
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
            WHERE pg_inherits.inhparent = 'result'::regclass AND pg_class.relname = :name AND NOT inhdetachpending
        )
    """)
    return session.scalar(query, {"name": partition_name(day)}) is True


def partition_days(session: Session) -> list[date]:
    """Return the days that have a partition, oldest first."""
    return _days(session.scalars(text(f"{_PARTITIONS} AND NOT inhdetachpending")))


def detach_before(session: Session, day: date) -> None:
    """Detach the partitions older than `day` that nobody needs: their batches have ended, and their retention too.

    Needs a session in autocommit (`jobs.database.autocommit`): DETACH … CONCURRENTLY waits for those who read `result`
    and keeps nobody waiting, where DROP alone would stop every flush behind it. One that was given up or killed
    half-way is ended first. Where a reader takes longer than the lock timeout, raises sqlalchemy.exc.DBAPIError, or
    ServiceError behind a pooler.
    """
    for begun in _days(session.scalars(text(f"{_PARTITIONS} AND inhdetachpending"))):
        run_alone(session, text(f"ALTER TABLE result DETACH PARTITION {partition_name(begun)} FINALIZE"))
    for candidate in partition_days(session):
        if candidate < day and not _is_held(session, candidate):
            run_alone(session, text(f"ALTER TABLE result DETACH PARTITION {partition_name(candidate)} CONCURRENTLY"))


def drop_detached_before(session: Session, day: date) -> list[date]:
    """Drop the days older than `day` that are detached, in the caller's transaction; return them."""
    detached = [candidate for candidate in _days(session.scalars(_DETACHED)) if candidate < day]
    for candidate in detached:
        session.execute(text(f"DROP TABLE {partition_name(candidate)}"))
    return detached


def _days(names: Iterable[str]) -> list[date]:
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(datetime.strptime(match[1], "%Y%m%d").date() for match in matches if match)


def _is_held(session: Session, day: date) -> bool:
    """Tell whether a batch of this day is live, or its results are kept on: by a tenant's own retention."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    values = {
        "start": start,
        "end": start + timedelta(days=1),
        "ended": [state.value for state in TERMINAL_BATCH_STATES],
    }
    return session.scalar(_HELD, values) is True


_PARTITIONS = """
    SELECT pg_class.relname FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
    WHERE pg_inherits.inhparent = 'result'::regclass
"""

_DETACHED = text("""
    SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'result'::regclass)
        AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = pg_class.oid)
""")

_HELD = text("""
    SELECT EXISTS (
        SELECT FROM batch JOIN tenant ON tenant.id = batch.tenant_id
        WHERE batch.created_at >= :start AND batch.created_at < :end AND (
            batch.state <> ALL(:ended)
            OR (results_deleted_at IS NULL AND :end + make_interval(days => tenant.retention_days) > now())
        )
    )
""")
