"""Tests of the dispatcher's hints on a real database, and of their times."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import lifecycle
from jobs.batches.lost_leases import Reaped
from jobs.chunks import leasing
from jobs.database import try_advisory_lock
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.workers.dispatcher.builders import MakeLines, RecordedHints, claim_one
from workers.dispatcher import Dispatcher, Plan
from workers.turns.control_wakes import MOST_AT_ONCE


def test_a_new_batch_is_hinted_for_validation_once(
    dispatcher: Dispatcher, hints: RecordedHints, submit: Callable[..., str], lines: MakeLines
) -> None:
    batch_id = submit(lines(1))
    dispatcher.tick()
    dispatcher.tick()
    assert hints.sent == [("validate", batch_id)]


def test_many_new_batches_are_all_picked_and_few_are_hinted(
    dispatcher: Dispatcher, hints: RecordedHints, submit: Callable[..., str], lines: MakeLines
) -> None:
    batch_ids = {submit(lines(1)) for _ in range(MOST_AT_ONCE + 2)}
    assert set(dispatcher.tick().validate) == batch_ids
    assert len(hints.sent) == MOST_AT_ONCE


def test_a_hint_without_an_answer_is_sent_again(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
) -> None:
    batch_id = submit(lines(1))
    dispatcher.tick()
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET hinted_at = now() - interval '1 minute'"))
    dispatcher.tick()
    assert hints.sent == [("validate", batch_id)] * 2


def test_no_more_chunks_are_hinted_than_the_workers_can_use(
    dispatcher: Dispatcher, hints: RecordedHints, submit_valid: Callable[..., str], lines: MakeLines, worker: str
) -> None:
    submit_valid(lines(40))  # ten chunks
    dispatcher.tick()
    dispatcher.tick()
    assert len(hints.sent) == 2, "as many as there are free slots"
    assert {model for model, _ in hints.sent} == {"demo"}


def test_without_a_live_worker_nothing_is_hinted(
    dispatcher: Dispatcher, hints: RecordedHints, submit_valid: Callable[..., str], lines: MakeLines
) -> None:
    submit_valid(lines(4))
    assert dispatcher.tick() == Plan(validate=[], finalise=[], run=[])
    assert hints.sent == []


def test_only_the_leader_ticks(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
) -> None:
    submit(lines(1))
    with maker.begin() as other:
        assert try_advisory_lock(other, "dispatcher")
        dispatcher.tick()
        assert hints.sent == []
    dispatcher.tick()
    assert len(hints.sent) == 1


def test_an_expired_lease_returns_the_chunk_to_the_queue(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    worker: str,
    maker: sessionmaker[Session],
    settings: Settings,
) -> None:
    submit_valid(lines(4))
    claim = claim_one(maker, worker, settings)
    dispatcher.tick()
    assert hints.sent == []
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() - interval '1 second'"))
    dispatcher.tick()
    assert hints.sent == [("demo", claim.chunk_id)]


def test_a_lease_that_the_database_kept_from_being_extended_is_no_loss(
    dispatcher: Dispatcher,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    settings: Settings,
) -> None:
    submit_valid(lines(1))
    dispatcher.tick()
    claim = claim_one(maker, "w1", settings)
    with maker.begin() as session:
        leasing.start(session, claim)
        session.execute(
            text("""
                UPDATE chunk SET lease_until = clock_timestamp() - interval '1 second';
                UPDATE uptime SET seen_at = clock_timestamp() - interval '1 minute'
            """)
        )
    short = settings.model_copy(update={"lease_seconds": 0.001})  # the servers of tests are younger than a lease
    later = Dispatcher(maker, Storage("memory://"), hints=RecordedHints(), settings=short)
    assert later.tick().lost == (Reaped.READY,)
    with maker() as session:
        assert session.execute(text("SELECT state, losses FROM chunk")).all() == [("ready", 0)]


def test_a_batch_past_its_window_is_hinted_to_be_written_out(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    read_batch: Callable[[str], Batch],
) -> None:
    batch_id = submit_valid(lines(4))
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET expires_at = now() - interval '1 second'"))
    dispatcher.tick()
    assert hints.sent == [("finalise", batch_id)]
    assert (read_batch(batch_id).state, read_batch(batch_id).outcome) == ("finalizing", "expired")


def test_a_cancelled_batch_waits_for_its_open_chunks(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    worker: str,
    maker: sessionmaker[Session],
    settings: Settings,
    tenant: Tenant,
) -> None:
    batch_id = submit_valid(lines(8))
    claim = claim_one(maker, worker, settings)
    with maker.begin() as session:
        lifecycle.cancel_batch(session, tenant.id, batch_id)
    dispatcher.tick()
    assert hints.sent == []
    with maker.begin() as session:
        leasing.release(session, claim)
    dispatcher.tick()
    assert hints.sent == [("finalise", batch_id)]


def test_a_dead_database_costs_a_warning_a_tick_and_nothing_else(
    storage: Storage, hints: RecordedHints, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    from jobs.database import connect, sessions

    stop = threading.Event()
    maker = sessions(connect("postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"))
    dispatcher = Dispatcher(
        maker, storage, hints=hints, settings=settings.model_copy(update={"dispatch_seconds": 0.01})
    )
    thread = threading.Thread(target=dispatcher.run, args=(stop,), daemon=True)
    thread.start()
    while sum("database unreachable" in record.message for record in caplog.records) < 2:
        assert thread.is_alive()
        stop.wait(0.01)
    stop.set()
    thread.join()


@pytest.mark.usefixtures("no_other_questions")
def test_while_no_batch_is_open_it_looks_half_as_often(
    maker: sessionmaker[Session],
    storage: Storage,
    hints: RecordedHints,
    settings: Settings,
    submit_valid: Callable[..., str],
    lines: MakeLines,
) -> None:
    class Stop(threading.Event):
        """Records the timeouts of waits, and is set after a few."""

        def __init__(self) -> None:
            super().__init__()
            self.waits: list[float] = []

        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None or threading.current_thread() is not threading.main_thread():
                return super().wait(timeout)  # of another thread
            self.waits.append(timeout)
            if len(self.waits) == 2:
                submit_valid(lines(1))
            if len(self.waits) == 4:
                self.set()
            return self.is_set()

    stop = Stop()
    Dispatcher(maker, storage, hints=hints, settings=settings.model_copy(update={"dispatch_seconds": 0.01})).run(stop)
    assert stop.waits == [0.02, 0.02, 0.01, 0.01]
