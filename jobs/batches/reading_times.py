"""How long a line of a batch of documents is expected to take: what those of its tenant's last such batches took."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.lines.endpoints import PREPARED
from jobs.lines.line_times import TURN_MILLISECONDS, USUAL_MILLISECONDS
from jobs.tables import Batch

_BATCHES = 4
"""That are asked, at most; of the newest ones of the tenant."""
_NEWEST = 200


def expected_milliseconds(session: Session, batch: Batch) -> int:
    """Return what a line is expected to take a reader, at least 1 and at most a turn."""
    if batch.endpoint not in PREPARED:
        return 1
    values = {"tenant_id": batch.tenant_id, "endpoint": batch.endpoint, "newest": _NEWEST, "limit": _BATCHES}
    measured = session.scalar(_MEASURED, values)
    found = USUAL_MILLISECONDS[batch.endpoint] if measured is None else int(measured)
    return max(1, min(found, TURN_MILLISECONDS))


_MEASURED = text("""
    SELECT sum(reading_microseconds) / 1000 / sum(num_results) FROM (
        SELECT reading_microseconds, num_completed + num_failed AS num_results FROM (
            SELECT endpoint, reading_microseconds, num_completed, num_failed FROM batch
            WHERE tenant_id = :tenant_id ORDER BY created_at DESC, id DESC LIMIT :newest
        ) AS newest
        WHERE endpoint = :endpoint AND reading_microseconds > 0 LIMIT :limit
    ) AS measured
""")
