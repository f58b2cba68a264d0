"""What is open: how much of each class, how long it takes, what waits longest, and what may miss its deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select, text
from sqlalchemy.orm import Session

from jobs.forecasts.outlooks import KEPT_FOR
from jobs.states import TERMINAL_BATCH_STATES, BatchState, Priority
from jobs.tables import Batch
from jobs.tables.base import one_of

LIVE_STATES = tuple(state for state in BatchState if state not in TERMINAL_BATCH_STATES)
IS_LIVE = one_of("batch.state", LIVE_STATES)
"""As the indexes of live batches have it: with values in place of these words Postgres may not know that they fit."""
_FEW = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBacklog:
    """What is open of one priority class."""

    priority: str
    num_batches: int
    num_lines: int
    """That have no result yet; a batch that is being validated has none to count."""
    num_tokens: int
    """Reserved for them."""
    seconds: float | None
    """Until the last of them is expected to end; None where nobody knows."""


def by_class(session: Session, tenant_id: str | None) -> Sequence[ClassBacklog]:
    """Return every class that has open batches, the most urgent first."""
    values = {"tenant_id": tenant_id, "kept_for": KEPT_FOR}
    found = {row.priority: row for row in session.execute(_BY_CLASS, values)}
    return [
        ClassBacklog(
            priority=row.priority,
            num_batches=int(row.num_batches),
            num_lines=int(row.num_lines),
            num_tokens=int(row.num_tokens),
            seconds=None if row.seconds is None else float(row.seconds),
        )
        for priority in Priority
        if (row := found.get(priority.value)) is not None
    ]


def waiting_longest(session: Session, tenant_id: str | None) -> Sequence[Batch]:
    """Return the oldest open batches that have no line done."""
    nothing_done = (Batch.num_completed == 0) & (Batch.num_failed == 0)
    return session.scalars(_live(tenant_id).where(nothing_done).order_by(Batch.created_at, Batch.id).limit(_FEW)).all()


def at_risk(session: Session, tenant_id: str | None) -> Sequence[Batch]:
    """Return open batches that may miss their deadline, as `jobs.forecasts.risks` found, the nearest first."""
    return session.scalars(
        _live(tenant_id).where(Batch.at_risk_at.is_not(None)).order_by(Batch.expires_at, Batch.id).limit(_FEW)
    ).all()


def failed_lately(session: Session, tenant_id: str | None, *, limit: int = _FEW) -> Sequence[Batch]:
    """Return batches of the last day that have failed lines, or failed as a whole, the newest first."""
    query = select(Batch).where(
        Batch.deleted_at.is_(None),
        Batch.created_at > func.now() - text("interval '1 day'"),
        (Batch.num_failed > 0) | (Batch.state == BatchState.FAILED),
    )
    if tenant_id is not None:
        query = query.where(Batch.tenant_id == tenant_id)
    return session.scalars(query.order_by(Batch.created_at.desc(), Batch.id).limit(limit)).all()


def _live(tenant_id: str | None) -> Select[Batch]:
    query = select(Batch).where(text(IS_LIVE))
    return query if tenant_id is None else query.where(Batch.tenant_id == tenant_id)


_BY_CLASS = text(f"""
    SELECT batch.priority, count(*) AS num_batches,
        coalesce(sum(num_requests - num_completed - num_failed), 0) AS num_lines,
        coalesce(sum(reserved_tokens), 0) AS num_tokens,
        max(forecast.seconds - extract(epoch FROM now() - forecast.made_at)) AS seconds
    FROM batch
    LEFT JOIN forecast ON forecast.batch_id = batch.id AND forecast.made_at > now() - CAST(:kept_for AS interval)
    WHERE {IS_LIVE} AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
    GROUP BY batch.priority
""")
