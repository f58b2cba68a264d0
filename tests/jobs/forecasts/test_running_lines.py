"""Tests of the number of a batch's lines in engines, as its owner sees it: only what workers report."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.chunks.fleet import RunningLines
from jobs.forecasts import snapshot
from jobs.forecasts.outlooks import outlooks
from jobs.states import BatchState
from jobs.tables import Batch
from tests.jobs.chunks.builders import chunk_ids, claim_one, flush

Run = Callable[..., Batch]


def report(session: Session, worker_id: str, **num_lines: int) -> None:
    """Let a worker of `m` report how many lines of each batch its engine computes."""
    fleet.register(session, worker_id=worker_id, model="m", max_chunks=6, max_model_len=64)
    running = {batch_id: RunningLines(num_lines=num) for batch_id, num in num_lines.items()}
    fleet.heartbeat(session, worker_id, running_lines=running)
    session.commit()


def running_lines(session: Session, batch: Batch) -> int | None:
    session.refresh(batch)
    return outlooks(session, [batch])[batch.id].running_lines


def test_lines_of_claimed_chunks_that_wait_before_an_engine_do_not_run(session: Session, run: Run) -> None:
    batch = run(12)
    for chunk_id in chunk_ids(session, batch):
        claim_one(session, chunk_id)
    report(session, "w1", **{batch.id: 3, "batch_other": 9})
    report(session, "w2", **{batch.id: 2})
    snapshot.take(session)
    session.commit()
    assert running_lines(session, batch) == 5


def test_a_batch_whose_lines_are_all_finished_runs_none_whatever_was_reported_before(
    session: Session, run: Run
) -> None:
    batch = run(8)
    report(session, "w1", **{batch.id: 8})
    snapshot.take(session)
    first, second = chunk_ids(session, batch)
    flush(session, claim_one(session, first), range(4))
    assert running_lines(session, batch) == 4
    flush(session, claim_one(session, second), range(4, 8))
    assert running_lines(session, batch) == 0


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (BatchState.VALIDATING, 0),
        (BatchState.IN_PROGRESS, 3),
        (BatchState.CANCELLING, 3),
        (BatchState.COMPLETED, 0),
        (BatchState.CANCELLED, 0),
        (BatchState.EXPIRED, 0),
        (BatchState.FAILED, 0),
    ],
)
def test_lines_run_while_a_batch_has_some_open_and_never_after_its_end(
    session: Session, run: Run, state: BatchState, expected: int
) -> None:
    batch = run(8)
    report(session, "w1", **{batch.id: 3})
    session.execute(text("UPDATE batch SET state = :state WHERE id = :id"), {"state": state.value, "id": batch.id})
    session.commit()
    assert running_lines(session, batch) == expected


def test_lines_of_workers_that_are_gone_do_not_run(session: Session, run: Run) -> None:
    batch = run(8)
    report(session, "w1", **{batch.id: 3})
    report(session, "w2", **{batch.id: 4})
    session.execute(text("UPDATE worker SET heartbeat_at = now() - interval '1 hour' WHERE id = 'w1'"))
    fleet.stop(session, "w2")
    session.commit()
    assert running_lines(session, batch) == 0


def test_an_end_without_an_interval_has_no_earliest_and_no_latest(session: Session, run: Run) -> None:
    batch = run(2)
    session.execute(text("INSERT INTO forecast (batch_id, position, seconds) VALUES (:id, 0, 600)"), {"id": batch.id})
    report(session, "w1")
    claim_one(session, chunk_ids(session, batch)[0])
    outlook = outlooks(session, [batch])[batch.id]
    assert outlook.ends_at is not None
    assert (outlook.earliest_at, outlook.latest_at) == (None, None)
