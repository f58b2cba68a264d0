"""Work that comes round again and that one process does for all: a row says when it is due. Knows none of the work."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session


def claim(session: Session, name: str, *, hold: timedelta) -> bool:
    """Take a chore that is due; False where it is not, or another has it.

    Whoever takes it calls `finish`, or another may begin after `hold`: at once, where that takes longer.
    """
    return session.execute(_CLAIM, {"name": name, "hold": hold}).first() is not None


def finish(session: Session, name: str, *, again: timedelta) -> None:
    """Note that a chore is done, and due again after `again`."""
    session.execute(_FINISH, {"name": name, "again": again})


_CLAIM = text("""
    INSERT INTO chore (name, due_at) VALUES (:name, clock_timestamp() + CAST(:hold AS interval))
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE chore.due_at <= clock_timestamp()
    RETURNING name
""")

_FINISH = text("UPDATE chore SET due_at = clock_timestamp() + CAST(:again AS interval) WHERE name = :name")
