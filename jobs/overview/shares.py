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
    """Lines that wait."""


def by_tenant(session: Session) -> Sequence[TenantShare]:
    """Return who has open lines, those with most first."""
    rows = session.execute(_BY_TENANT, {"limit": _MOST}).mappings()
    return [TenantShare(**row) for row in rows]


_BY_TENANT = text("""
    SELECT tenant.name, open.model, open.priority, tenant.weight, open.num_leased, open.num_ready,
        tenant.weight / sum(tenant.weight) OVER (PARTITION BY open.model, open.priority) AS due
    FROM (
        SELECT tenant_id, model, priority,
            CAST(coalesce(sum(num_requests) FILTER (WHERE state = 'leased'), 0) AS bigint) AS num_leased,
            CAST(coalesce(sum(num_requests) FILTER (WHERE state = 'ready'), 0) AS bigint) AS num_ready
        FROM chunk WHERE state IN ('ready', 'leased') GROUP BY tenant_id, model, priority
    ) AS open JOIN tenant ON tenant.id = open.tenant_id
    ORDER BY open.num_leased + open.num_ready DESC, tenant.name LIMIT :limit
""")
