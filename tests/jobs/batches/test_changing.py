"""Tests of changing a batch while others claim, hint, start and lose its chunks: nobody waits for another's chunk."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches.changing import change_batch
from jobs.chunks import leasing, queue_marks, ready_queues
from jobs.settings import Settings
from jobs.states import AskedPriority, ChunkState
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, Tenant
from tests.jobs.batches.control import validate
from tests.jobs.chunks.builders import Run, chunk_ids, claim_first, lose

BULK = AskedPriority.BULK
LOCK_BATCH = "SELECT FROM batch FOR UPDATE"
LOCK_CHUNKS = "SELECT FROM chunk WHERE state <> 'ready' OR id = (SELECT min(id) FROM chunk) FOR UPDATE"


def classes(session: Session, batch: Batch) -> list[str]:
    session.rollback()
    query = select(Chunk.priority).where(Chunk.batch_id == batch.id, Chunk.state != ChunkState.SPLIT)
    return list(session.scalars(query.order_by(Chunk.id)))


def change(session: Session, tenant: Tenant, batch: Batch, priority: AskedPriority = BULK) -> None:
    session.rollback()
    session.execute(text("SET LOCAL lock_timeout = '5s'"))
    change_batch(session, tenant, batch.id, priority=priority, completion_window=batch.completion_window)
    session.commit()


def test_what_changes_nothing_waits_for_nobody(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, run: Run
) -> None:
    batch = run(8)
    with maker.begin() as other:
        other.execute(text(LOCK_BATCH))
        other.execute(text(LOCK_CHUNKS))
        change(session, tenant, batch, AskedPriority.NORMAL)
    assert classes(session, batch) == ["normal", "normal"]


def test_chunks_that_others_hold_are_passed_over(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, run: Run
) -> None:
    """The owner of a chunk may need its batch next, which the change has locked."""
    batch = run(8)
    with maker.begin() as other:
        other.execute(text(LOCK_CHUNKS))
        change(session, tenant, batch)
    assert classes(session, batch) == ["normal", "bulk"]


def test_planned_chunks_are_left_to_whoever_starts_the_batch(
    session: Session,
    maker: sessionmaker[Session],
    tenant: Tenant,
    submit: Run,
    make_chunk: Callable[..., Chunk],
    request_line: Callable[..., str],
    storage: Storage,
    settings: Settings,
) -> None:
    batch = submit([request_line("a")])
    make_chunk(batch, state=ChunkState.PLANNED)  # a block that its validation has written
    with maker.begin() as other:
        other.execute(text(LOCK_CHUNKS))
        change(session, tenant, batch)
    assert classes(session, batch) == ["normal"]
    validate(session, storage, batch.id, settings=settings)
    assert classes(session, batch) == ["bulk", "bulk"]
    assert session.scalars(select(Chunk.expires_at == batch.expires_at)).all() == [True, True]


def test_a_chunk_that_is_being_hinted_follows_its_batch_later(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, run: Run
) -> None:
    batch = run(8)
    with maker.begin() as dispatcher:
        assert len(ready_queues.pick_ready(dispatcher, model="m", limit=1, again_seconds=10)) == 1
        change(session, tenant, batch)
    assert classes(session, batch) == ["normal", "bulk"]
    queue_marks.follow_batches(maker)
    assert classes(session, batch) == ["bulk", "bulk"]


def test_the_parts_of_a_lost_chunk_are_of_the_class_that_its_batch_has_by_then(
    session: Session, tenant: Tenant, run: Run, storage: Storage
) -> None:
    batch = run(4)
    session.execute(text("UPDATE chunk SET losses = 1"))
    session.commit()
    claim = claim_first(session, batch)
    change(session, tenant, batch)
    assert classes(session, batch) == ["normal"], "it counts where it runs"
    lose(session, storage, claim)
    assert len(chunk_ids(session, batch)) == 3
    assert classes(session, batch) == ["bulk", "bulk"]


def test_a_chunk_given_back_is_of_the_class_that_its_batch_has_by_then(
    session: Session, tenant: Tenant, run: Run
) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    change(session, tenant, batch)
    leasing.release(session, claim)
    session.commit()
    assert classes(session, batch) == ["bulk"]
