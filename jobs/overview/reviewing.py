"""Values that wait for a person, over all extractions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReviews:
    """How many values nobody has decided, and how long the oldest waits."""

    num_open: int
    oldest_at: datetime | None
    extraction_id: str | None
    """Whose values wait longest."""


def open_reviews(session: Session, tenant_id: str | None) -> OpenReviews:
    row = session.execute(_OPEN, {"tenant_id": tenant_id}).one()
    return OpenReviews(num_open=int(row.num_open), oldest_at=row.oldest_at, extraction_id=row.extraction_id)


_OPEN = text("""
    SELECT coalesce(sum(num), 0) AS num_open, min(ended_at) AS oldest_at,
        (array_agg(extraction_id ORDER BY ended_at))[1] AS extraction_id
    FROM (
        SELECT review.extraction_id, count(*) AS num, extraction.ended_at
        FROM review JOIN extraction ON extraction.id = review.extraction_id
        WHERE review.decided_at IS NULL AND (CAST(:tenant_id AS text) IS NULL OR review.tenant_id = :tenant_id)
        GROUP BY review.extraction_id, extraction.ended_at
    ) AS open
""")
