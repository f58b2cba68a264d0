"""Fair shares: the virtual time of each tenant, by model and class.

Each model is a server with its own clocks. The order itself is in `fair_order`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.queue_marks import HAS_READY


class Share(NamedTuple):
    """Key of a share's row."""

    model: str
    priority: str
    tenant_id: str


def lock(session: Session, shares: Iterable[Share]) -> None:
    """Lock several shares in the global order; required before writing more than one."""
    session.execute(_LOCK, _columns(shares))


def lock_free(session: Session, shares: Iterable[Share]) -> set[Share]:
    """Lock those of these shares that are not locked, and return the others; never waits."""
    columns = _columns(shares)
    free = {Share(*row) for row in session.execute(_LOCK_FREE, columns)}
    return {Share(*row) for row in session.execute(_FIND, columns)} - free


def _columns(shares: Iterable[Share]) -> dict[str, list[str]]:
    distinct = sorted(set(shares))
    return {name: [getattr(share, name) for share in distinct] for name in Share._fields}


def charge(session: Session, *, model: str, priority: str, tenant_id: str, tokens: int) -> None:
    """Advance a tenant's virtual time by a chunk's estimate when it is claimed; ageing starts again."""
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "tokens": tokens}
    session.execute(_CHARGE, values)


def correct(session: Session, *, model: str, priority: str, tenant_id: str, tokens: int) -> None:
    """Add the tokens that a chunk used beyond its charged estimate; a negative number returns some."""
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "tokens": tokens}
    session.execute(_CORRECT, values)


def activate(session: Session, *, model: str, priority: str, tenant_id: str) -> None:
    """Start a tenant that had no open chunk in this class at max(own, least active): idling earns no credit.

    Where nobody is active, the largest virtual time of all replaces the least active: the clock stood there when the
    last tenant left. Call before the tenant's chunks are written.
    """
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "is_new": True}
    session.execute(_ACTIVATE, values)


def keep_up(session: Session, *, model: str, priority: str, tenant_id: str) -> None:
    """Raise a tenant to max(own, least active) in the class its chunk was lowered to, before charging it.

    Where nobody is active it keeps its own time: a tenant whose chunks are lowered is not a newcomer with each of them.
    """
    values = {"model": model, "priority": priority, "tenant_id": tenant_id, "is_new": False}
    session.execute(_ACTIVATE, values)


_FIND_SHARES = """
    SELECT model, priority, tenant_id FROM fair_share WHERE (model, priority, tenant_id) IN (
        SELECT * FROM unnest(CAST(:model AS text[]), CAST(:priority AS text[]), CAST(:tenant_id AS text[]))
    )
"""
_FIND = text(_FIND_SHARES)
_LOCK = text(f"{_FIND_SHARES} ORDER BY model, priority, tenant_id FOR NO KEY UPDATE")
_LOCK_FREE = text(f"{_FIND_SHARES} ORDER BY model, priority, tenant_id FOR NO KEY UPDATE SKIP LOCKED")

# A statement sees the chunks as of its start, and the row as of its lock: where the row was marked in between, a chunk
# may have become ready that is not seen here.
_CHARGE = text(f"""
    INSERT INTO fair_share AS share (model, priority, tenant_id, virtual_time, served_at, waiting_since)
    SELECT model, priority, tenant_id, :tokens / weight, clock_timestamp(),
        CASE WHEN {HAS_READY.format("queue")} THEN clock_timestamp() END
    FROM (SELECT :model AS model, :priority AS priority, id AS tenant_id, weight FROM tenant WHERE id = :tenant_id)
        AS queue
    ON CONFLICT (model, priority, tenant_id) DO UPDATE
    SET virtual_time = share.virtual_time + excluded.virtual_time, served_at = excluded.served_at,
        waiting_since = CASE
            WHEN excluded.waiting_since IS NULL AND share.marked_at IS NOT DISTINCT FROM (
                SELECT marked_at FROM fair_share AS seen
                WHERE seen.model = :model AND seen.priority = :priority AND seen.tenant_id = :tenant_id
            ) THEN NULL
            ELSE excluded.served_at
        END
""")

_CORRECT = text("""
    UPDATE fair_share SET virtual_time = fair_share.virtual_time + :tokens / tenant.weight
    FROM tenant
    WHERE tenant.id = fair_share.tenant_id AND fair_share.tenant_id = :tenant_id
        AND fair_share.model = :model AND fair_share.priority = :priority
""")

_ACTIVATE = text(f"""
    WITH leased AS (
        SELECT DISTINCT tenant_id FROM chunk WHERE state = 'leased' AND model = :model AND priority = :priority
    ), waiting AS (
        SELECT virtual_time FROM (
            SELECT model, priority, tenant_id, virtual_time FROM fair_share
            WHERE model = :model AND priority = :priority AND waiting_since IS NOT NULL
            ORDER BY virtual_time, tenant_id OFFSET 0
        ) AS share
        WHERE {HAS_READY.format("share")} ORDER BY virtual_time, tenant_id LIMIT 1
    ), running AS (
        SELECT share.virtual_time FROM leased JOIN fair_share AS share
            ON share.model = :model AND share.priority = :priority AND share.tenant_id = leased.tenant_id
    ), active AS (
        SELECT min(virtual_time) AS least FROM (SELECT * FROM waiting UNION ALL SELECT * FROM running) AS either
    )
    INSERT INTO fair_share (model, priority, tenant_id, virtual_time, waiting_since)
    SELECT :model, :priority, :tenant_id, coalesce(
        least,
        CASE WHEN CAST(:is_new AS boolean) THEN (
            SELECT max(virtual_time) FROM fair_share WHERE model = :model AND priority = :priority
        ) END,
        0
    ), NULL
    FROM active
    WHERE NOT EXISTS (
        SELECT FROM fair_share AS share
        WHERE share.model = :model AND share.priority = :priority AND share.tenant_id = :tenant_id
            AND (share.tenant_id IN (SELECT tenant_id FROM leased) OR {HAS_READY.format("share")})
    )
    ON CONFLICT (model, priority, tenant_id) DO UPDATE
    SET virtual_time = greatest(fair_share.virtual_time, excluded.virtual_time)
""")
