"""The executor of indexes, as tests drive it that kill its workers.

They know nothing else of it: with another executor this file changes, and those tests do not.
"""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from flows.due import find_due
from jobs.storage import Storage
from tests.all_settings import Settings
from tests.flows.advancers import indexes_of

SNAPSHOTS = "SELECT documents_key FROM passage_index WHERE documents_key IS NOT NULL"
"""Query of the objects with the documents that an index had when it began."""


def advance_due(
    maker: sessionmaker[Session], storage: Storage, settings: Settings, *, unwatched: sessionmaker[Session]
) -> None:
    """Advance all indexes that are due as far as possible, as one control worker does.

    `maker` and `storage` may watch its effects; its polls and renewals of claims use `unwatched`.
    """
    with unwatched() as session:
        due = find_due(session, ["index"])
    indexes = indexes_of(maker, storage, settings, hold_sessions=unwatched)
    for one in due:
        indexes.advance(one.id)


def let_time_pass(session: Session) -> None:
    """Let the claims of dead control workers end, and the pauses after failed tries; committed by the caller."""
    ends = "look_at = NULL, claimed_until = LEAST(claimed_until, clock_timestamp())"
    session.execute(text(f"UPDATE flow SET {ends} WHERE ended_at IS NULL"))


def take_claims(session: Session) -> None:
    """Let all claims end as if the holders had renewed none, though they are alive; committed by the caller."""
    session.execute(text("UPDATE flow SET claimed_by = NULL, claimed_until = NULL"))


def forget_tries(session: Session) -> None:
    """Let the next failed try count as the first one of its step; committed by the caller."""
    session.execute(text("UPDATE flow SET num_tries = 0"))
