"""Result lines of consecutive lines of batches, read from the table while it has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from sqlalchemy import text
from sqlalchemy.orm import Session

Days = Mapping[str, date]
"""The days under which the results of batches are filed, by the ids of the batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRange:
    """Consecutive lines of a batch."""

    batch_id: str
    day: date
    """The day under which the batch's results are filed: `jobs.partitions.batch_day`."""
    first_line: int
    num_lines: int


def read(session: Session, ranges: Sequence[ResultRange]) -> list[list[bytes]]:
    """Return the result lines of each range in their order, without lines that have no result; in one query."""
    values = {
        "places": list(range(len(ranges))),
        "days": [each.day for each in ranges],
        "batch_ids": [each.batch_id for each in ranges],
        "first_lines": [each.first_line for each in ranges],
        "last_lines": [each.first_line + each.num_lines - 1 for each in ranges],
    }
    found: list[list[bytes]] = [[] for _ in ranges]
    for place, line in session.execute(_LINES, values) if ranges else ():
        found[place].append(bytes(line))
    return found


def days_of(session: Session, tenant_id: str, batch_ids: Sequence[str]) -> Days:
    """Return the days under which the results of a tenant's batches are filed, without those of other tenants."""
    rows = session.execute(_DAYS, {"tenant_id": tenant_id, "ids": list(batch_ids)})
    return {row.id: row.day for row in rows}


# An array of ranges and no join of tables: each range is read from the key of `result`.
_LINES = text("""
    SELECT asked.place, result.line
    FROM unnest(
        CAST(:places AS integer[]), CAST(:days AS date[]), CAST(:batch_ids AS text[]),
        CAST(:first_lines AS bigint[]), CAST(:last_lines AS bigint[])
    ) AS asked (place, day, batch_id, first_line, last_line)
        JOIN result ON result.batch_day = asked.day AND result.batch_id = asked.batch_id
            AND result.line_no BETWEEN asked.first_line AND asked.last_line
    ORDER BY asked.place, result.line_no
""")

_DAYS = text("""
    SELECT id, CAST(created_at AT TIME ZONE 'UTC' AS date) AS day FROM batch
    WHERE tenant_id = :tenant_id AND id = ANY(CAST(:ids AS text[]))
""")
