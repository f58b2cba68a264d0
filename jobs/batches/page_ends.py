"""End of a page of results by their sizes alone: a hundred lines fetched together may have gigabytes."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import TextClause
from sqlalchemy.orm import Session

from jobs.database import stream

_ROWS_A_FETCH = 1000


def end_of_page(
    session: Session, sizes: TextClause, values: Mapping[str, object], *, after: int, limit: int, max_bytes: int
) -> tuple[int, bool]:
    """Return the number of the last result of the page after number `after` (or `after`), and whether more follow.

    `sizes` selects the number and the bytes of the next `:limit` results after `:after`, in their order. A page has at
    most `limit` results, and ends after the one that exceeds `max_bytes`.
    """
    last, num_results, size = after, 0, 0
    with stream(session, sizes, {**values, "after": after, "limit": limit + 1}, num_rows=_ROWS_A_FETCH) as rows:
        for number, num_bytes in rows:
            if num_results == limit or size >= max_bytes:
                return last, True
            last, num_results, size = number, num_results + 1, size + num_bytes
    return last, False
