"""Who waits and who runs: what each tenant has of a model's class, beside the share that is its due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

_MOST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """A tenant in the queue of one model's class."""

    name: str
    model: str
    priority: str
    weight: float
    due: float
    """Its weight among those that want something of this queue, 0 to 1."""
    num_leased: int
    """Lines that workers have."""
    num_ready: int
    """Lines that wait for a worker; those of batches that wait for a budget do not."""


def by_tenant(session: Session) -> Sequence[TenantShare]:
    """Return who has open lines, those with most first."""
    rows = session.execute(_BY_TENANT, {"limit": _MOST}).mappings()
    return [TenantShare(**row) for row in rows]


# What waits is counted by batch: a queue of ten million lines has a hundred thousand chunks.
_BY_TENANT = text("""
    SELECT tenant.name, open.model, open.priority, tenant.weight, open.num_leased, open.num_ready,
        tenant.weight / sum(tenant.weight) OVER (PARTITION BY open.model, open.priority) AS due
    FROM (
        SELECT tenant_id, model, priority, CAST(sum(num_leased) AS bigint) AS num_leased,
            CAST(greatest(sum(num_left) - sum(num_leased), 0) AS bigint) AS num_ready
        FROM (
            SELECT tenant_id, model, priority, num_requests AS num_leased, 0 AS num_left
            FROM chunk WHERE state = 'leased'
            UNION ALL
            SELECT tenant_id, model, priority, 0, num_requests - num_completed - num_failed
            FROM batch WHERE state = 'in_progress' AND waits_for_tokens IS NULL
        ) AS lines
        GROUP BY tenant_id, model, priority
    ) AS open JOIN tenant ON tenant.id = open.tenant_id
    WHERE open.num_leased + open.num_ready > 0
    ORDER BY open.num_leased + open.num_ready DESC, tenant.name LIMIT :limit
""")
