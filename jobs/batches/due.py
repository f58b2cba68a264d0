"""Whether the dispatcher has anything to do: one query in place of the dozen of a tick.

Each condition is that of the sweep that acts on it. Changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, Select, literal_column, or_, select, text
from sqlalchemy.orm import Session

from jobs.batches import following, lost_leases, sweeps
from jobs.chunks import deferring, fleet, waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Result of one query."""

    is_any_open: bool = False
    """Whether any batch has not ended. Without one, nothing else is checked."""
    has_lost_leases: bool = False
    is_any: bool = False
    """Whether a tick would do anything, lost leases included."""


def look(session: Session, *, again_seconds: float) -> Due:
    """Run the query once; chunks hinted within `again_seconds` are not due."""
    if not sweeps.is_any_open(session):
        return Due()
    connection = session.connection()
    row = connection.exec_driver_sql(*_written(connection.dialect, again_seconds)).one()
    return Due(is_any_open=True, has_lost_leases=row.has_lost_leases, is_any=row.has_lost_leases or row.is_due)


@lru_cache(maxsize=4)
def _written(dialect: Dialect, again_seconds: float) -> tuple[str, dict[str, Any]]:
    """Return the compiled query and its parameters: SQLAlchemy's cache lookup takes longer than the query."""
    query = _LOOK.params(again_seconds=again_seconds, again=timedelta(seconds=again_seconds), within=fleet.LIVE_WITHIN)
    compiled = query.compile(dialect=dialect).construct_expanded_state()
    return compiled.statement, dict(compiled.parameters)


_IS_DUE = or_(
    *(query.with_only_columns(literal_column("1")).exists() for query in (*sweeps.SWEPT, following.FAILED)),
    text(waiting.IS_ANY_WAITING),
    text(deferring.IS_ANY_DUE),
    text(fleet.HAS_USE_FOR_HINTS),
)
_LOOK: Select[bool, bool] = select(
    literal_column(lost_leases.IS_ANY_OVER).label("has_lost_leases"), _IS_DUE.label("is_due")
)
