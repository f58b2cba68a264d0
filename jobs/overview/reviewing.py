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


# Of each extraction its open ones are counted in their index; a sample of what is sure is among them.
_OPEN = text("""
    SELECT coalesce(sum(num), 0) AS num_open, min(ended_at) AS oldest_at,
        (array_agg(id ORDER BY ended_at))[1] AS extraction_id
    FROM extraction CROSS JOIN LATERAL (
        SELECT count(*) AS num FROM review WHERE review.extraction_id = extraction.id AND decided_at IS NULL
    ) AS open
    WHERE extraction.state = 'completed' AND num > 0 AND (CAST(:tenant_id AS text) IS NULL OR tenant_id = :tenant_id)
""")
