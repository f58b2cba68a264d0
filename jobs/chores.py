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


# What is not due is only looked at: a row that is locked and left as it is would be a transaction to write down.
_CLAIM = text("""
    INSERT INTO chore (name, due_at)
    SELECT :name, clock_timestamp() + CAST(:hold AS interval)
    WHERE NOT EXISTS (SELECT FROM chore WHERE name = :name AND due_at > clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE chore.due_at <= clock_timestamp()
    RETURNING name
""")

_FINISH = text("UPDATE chore SET due_at = clock_timestamp() + CAST(:again AS interval) WHERE name = :name")
