"""Each tenant's waiting and running lines in a model's class, beside its fair share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.overview.backlog import IS_LIVE
from jobs.states import BatchState
from jobs.tables.base import one_of

_MOST = 12
_WITH_LINES = (BatchState.IN_PROGRESS, BatchState.CANCELLING)
"""States in which workers may have lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """A tenant in the queue of one model's class."""

    name: str
    model: str
    priority: str
    weight: float
    due: float
    """Its weight among the tenants with work in this queue, 0 to 1."""
    num_leased: int
    """Lines that workers hold."""
    num_ready: int
    """Lines that wait for a worker, without those of batches that wait for a budget."""


def by_tenant(session: Session) -> Sequence[TenantShare]:
    """Return the tenants with open lines, those with most first."""
    rows = session.execute(_BY_TENANT, {"limit": _MOST}).mappings()
    return [TenantShare(**row) for row in rows]


# Counted by batch: a queue of ten million lines has a hundred thousand chunks. Some lines of leased chunks have ended
# already.
_BY_TENANT = text(f"""
    SELECT tenant.name, open.model, open.priority, tenant.weight, open.num_leased, open.num_ready,
        tenant.weight / sum(tenant.weight) OVER (PARTITION BY open.model, open.priority) AS due
    FROM (
        SELECT tenant_id, model, priority, CAST(sum(least(num_taken, num_left)) AS bigint) AS num_leased,
            coalesce(CAST(sum(greatest(num_left - num_taken, 0)) FILTER (WHERE may_start) AS bigint), 0) AS num_ready
        FROM (
            SELECT tenant_id, model, priority, num_requests - num_completed - num_failed AS num_left,
                coalesce(taken.num, 0) AS num_taken,
                state = 'in_progress' AND waits_for_tokens IS NULL AS may_start
            FROM batch LEFT JOIN (
                SELECT batch_id, sum(num_requests) AS num FROM chunk WHERE state = 'leased' GROUP BY batch_id
            ) AS taken ON taken.batch_id = batch.id
            WHERE {IS_LIVE} AND {one_of("state", _WITH_LINES)}
        ) AS lines
        GROUP BY tenant_id, model, priority
    ) AS open JOIN tenant ON tenant.id = open.tenant_id
    WHERE open.num_leased + open.num_ready > 0
    ORDER BY open.num_leased + open.num_ready DESC, tenant.name LIMIT :limit
""")
