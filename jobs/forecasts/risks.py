"""Send webhook events for batches that may miss their deadline: once per batch, whatever later forecasts say."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.hooks import emit, named
from jobs.states import EventType

_BATCHES = 100  # per measurement


def warn(session: Session) -> list[str]:
    """Record an event for each batch that is newly at risk, and mark it as reported; return their ids.

    A batch is at risk when it is expected to end after its deadline, or when its end is unknown and three quarters of
    its window are over. Locked batches are left for the next measurement.
    """
    rows = session.execute(_AT_RISK, {"limit": _BATCHES}).all()
    for row in rows:
        emit(
            session,
            row.tenant_id,
            EventType.BATCH_AT_RISK,
            {**named(row.id, row.name), "eta": row.eta, "expires_at": row.expires_at},
        )
    return [row.id for row in rows]


# An end more than ten years away is not reported, as in estimates.
_AT_RISK = text("""
    WITH found AS (
        SELECT batch.id, forecast.made_at, forecast.seconds FROM batch
        LEFT JOIN forecast ON forecast.batch_id = batch.id
        WHERE batch.state IN ('validating', 'in_progress') AND batch.at_risk_at IS NULL AND batch.expires_at > now()
            AND CASE
                WHEN forecast.seconds IS NULL THEN now() > batch.expires_at - (batch.expires_at - batch.created_at) / 4
                ELSE forecast.seconds > extract(epoch FROM batch.expires_at - forecast.made_at)
            END
        ORDER BY batch.id LIMIT :limit FOR NO KEY UPDATE OF batch SKIP LOCKED
    )
    UPDATE batch SET at_risk_at = now() FROM found WHERE batch.id = found.id
    RETURNING batch.id, batch.name, batch.tenant_id,
        CAST(floor(extract(epoch FROM batch.expires_at)) AS bigint) AS expires_at,
        CASE WHEN found.seconds < 10 * 365 * 86400
            THEN CAST(floor(extract(epoch FROM found.made_at) + found.seconds) AS bigint) END AS eta
""")
