"""One row by its id, with a statement that is built once for each table: most reads of a worker are of this form."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Select, bindparam, select
from sqlalchemy.orm import DeclarativeBase, Session

Row = TypeVar("Row", bound=DeclarativeBase)


def find_row(session: Session, table: type[Row], row_id: Any) -> Row | None:
    """Return the row of a table with a single-column key, or None; what the session has read of it before stays."""
    row: Row | None = session.scalar(_read(table), {"row_id": row_id})
    return row


def fresh_row(session: Session, table: type[Row], row_id: Any) -> Row | None:
    """Return the row as it is now, over what the session has read of it before, or None."""
    row: Row | None = session.scalar(_read(table), {"row_id": row_id}, execution_options=_FRESH)
    return row


def locked_row(session: Session, table: type[Row], row_id: Any) -> Row | None:
    """Return the row, freshly read and locked until the transaction ends, or None."""
    row: Row | None = session.scalar(_lock(table), {"row_id": row_id}, execution_options=_FRESH)
    return row


@cache
def _read(table: type[DeclarativeBase]) -> Select[Any]:
    [key] = table.__mapper__.primary_key
    return select(table).where(key == bindparam("row_id"))


@cache
def _lock(table: type[DeclarativeBase]) -> Select[Any]:
    return _read(table).with_for_update(key_share=True)


_FRESH = {"populate_existing": True}
