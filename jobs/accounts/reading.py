"""Document reading time of tenants: the day's usage and limit, the batches that wait for it, and the estimate per line.

The day is UTC's. A line's time is known only at its end, so a chunk that is open when the limit is reached continues to
the end of its turn, and counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.lines.endpoints import PREPARED
from jobs.lines.line_times import TURN_MILLISECONDS, USUAL_MILLISECONDS
from jobs.tables import Batch

_MICROSECONDS = 1_000_000
_BATCHES = 4
"""Most batches whose measured reading times are used: the newest ones of the tenant."""
_NEWEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A tenant's reading time of the day so far."""

    used_microseconds: int
    limit_seconds: int | None
    """None: no limit."""
    left_of_day: timedelta

    @property
    def used_seconds(self) -> int:
        return self.used_microseconds // _MICROSECONDS

    @property
    def is_used_up(self) -> bool:
        return self.limit_seconds is not None and self.used_microseconds >= self.limit_seconds * _MICROSECONDS


def reading_today(session: Session, tenant_id: str, *, default_seconds: int | None) -> Reading:
    """Return a tenant's reading time; `default_seconds` is the limit of tenants without their own."""
    row = session.execute(_TODAY, {"tenant_id": tenant_id, "default": default_seconds}).one()
    return Reading(
        used_microseconds=int(row.used), limit_seconds=row.limit_seconds, left_of_day=row.tomorrow - row.moment
    )


def note_wait(session: Session, batch_id: str, *, limit_seconds: int | None) -> None:
    """Record why a locked batch is put off."""
    session.execute(_NOTE, {"batch_id": batch_id, "seconds": limit_seconds})


def look_again(session: Session, tenant_id: str) -> None:
    """Resume the batches of a tenant that wait for its reading limit: it has changed."""
    session.execute(_LOOK_AGAIN, {"tenant_id": tenant_id})


def expected_milliseconds(session: Session, batch: Batch) -> int:
    """Return the expected reading time of a line, at least 1 and at most a turn."""
    if batch.endpoint not in PREPARED:
        return 1
    values = {"tenant_id": batch.tenant_id, "endpoint": batch.endpoint, "newest": _NEWEST, "limit": _BATCHES}
    measured = session.scalar(_MEASURED, values)
    milliseconds = USUAL_MILLISECONDS[batch.endpoint] if measured is None else int(measured)
    return max(1, min(milliseconds, TURN_MILLISECONDS))


_TODAY = text("""
    SELECT CASE WHEN reading_day = (clock_timestamp() AT TIME ZONE 'UTC')::date THEN reading_microseconds ELSE 0 END
            AS used,
        coalesce(tenant.max_reading_seconds_per_day, CAST(:default AS bigint)) AS limit_seconds,
        clock_timestamp() AS moment,
        (date_trunc('day', clock_timestamp() AT TIME ZONE 'UTC') + interval '1 day') AT TIME ZONE 'UTC' AS tomorrow
    FROM budget JOIN tenant ON tenant.id = budget.tenant_id WHERE budget.tenant_id = :tenant_id
""")

_NOTE = text("UPDATE batch SET reading_limit_seconds = :seconds WHERE id = :batch_id AND deferred_until IS NOT NULL")

_LOOK_AGAIN = text("""
    UPDATE batch SET deferred_until = clock_timestamp()
    WHERE tenant_id = :tenant_id AND deferred_until IS NOT NULL AND reading_limit_seconds IS NOT NULL
""")

_MEASURED = text("""
    SELECT sum(reading_microseconds) / 1000 / sum(num_results) FROM (
        SELECT reading_microseconds, num_completed + num_failed AS num_results FROM (
            SELECT endpoint, reading_microseconds, num_completed, num_failed FROM batch
            WHERE tenant_id = :tenant_id ORDER BY created_at DESC, id DESC LIMIT :newest
        ) AS newest
        WHERE endpoint = :endpoint AND reading_microseconds > 0 LIMIT :limit
    ) AS measured
""")
