"""Open work: how much of each class, how long it takes, what waits longest, and what may miss its deadline."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from jobs.forecasts.outlooks import KEPT_FOR
from jobs.overview.owned import OwnedQuery, Owner
from jobs.states import LIVE_BATCH_STATES, Priority
from jobs.tables.base import one_of

IS_LIVE = one_of("batch.state", LIVE_BATCH_STATES)
"""As in the indexes of live batches: with parameters instead of literals Postgres may not know that they apply."""
FEW = 5
"""Batches per list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBacklog:
    """Open work of one priority class."""

    priority: str
    num_batches: int
    num_lines: int
    """Without a result; a batch in validation has none to count."""
    num_tokens: int
    """Reserved for them."""


def by_class(session: Session, owners: Collection[Owner]) -> dict[Owner, Sequence[ClassBacklog]]:
    """Return every class in which an owner has open batches, most urgent first."""
    return {owner: _by_urgency(of_owner) for owner, of_owner in _BY_CLASS.rows(session, owners).items()}


def seconds_by_class(session: Session, owners: Collection[Owner]) -> dict[Owner, dict[str, float]]:
    """Return in how many seconds the last open batch of each class is forecast to end; others are left out.

    Forecasts are made every few seconds: querying more often costs as much as everything else about classes, and shows
    no more.
    """
    rows = _SECONDS.rows(session, owners, kept_for=KEPT_FOR)
    return {owner: {row.priority: float(row.seconds) for row in of_owner} for owner, of_owner in rows.items()}


def _by_urgency(rows: Sequence[Any]) -> Sequence[ClassBacklog]:
    rows_by_class = {row.priority: row for row in rows}
    return [
        ClassBacklog(
            priority=row.priority,
            num_batches=int(row.num_batches),
            num_lines=int(row.num_lines),
            num_tokens=int(row.num_tokens),
        )
        for priority in Priority
        if (row := rows_by_class.get(priority.value)) is not None
    ]


def waiting_longest(session: Session, owners: Collection[Owner]) -> dict[Owner, Sequence[str]]:
    """Return the ids of an owner's oldest open batches without a finished line."""
    return _ids(_WAITING.rows(session, owners, most=FEW))


def at_risk(session: Session, owners: Collection[Owner]) -> dict[Owner, Sequence[str]]:
    """Return the ids of batches that may miss their deadline, as `jobs.forecasts.risks` found, nearest first."""
    return _ids(_AT_RISK.rows(session, owners, most=FEW))


def failed_lately(session: Session, owners: Collection[Owner], *, most: int = FEW) -> dict[Owner, Sequence[str]]:
    """Return the ids of the last day's batches with failed lines, or that failed as a whole, newest first."""
    return _ids(_FAILED.rows(session, owners, most=most))


def _ids(rows: Mapping[Owner, Sequence[Any]]) -> dict[Owner, Sequence[str]]:
    return {owner: [row.id for row in of_owner] for owner, of_owner in rows.items()}


def _few(which: str, *, order: str) -> OwnedQuery:
    return OwnedQuery(
        f"""
        SELECT owner.id AS owner_id, batch.id
        FROM {{owners}} CROSS JOIN LATERAL (
            SELECT * FROM batch WHERE {which} AND {{is_theirs}} ORDER BY {order} LIMIT :most
        ) AS batch
        ORDER BY {order}
        """,
        table="batch",
    )


_WAITING = _few(f"{IS_LIVE} AND num_completed = 0 AND num_failed = 0", order="batch.created_at, batch.id")
_AT_RISK = _few(f"{IS_LIVE} AND at_risk_at IS NOT NULL", order="batch.expires_at, batch.id")
_FAILED = _few(
    "deleted_at IS NULL AND created_at > now() - interval '1 day' AND (num_failed > 0 OR state = 'failed')",
    order="batch.created_at DESC, batch.id",
)
_BY_CLASS = OwnedQuery(
    f"""
    SELECT owner.id AS owner_id, batch.priority, count(*) AS num_batches,
        coalesce(sum(num_requests - num_completed - num_failed), 0) AS num_lines,
        coalesce(sum(reserved_tokens), 0) AS num_tokens
    FROM {{owners}} JOIN batch ON {{is_theirs}}
    WHERE {IS_LIVE}
    GROUP BY owner.id, batch.priority
    """,
    table="batch",
)
_SECONDS = OwnedQuery(
    f"""
    SELECT owner.id AS owner_id, batch.priority,
        max(forecast.seconds - extract(epoch FROM now() - forecast.made_at)) AS seconds
    FROM {{owners}} JOIN batch ON {{is_theirs}} JOIN forecast ON forecast.batch_id = batch.id
    WHERE {IS_LIVE} AND forecast.seconds IS NOT NULL AND forecast.made_at > now() - CAST(:kept_for AS interval)
    GROUP BY owner.id, batch.priority
    """,
    table="batch",
)
