"""The dispatcher on a real database: what it hints, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import due, lifecycle
from jobs.batches.due import Due
from jobs.batches.lost_leases import Reaped
from jobs.chunks import fleet, leasing
from jobs.chunks.recording import LineResult
from jobs.database import autocommit, try_advisory_lock
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from workers.dispatcher import Dispatcher, Plan

MakeLines = Callable[[int], list[dict[str, Any]]]


class RecordedHints:
    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def validate(self, batch_id: str) -> bool:
        self.sent.append(("validate", batch_id))
        return True

    def finalise(self, batch_id: str) -> bool:
        self.sent.append(("finalise", batch_id))
        return True

    def run_chunk(self, chunk_id: int, *, model: str) -> bool:
        self.sent.append((model, chunk_id))
        return True


@pytest.fixture
def hints() -> RecordedHints:
    return RecordedHints()


@pytest.fixture
def look(maker: sessionmaker[Session], settings: Settings) -> Callable[[], Due]:
    def look() -> Due:
        with autocommit(maker) as session:
            return due.look(session, again_seconds=settings.hint_again_seconds)

    return look


@pytest.fixture
def dispatcher(
    maker: sessionmaker[Session], storage: Storage, hints: RecordedHints, settings: Settings, look: Callable[[], Due]
) -> Dispatcher:
    """A dispatcher of which no tick does anything that a look would not have found before."""

    class Watched(Dispatcher):
        def tick(self) -> Plan:
            found, before = look(), _states(maker)
            plan = super().tick()
            has_acted = plan.validate or plan.finalise or plan.run or _states(maker) != before
            assert found.is_any or not has_acted, "it would not have ticked by itself"
            return plan

    return Watched(maker, storage, hints=hints, settings=settings)


def _states(maker: sessionmaker[Session]) -> list[Any]:
    with maker() as session:
        states = text("SELECT id, state FROM batch UNION ALL SELECT CAST(id AS text), state FROM chunk ORDER BY 1")
        return list(session.execute(states))


@pytest.fixture
def worker(maker: sessionmaker[Session]) -> str:
    """A live worker of the demo model with two slots."""
    with maker.begin() as session:
        fleet.register(session, worker_id="worker_1", model="demo", max_chunks=2, max_model_len=512)
    return "worker_1"


@pytest.fixture
def lines(line: Callable[..., dict[str, Any]]) -> MakeLines:
    return lambda count: [line(number) for number in range(count)]


def test_a_new_batch_is_hinted_for_validation_once(
    dispatcher: Dispatcher, hints: RecordedHints, submit: Callable[..., str], lines: MakeLines
) -> None:
    batch_id = submit(lines(1))
    dispatcher.tick()
    dispatcher.tick()
    assert hints.sent == [("validate", batch_id)]


def _claim(maker: sessionmaker[Session], worker: str, settings: Settings) -> leasing.ClaimedChunk:
    with maker.begin() as session:
        claim = leasing.claim_next(session, model="demo", worker_id=worker, lease=settings.lease)
        assert claim is not None
        return claim


def test_with_nothing_open_nothing_is_due(
    submit: Callable[..., str], lines: MakeLines, maker: sessionmaker[Session], look: Callable[[], Due]
) -> None:
    assert look() == Due()
    submit(lines(1))
    assert look() == Due(is_any_open=True, is_any=True)
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET state = 'failed', failed_at = now()"))
    assert look() == Due()


def test_while_workers_have_enough_a_dispatcher_asks_one_long_question_at_a_time(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    worker: str,
    maker: sessionmaker[Session],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for others in ("_COUNT_LOOK_SECONDS", "_COUNT_SECONDS", "_SCHEDULES_SECONDS"):
        monkeypatch.setattr(f"workers.dispatcher.{others}", 1000.0)
    monkeypatch.setattr("workers.dispatcher._TRUE_UP_SECONDS", 1000.0)
    batch_id = submit_valid(lines(12))
    for _ in range(2):
        _claim(maker, worker, settings)
    stop, looked, sent = threading.Event(), threading.Semaphore(0), list[str]()

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT EXISTS (SELECT FROM batch"):  # before the look itself
            return
        sent.append(statement)
        if "has_lost_leases" in statement:
            looked.release()

    event.listen(maker.kw["bind"], "before_cursor_execute", note)
    thread = threading.Thread(target=Dispatcher.run, args=(dispatcher, stop), daemon=True)
    thread.start()
    for _ in range(4):
        assert looked.acquire(timeout=60), "the first look ticks, whatever it finds"
    sent.clear()
    for _ in range(4):
        assert looked.acquire(timeout=60)
    assert all("has_lost_leases" in statement for statement in sent), sent
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() - interval '1 second' WHERE state = 'leased'"))
    for _ in range(4):
        assert looked.acquire(timeout=60)
    stop.set()
    thread.join(60)
    assert len(hints.sent) == 2, "for the slots of the leases that were lost"
    with maker() as session:
        assert set(session.scalars(text("SELECT state FROM chunk"))) == {"ready"}, batch_id


def _answer(maker: sessionmaker[Session], worker: str, settings: Settings) -> None:
    claim = _claim(maker, worker, settings)
    with maker.begin() as session:
        results = [LineResult(line_no=number, line=b"{}", status_code=200) for number in range(claim.num_lines)]
        leasing.flush(session, claim, results, flush_no=0, lease=settings.lease, is_last=True)


def test_an_answered_batch_is_due_until_it_is_hinted(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    worker: str,
    maker: sessionmaker[Session],
    settings: Settings,
    look: Callable[[], Due],
) -> None:
    batch_id = submit_valid(lines(2))
    _answer(maker, worker, settings)
    assert look().is_any
    dispatcher.tick()
    assert hints.sent == [("finalise", batch_id)]
    assert look() == Due(is_any_open=True)


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (
            "WITH b AS (UPDATE batch SET waits_for_tokens = 1, waits_for_picos = 0) "
            "UPDATE chunk SET state = 'waiting', waits_for_tokens = 1, waits_for_picos = 0",
            "ready",
        ),
        ("UPDATE batch SET state = 'cancelling', cancelling_at = now()", "withdrawn"),
    ],
    ids=["waiting with room", "cancelled with ready chunks"],
)
def test_chunks_of_a_batch_that_a_tick_would_move_are_due(
    dispatcher: Dispatcher,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    look: Callable[[], Due],
    change: str,
    after: str,
) -> None:
    submit_valid(lines(1))
    assert look() == Due(is_any_open=True), "no worker lives"
    with maker.begin() as session:
        session.execute(text(change))
    assert look().is_any
    dispatcher.tick()
    with maker() as session:
        assert session.scalars(text("SELECT state FROM chunk")).all() == [after]
    assert look() == Due(is_any_open=True)


def test_a_batch_whose_earlier_one_has_failed_is_due(
    dispatcher: Dispatcher,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    read_batch: Callable[[str], Batch],
    look: Callable[[], Due],
) -> None:
    earlier = submit(lines(1))
    follower = submit(lines(1), after=earlier)
    dispatcher.tick()
    assert look() == Due(is_any_open=True), "it waits"
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET state = 'failed', failed_at = now() WHERE id = :id"), {"id": earlier})
    assert look().is_any
    dispatcher.tick()
    assert read_batch(follower).state == "failed"
    assert look() == Due()


def test_an_idle_dispatcher_looks_on_one_connection_and_sees_a_new_batch(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for others in ("_COUNT_LOOK_SECONDS", "_COUNT_SECONDS", "_SCHEDULES_SECONDS"):
        monkeypatch.setattr(f"workers.dispatcher.{others}", 1000.0)
    stop, looked = threading.Event(), threading.Semaphore(0)
    engine = maker.kw["bind"]
    num_taken = 0

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT EXISTS (SELECT FROM batch"):
            looked.release()

    def count(*_: object) -> None:
        nonlocal num_taken
        num_taken += 1

    event.listen(engine, "before_cursor_execute", note)
    thread = threading.Thread(target=dispatcher.run, args=(stop,), daemon=True)
    thread.start()
    assert looked.acquire(timeout=60), "the first tick"
    event.listen(engine, "checkout", count)
    for _ in range(8):
        assert looked.acquire(timeout=60)
    assert num_taken <= 1, "the one that is kept"
    event.remove(engine, "checkout", count)
    batch_id = submit(lines(1))
    for _ in range(3):
        assert looked.acquire(timeout=60)
    stop.set()
    thread.join(60)
    assert hints.sent == [("validate", batch_id)]


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
    claim = _claim(maker, worker, settings)
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
    claim = _claim(maker, "w1", settings)
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
    claim = _claim(maker, worker, settings)
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
