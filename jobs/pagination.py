"""Pages of objects, newest or oldest first, continued after an object id as in the official client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, select, tuple_
from sqlalchemy.orm import Session

from jobs.errors import InputError
from jobs.tables.base import Base

Row = TypeVar("Row", bound=Base)
"""A table with the columns id, tenant_id and created_at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Row]):
    """Some rows of a list, in order."""

    data: Sequence[Row]
    has_more: bool
    """Exact: another page with at least one object follows."""


def read_page(
    session: Session,
    query: Select[Row],
    *,
    table: type[Row],
    tenant_id: str,
    after: str | None,
    limit: int,
    newest_first: bool = True,
) -> Page[Row]:
    """Return up to `limit` rows that `query` selects, after the object `after` in order of creation.

    The cursor is a point in time, so it also works after an object that was deleted meanwhile or does not match the
    filter. Raises InputError where this tenant never had it.
    """
    if limit < 1:
        raise InputError(f"limit is {limit}; give 1 or more", param="limit", code="invalid_value")
    columns: Any = table
    ordering = (columns.created_at, columns.id)
    position = tuple_(*ordering)
    if after is not None:
        cursor = _position_of(session, table, tenant_id=tenant_id, object_id=after)
        query = query.where(position < cursor if newest_first else position > cursor)
    query = query.order_by(*(column.desc() if newest_first else column.asc() for column in ordering)).limit(limit + 1)
    rows = session.scalars(query).all()
    return Page(data=rows[:limit], has_more=len(rows) > limit)


def _position_of(session: Session, table: type[Row], *, tenant_id: str, object_id: str) -> tuple[object, str]:
    columns: Any = table
    is_it = (columns.id == object_id) & (columns.tenant_id == tenant_id)
    created_at = session.scalar(select(columns.created_at).where(is_it))
    if created_at is None:
        raise InputError(
            f"after is {object_id!r}, which is none of your objects; give the id of the last object of a page",
            param="after",
            code="invalid_value",
        )
    return created_at, object_id
