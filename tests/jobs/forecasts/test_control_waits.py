"""Tests of what an owner sees of a batch that waits for a control worker."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from jobs.forecasts.outlooks import outlooks
from jobs.states import ChunkState
from jobs.tables import Batch

Make = Callable[..., Any]


def ago(seconds: float) -> datetime:
    return datetime.now(UTC) - timedelta(seconds=seconds)


def told(session: Session, batch: Batch) -> str | None:
    session.flush()
    return outlooks(session, [batch])[batch.id].waits_for


def test_a_new_batch_that_nobody_takes_up_waits_for_a_control_worker(session: Session, make_batch: Make) -> None:
    sentence = told(session, make_batch(created_at=ago(60)))
    assert sentence is not None
    assert sentence.startswith("Waits for a control worker to check its input")
    assert told(session, make_batch()) is None, "it came just now"
    assert told(session, make_batch(created_at=ago(60), claimed_by="c", claimed_until=ago(-60))) is None, (
        "a worker is at it"
    )
    assert told(session, make_batch(created_at=ago(60), claimed_by="c", claimed_until=ago(1))) == sentence, (
        "that worker is gone"
    )


def test_a_batch_that_has_ended_waits_for_a_control_worker_to_write_its_files(
    session: Session, make_batch: Make, make_chunk: Make
) -> None:
    old = {"state": "finalizing", "outcome": "completed", "created_at": ago(90)}
    sentence = told(session, make_batch(finalizing_at=ago(60), **old))
    assert sentence is not None
    assert "to write its files" in sentence
    assert told(session, make_batch(finalizing_at=ago(1), **old)) is None
    ending = make_batch(state="cancelling", created_at=ago(90), cancelling_at=ago(60))
    make_chunk(ending, state=ChunkState.LEASED)
    assert told(session, ending) is None, "workers still have lines of it"


def test_a_follower_waits_for_a_control_worker_from_the_end_of_the_earlier_one_on(
    session: Session, make_batch: Make
) -> None:
    earlier = make_batch(state="completed", created_at=ago(90), completed_at=ago(1))
    follower = make_batch(created_at=ago(60), after_batch_id=earlier.id)
    assert told(session, follower) is None
    earlier.completed_at = ago(30)
    assert "a control worker" in (told(session, follower) or "")
