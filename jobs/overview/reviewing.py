"""Values that await review, over all extractions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from jobs.overview.owned import OwnedQuery, Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenReviews:
    """How many values are undecided, and how long the oldest waits."""

    num_open: int
    oldest_at: datetime | None
    extraction_id: str | None
    """The extraction with the oldest undecided value."""


_NONE = OpenReviews(num_open=0, oldest_at=None, extraction_id=None)


def open_reviews(session: Session, owners: Collection[Owner]) -> dict[Owner, OpenReviews]:
    """Return the open reviews of each owner."""
    return {owner: _open(rows) for owner, rows in _OPEN.rows(session, owners).items()}


def _open(rows: Sequence[Any]) -> OpenReviews:
    if not rows:
        return _NONE
    (row,) = rows
    return OpenReviews(num_open=int(row.num_open), oldest_at=row.oldest_at, extraction_id=row.extraction_id)


# Open values of each extraction are counted in their index; they include the sample of sure values.
_OPEN = OwnedQuery(
    """
    SELECT owner.id AS owner_id, sum(num) AS num_open, min(ended_at) AS oldest_at,
        (array_agg(flow.id ORDER BY ended_at))[1] AS extraction_id
    FROM {owners} JOIN flow ON {is_theirs} CROSS JOIN LATERAL (
        SELECT count(*) AS num FROM review WHERE review.extraction_id = flow.id AND decided_at IS NULL
    ) AS open
    WHERE flow.recipe = 'extraction' AND flow.state = 'completed' AND num > 0
    GROUP BY owner.id
    """,
    table="flow",
)
