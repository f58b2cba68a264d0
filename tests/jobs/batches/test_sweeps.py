from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import event, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import tenants
from jobs.batches import lifecycle, sweeps
from jobs.states import BatchState, ChunkState, Priority
from jobs.tables import Batch, Chunk, Tenant

Make = Callable[..., Any]


def age(session: Session, batch: Batch, *, seconds: int) -> None:
    earlier = Batch.created_at - timedelta(seconds=seconds)
    session.execute(update(Batch).where(Batch.id == batch.id).values(created_at=earlier))
    session.commit()


def test_a_batch_past_its_window_heads_for_expired(session: Session, make_batch: Make) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    overdue = {make_batch(state=state, expires_at=past).id for state in ("validating", "in_progress")}
    make_batch(state="in_progress")
    make_batch(state="completed", expires_at=past)
    assert set(sweeps.expire_overdue(session)) == overdue
    assert sweeps.expire_overdue(session) == []
    for batch_id in overdue:
        batch = session.get_one(Batch, batch_id)
        assert (batch.state, batch.outcome) == (BatchState.FINALIZING, BatchState.EXPIRED)


def test_expiry_withdraws_waiting_chunks(session: Session, make_batch: Make, make_chunk: Make) -> None:
    batch = make_batch(state="in_progress", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    chunk = make_chunk(batch)
    sweeps.expire_overdue(session)
    session.refresh(chunk)
    assert chunk.state == ChunkState.WITHDRAWN


def test_a_batch_with_every_answer_and_no_open_chunk_is_finished(
    session: Session, make_batch: Make, make_chunk: Make
) -> None:
    done = make_batch(state="in_progress", num_requests=3, num_completed=2, num_failed=1)
    make_chunk(done, state=ChunkState.DONE)
    unanswered = make_batch(state="in_progress", num_requests=3, num_completed=2)
    make_chunk(unanswered, state=ChunkState.DONE)
    still_open = make_batch(state="in_progress", num_requests=1, num_completed=1)
    make_chunk(still_open, state=ChunkState.LEASED)
    assert sweeps.finish_ready(session) == [done.id]
    assert (done.state, done.outcome) == (BatchState.FINALIZING, BatchState.COMPLETED)
    assert {unanswered.state, still_open.state} == {BatchState.IN_PROGRESS}


def test_a_batch_is_hinted_for_validation_once_in_a_while(session: Session, make_batch: Make) -> None:
    batch = make_batch()
    make_batch(state="in_progress")
    assert sweeps.pick_for_validation(session, again_seconds=10) == [batch.id]
    session.commit()
    assert sweeps.pick_for_validation(session, again_seconds=10) == []
    session.execute(update(Batch).values(hinted_at=text("now() - interval '11 s'")))
    assert sweeps.pick_for_validation(session, again_seconds=10) == [batch.id]


def test_files_are_due_when_no_worker_holds_a_chunk(session: Session, make_batch: Make, make_chunk: Make) -> None:
    finalizing = make_batch(state="finalizing", outcome="completed")
    cancelling = make_batch(state="cancelling")
    chunk = make_chunk(cancelling, state=ChunkState.LEASED)
    assert sweeps.pick_for_finalizing(session, again_seconds=10) == [finalizing.id]
    session.execute(update(Chunk).where(Chunk.id == chunk.id).values(state=ChunkState.WITHDRAWN))
    assert sweeps.pick_for_finalizing(session, again_seconds=10) == [cancelling.id]
    assert sweeps.pick_for_finalizing(session, again_seconds=10) == []


def test_a_chunk_that_comes_back_after_the_cancel_is_withdrawn(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, make_batch: Make, make_chunk: Make
) -> None:
    """A claim in progress holds its chunk while the batch is cancelled; the cancel skips it, the sweep does not."""
    batch = make_batch(state="in_progress", num_requests=1)
    chunk = make_chunk(batch)
    with maker.begin() as claiming:
        claiming.execute(select(Chunk).where(Chunk.id == chunk.id).with_for_update())
        lifecycle.cancel_batch(session, tenant.id, batch.id)
        session.commit()
        assert sweeps.pick_for_finalizing(session, again_seconds=10) == []
        session.commit()
    assert sweeps.pick_for_finalizing(session, again_seconds=10) == [batch.id]
    session.refresh(chunk)
    assert chunk.state == ChunkState.WITHDRAWN


def test_due_are_batches_to_validate_and_those_whose_files_can_be_written(
    session: Session, make_batch: Make, make_chunk: Make
) -> None:
    new = make_batch(priority="urgent")
    age(session, new, seconds=60)
    ended = make_batch(state="finalizing", outcome="completed", finalizing_at=datetime.now(UTC) - timedelta(seconds=9))
    for state in ("in_progress", "completed", "failed"):
        make_batch(state=state)
    make_chunk(make_batch(state="cancelling"), state=ChunkState.LEASED)
    due = {batch.batch_id: batch for batch in sweeps.due_batches(session)}
    assert set(due) == {new.id, ended.id}
    assert (due[new.id].priority, due[new.id].state) == (Priority.URGENT, BatchState.VALIDATING)
    assert timedelta(seconds=60) <= due[new.id].waited
    assert timedelta(seconds=9) <= due[ended.id].waited < timedelta(seconds=60)
    left = [(new.id, BatchState.VALIDATING), (ended.id, BatchState.VALIDATING)]
    assert [batch.batch_id for batch in sweeps.due_batches(session, but_for=left)] == [ended.id]


def test_of_each_tenant_and_class_the_oldest_few_are_read(session: Session, make_batch: Make) -> None:
    crowd = [make_batch() for _ in range(9)]
    for seconds, batch in enumerate(crowd):
        age(session, batch, seconds=seconds)
    urgent = make_batch(priority="urgent")
    other = tenants.create_tenant(session, "other")
    session.commit()
    theirs = make_batch(tenant_id=other.id)
    due = {batch.batch_id for batch in sweeps.due_batches(session)}
    assert due == {batch.id for batch in (*crowd[-4:], urgent, theirs)}


def test_a_sweep_passes_over_a_batch_that_is_busy(
    session: Session, maker: sessionmaker[Session], make_batch: Make
) -> None:
    busy, free = make_batch(), make_batch()
    with maker.begin() as other:
        lifecycle.lock_batch(other, busy.id)
        assert sweeps.pick_for_validation(session, again_seconds=10) == [free.id]


def test_a_look_that_finds_no_batch_writes_nothing(session: Session) -> None:
    """The dispatcher polls four times a second."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    connection = session.connection()
    event.listen(connection, "before_cursor_execute", note)
    assert sweeps.pick_for_validation(session, again_seconds=10) == []
    assert sweeps.pick_for_finalizing(session, again_seconds=10) == []
    event.remove(connection, "before_cursor_execute", note)
    assert {statement.split()[0] for statement in statements} == {"SELECT"}
