"""Tests of the database's uptime: leases that it did not allow to be extended do not count against their lines."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import uptime
from jobs.batches.lost_leases import Reaped
from jobs.chunks import leasing
from jobs.storage import Storage
from tests.jobs.chunks.builders import Run, claim_first, end_lease, reap

PAUSE = timedelta(seconds=10)


def note(session: Session) -> None:
    uptime.note(session, pause=PAUSE)
    session.commit()


def be_away(session: Session, *, seconds: int) -> None:
    """Simulate a database that answered nothing for `seconds`, such as the promotion of its standby."""
    session.execute(text("UPDATE uptime SET seen_at = seen_at - make_interval(secs => :seconds)"), {"seconds": seconds})
    session.commit()


def num_losses(session: Session, storage: Storage, run: Run, *, seconds_away: int) -> int:
    batch = run(4)
    note(session)
    claim = claim_first(session, batch)
    leasing.start(session, claim)
    end_lease(session, claim)
    be_away(session, seconds=seconds_away)
    note(session)
    assert reap(session, storage) == [Reaped.READY]
    return claim_first(session, batch).lost_leases


def test_a_lease_that_ended_while_the_database_was_away_is_no_loss(
    session: Session, storage: Storage, run: Run
) -> None:
    assert num_losses(session, storage, run, seconds_away=11) == 0


def test_a_lease_that_ended_while_it_answered_is_one(session: Session, storage: Storage, run: Run) -> None:
    assert num_losses(session, storage, run, seconds_away=9) == 1


def test_what_is_noted_again_and_again_began_at_the_first_of_it(session: Session) -> None:
    since = text("SELECT since FROM uptime")
    note(session)
    be_away(session, seconds=60)
    note(session)
    began = session.scalar(since)
    for _ in range(3):
        be_away(session, seconds=8)
        note(session)
    assert session.scalar(since) == began
