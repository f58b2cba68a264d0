"""Daily partitions of the `result` table: created before a batch is accepted, dropped when retention ends.

There is no DEFAULT partition: attaching a day would scan it under an exclusive lock, and rows of a missing day would
accumulate in it out of retention's reach. Instead `create_batch` ensures the day in its own transaction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.states import TERMINAL_BATCH_STATES

_NAME = re.compile(r"result_(\d{8})")


def batch_day(created_at: datetime) -> date:
    """Return the UTC day under which a batch's results are filed."""
    return created_at.astimezone(UTC).date()


def partition_name(day: date) -> str:
    return f"result_{day:%Y%m%d}"


def is_partition_name(table: str) -> bool:
    """Return whether a table is a day of `result`: migrations ignore those."""
    return _NAME.fullmatch(table) is not None


def ensure_result_partition(session: Session, day: date) -> bool:
    """Create the partition of `day` where it is missing; return whether it was."""
    return not has_partition(session, day) and session.scalar(_MAKE, {"day": day}) is True


def ensure_today(session: Session) -> datetime:
    """Create the partition of this transaction's day where it is missing; return the transaction's time."""
    now: datetime
    now, is_there = session.execute(_NOW_AND_TODAY).one()
    if not is_there:
        ensure_result_partition(session, batch_day(now))
    return now


def has_partition(session: Session, day: date) -> bool:
    """Return whether the partition of `day` exists."""
    return session.scalar(_HAS_DAY, {"name": partition_name(day)}) is True


def partition_days(session: Session) -> list[date]:
    """Return the days that have a partition, oldest first."""
    return _days(session.scalars(_PARTITIONS))


def days_to_drop(session: Session, before: date) -> list[date]:
    """Return the days older than `before` that are no longer needed: their batches and their retention have ended.

    Includes days that were detached but not dropped.
    """
    days = [day for day in _days(session.scalars(_ALL_DAYS)) if day < before]
    kept_days = {day for day in partition_days(session) if day < before and _is_held(session, day)}
    return [day for day in days if day not in kept_days]


def drop_partition(session: Session, day: date) -> bool:
    """Drop a day with its results; False where another process has.

    Waits up to a tenth of a second for readers of `result`, during which nobody can write results. Raises
    sqlalchemy.exc.DBAPIError after that: retry later.
    """
    return session.scalar(_DROP, {"day": day}) is True


def _days(names: Iterable[str]) -> list[date]:
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(datetime.strptime(match[1], "%Y%m%d").date() for match in matches if match)


def _is_held(session: Session, day: date) -> bool:
    """Return whether a batch of this day is live, or its results are kept longer by a tenant's own retention."""
    start = datetime(day.year, day.month, day.day, tzinfo=UTC)
    values = {
        "start": start,
        "end": start + timedelta(days=1),
        "ended": [state.value for state in TERMINAL_BATCH_STATES],
    }
    return session.scalar(_HELD, values) is True


# Functions that run as the owner of the schema (`migrations/versions/0067_make_and_drop_days.py`): they can create and
# drop no other tables.
_MAKE = text("SELECT make_result_partition(:day)")
_DROP = text("SELECT drop_result_partition(:day)")

# A catalogue scan under the statement's snapshot. `to_regclass` answers from the backend's cache, and that may still
# say "missing" after the wait for the advisory lock (observed: six processes at once, five DuplicateTable).
_IS_THERE = """
    EXISTS (
        SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = 'result'::regclass AND pg_class.relname = {name} AND NOT inhdetachpending
    )
"""
_HAS_DAY = text(f"SELECT {_IS_THERE.format(name=':name')}")
_TODAY = "'result_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')"
_NOW_AND_TODAY = text(f"SELECT now(), {_IS_THERE.format(name=_TODAY)}")

_PARTITIONS = text("""
    SELECT pg_class.relname FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
    WHERE pg_inherits.inhparent = 'result'::regclass AND NOT inhdetachpending
""")

_ALL_DAYS = text("""
    SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'result'::regclass)
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
