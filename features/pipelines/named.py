"""Finds, locks and limits a tenant's pipelines and schedules, by id or name."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from features.pipelines.settings import PipelineSettings
from features.pipelines.tables import Pipeline, Schedule
from jobs.database import advisory_lock
from jobs.errors import ConflictError, LimitError, NotFoundError

Named = TypeVar("Named", Pipeline, Schedule)


def of_tenant(table: type[Pipeline | Schedule], tenant_id: str) -> ColumnElement[bool]:
    """Return the condition for a tenant's rows that are not deleted."""
    return (table.tenant_id == tenant_id) & table.deleted_at.is_(None)


def get_named(session: Session, table: type[Named], tenant_id: str, id_or_name: str) -> Named:
    """Return the tenant's row with this id or name. Raise NotFoundError."""
    is_named = (table.id == id_or_name) | (table.name == id_or_name)
    row = session.scalar(select(table).where(of_tenant(table, tenant_id), is_named))
    if row is None:
        raise _not_found(table, id_or_name)
    return row


def lock_named(session: Session, table: type[Named], tenant_id: str, id_or_name: str) -> Named:
    """Return the same row, locked and refreshed. Raise NotFoundError."""
    row = get_named(session, table, tenant_id, id_or_name)
    query = select(table).where(table.id == row.id).with_for_update(key_share=True)
    locked = session.scalar(query, execution_options={"populate_existing": True})
    if locked is None or locked.deleted_at is not None:
        raise _not_found(table, id_or_name)
    return locked


def hold_room(
    session: Session, table: type[Pipeline | Schedule], tenant_id: str, name: str, settings: PipelineSettings
) -> None:
    """Lock creation for this tenant until the transaction ends. Raise LimitError or ConflictError."""
    hold_name(session, table, tenant_id, name)
    of_mine = select(func.count()).select_from(table).where(of_tenant(table, tenant_id))
    if (session.scalar(of_mine) or 0) >= settings.tenant_pipelines:
        raise LimitError(
            f"You have {settings.tenant_pipelines:,} {_word(table)}s, which is your limit. Delete one.",
            code=f"too_many_{_word(table)}s",
        )


def hold_name(session: Session, table: type[Pipeline | Schedule], tenant_id: str, name: str) -> None:
    """Lock the tenant's names until the transaction ends. Raise ConflictError if this one is taken."""
    advisory_lock(session, f"{_word(table)}s {tenant_id}")
    if session.scalar(select(table.id).where(of_tenant(table, tenant_id), table.name == name)) is not None:
        raise ConflictError(f"A {_word(table)} named {name!r} exists already; change that one, or choose another name.")


def _not_found(table: type[Pipeline | Schedule], id_or_name: str) -> NotFoundError:
    word = _word(table)
    return NotFoundError(f"No {word} found with id or name {id_or_name[:100]!r}.", param=f"{word}_id")


def _word(table: type[Pipeline | Schedule]) -> str:
    return table.__tablename__
