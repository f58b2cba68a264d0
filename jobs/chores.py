"""Chores: periodic work done by one process for all; a row holds when it is due."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session


def claim(session: Session, name: str, *, hold: timedelta) -> bool:
    """Claim a due chore; False where it is not due, or another process has it.

    Call `finish` afterwards. Another process may start after `hold`, even while this one is still at work.
    """
    return session.execute(_CLAIM, {"name": name, "hold": hold}).first() is not None


def finish(session: Session, name: str, *, again: timedelta) -> None:
    """Record that a chore is done, and due again after `again`."""
    session.execute(_FINISH, {"name": name, "again": again})


# A chore that is not due is only read: locking a row without a change would still write a transaction.
_CLAIM = text("""
    INSERT INTO chore (name, due_at)
    SELECT :name, clock_timestamp() + CAST(:hold AS interval)
    WHERE NOT EXISTS (SELECT FROM chore WHERE name = :name AND due_at > clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET due_at = excluded.due_at WHERE chore.due_at <= clock_timestamp()
    RETURNING name
""")

_FINISH = text("UPDATE chore SET due_at = clock_timestamp() + CAST(:again AS interval) WHERE name = :name")
