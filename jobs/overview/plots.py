"""Points of plots: usage and backlog per minute, hour or day, bounded by their retention.

The process that counts the queue writes them; pages only read. Losing some only leaves a gap on a screen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import LIVE_WITHIN
from jobs.lines.document_bodies import PREPARE_MODEL

MINUTE, HOUR, DAY = 60, 3600, 86_400
KEPT = {MINUTE: timedelta(hours=25), HOUR: timedelta(days=31), DAY: timedelta(days=31)}
"""How long points are kept, by the seconds that each stands for."""
_ENTRIES_A_LOOK = 100_000
"""Most ledger entries added up in one pass: the others follow in the next."""


class Series(StrEnum):
    """What is plotted, and over which labels."""

    INPUT_TOKENS = "input_tokens"  # by model, of each tenant and of all together
    OUTPUT_TOKENS = "output_tokens"
    COST = "cost"  # in pico-units of currency
    QUEUED_LINES = "queued_lines"  # by class, of all tenants; the last of its minute
    RUNNING_REQUESTS = "running_requests"  # by model
    CACHE_USE = "cache_use"  # by model, 0 to 1


class Range(StrEnum):
    """How far a plot goes back."""

    HOUR = "1h"
    DAY = "24h"
    MONTH = "30d"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resolution:
    """Points of `seconds`, one of them drawn for every `drawn_seconds`, over `length`."""

    seconds: int
    drawn_seconds: int
    length: timedelta


RESOLUTIONS = {
    Range.HOUR: _Resolution(seconds=MINUTE, drawn_seconds=MINUTE, length=timedelta(hours=1)),
    Range.DAY: _Resolution(seconds=MINUTE, drawn_seconds=10 * MINUTE, length=timedelta(days=1)),
    Range.MONTH: _Resolution(seconds=HOUR, drawn_seconds=4 * HOUR, length=timedelta(days=30)),
}
_SUMMED = (Series.INPUT_TOKENS, Series.OUTPUT_TOKENS, Series.COST)
_OF_ALL = "total_"
"""Prefix of the names of sums over all tenants, stored without an owner: reading them takes as long as one tenant's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines over the same points in time."""

    drawn_seconds: int
    at: Sequence[int]
    """Unix seconds, evenly spaced."""
    lines: Mapping[str, Sequence[float | None]]
    """By label. Sums are 0 where nothing happened; None: not measured."""


def take(session: Session) -> None:
    """Add new ledger entries, record what waits and runs now, and delete expired points."""
    session.execute(_ADD_LEDGER, {"limit": _ENTRIES_A_LOOK})
    session.execute(_NOTE_NOW, {"within": LIVE_WITHIN, "prepare": PREPARE_MODEL})
    for seconds, age in KEPT.items():
        session.execute(_FORGET, {"seconds": seconds, "age": age})


def read(
    session: Session, series: Series, plot_range: Range, *, tenant_id: str | None, now: datetime | None = None
) -> Plot:
    """Return a plot; for sums the tenant's, or without one those of all tenants."""
    resolution = RESOLUTIONS[plot_range]
    step = resolution.drawn_seconds
    last = int((now or datetime.now(UTC)).timestamp()) // step * step
    at = range(last - int(resolution.length.total_seconds()) + step, last + step, step)
    is_sum = series in _SUMMED
    values = {
        "name": f"{_OF_ALL}{series}" if is_sum and tenant_id is None else series.value,
        "seconds": resolution.seconds,
        "step": step,
        "since": datetime.fromtimestamp(at[0], UTC),
        "tenant_id": tenant_id or "",
    }
    points: dict[str, dict[int, float]] = defaultdict(dict)
    for row in session.execute(_READ_SUMS if is_sum else _READ_LAST, values):
        points[row.label][int(row.drawn_at.timestamp())] = float(row.value)
    missing = 0.0 if is_sum else None
    lines = {label: [line.get(moment, missing) for moment in at] for label, line in sorted(points.items())}
    return Plot(drawn_seconds=step, at=list(at), lines=lines)


# The mark is the last entry added. An entry committed after a later one was read is missed: a flush at most.
_ADD_LEDGER = text("""
    WITH mark AS (
        INSERT INTO plot_mark (id, ledger_id)
        VALUES (1, coalesce((SELECT max(id) FROM ledger), 0)) ON CONFLICT (id) DO UPDATE
        SET ledger_id = least(plot_mark.ledger_id + :limit, greatest(plot_mark.ledger_id, excluded.ledger_id))
        RETURNING ledger_id AS until
    ), entry AS (
        SELECT tenant_id, model, created_at, input_tokens, output_tokens, cost_picos FROM ledger
        WHERE id > (SELECT ledger_id FROM plot_mark) AND id <= (SELECT until FROM mark)
    ), summed AS (
        SELECT width.unit, width.seconds, date_trunc(width.unit, created_at) AS at, tenant_id, model,
            sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens, sum(cost_picos) AS cost
        FROM entry CROSS JOIN (VALUES ('minute', 60), ('hour', 3600), ('day', 86400)) AS width (unit, seconds)
        GROUP BY width.unit, width.seconds, date_trunc(width.unit, created_at), model, ROLLUP (tenant_id)
    )
    INSERT INTO plot_point (name, label, tenant_id, seconds, at, value)
    SELECT CASE WHEN summed.tenant_id IS NULL THEN 'total_' ELSE '' END || counted.name, summed.model,
        coalesce(summed.tenant_id, ''), summed.seconds, summed.at, counted.value
    FROM summed CROSS JOIN LATERAL (
        VALUES ('input_tokens', summed.input_tokens), ('output_tokens', summed.output_tokens), ('cost', summed.cost)
    ) AS counted (name, value)
    WHERE counted.value > 0
    ON CONFLICT (name, label, tenant_id, seconds, at) DO UPDATE SET value = plot_point.value + excluded.value
""")

_NOTE_NOW = text("""
    WITH now_is AS (
        SELECT 'queued_lines' AS name, label, sum(num_lines) AS value FROM (
            SELECT chunks ->> 'priority' AS label, CAST(chunks ->> 'num_lines' AS bigint) AS num_lines
            FROM queue_count CROSS JOIN LATERAL jsonb_array_elements(numbers -> 'chunks') AS chunks
            UNION ALL  -- that a class waits no more is a point, too: a burst within a minute would be no line
            SELECT DISTINCT plot_point.label, 0 FROM plot_point CROSS JOIN queue_count
            WHERE plot_point.name = 'queued_lines' AND plot_point.seconds = 60 AND plot_point.value > 0
        ) AS waiting GROUP BY label
        UNION ALL
        SELECT measured.name, model, measured.value FROM (
            SELECT model,
                sum(coalesce(CAST(engine_stats ->> 'num_requests_running' AS double precision), 0)) AS running,
                avg(coalesce(CAST(engine_stats ->> 'kv_cache_usage_perc' AS double precision), 0)) AS cache_use
            FROM worker
            WHERE stopped_at IS NULL AND heartbeat_at > now() - CAST(:within AS interval) AND model <> :prepare
            GROUP BY model
        ) AS busy CROSS JOIN LATERAL (
            VALUES ('running_requests', running), ('cache_use', cache_use)
        ) AS measured (name, value)
    )
    INSERT INTO plot_point (name, label, tenant_id, seconds, at, value)
    SELECT name, label, '', width.seconds, date_trunc(width.unit, now()), value
    FROM now_is CROSS JOIN (VALUES ('minute', 60), ('hour', 3600)) AS width (unit, seconds)
    ON CONFLICT (name, label, tenant_id, seconds, at) DO UPDATE SET value = excluded.value
""")

_FORGET = text("DELETE FROM plot_point WHERE seconds = :seconds AND at < now() - CAST(:age AS interval)")

_DRAWN = "date_bin(make_interval(secs => :step), at, to_timestamp(0))"

_READ_SUMS = text(f"""
    SELECT label, {_DRAWN} AS drawn_at, sum(value) AS value FROM plot_point
    WHERE name = :name AND tenant_id = :tenant_id AND seconds = :seconds AND at >= :since
    GROUP BY 1, 2
""")

_READ_LAST = text(f"""
    SELECT DISTINCT ON (label, {_DRAWN}) label, {_DRAWN} AS drawn_at, value FROM plot_point
    WHERE name = :name AND tenant_id = :tenant_id AND seconds = :seconds AND at >= :since
    ORDER BY label, {_DRAWN}, at DESC
""")
