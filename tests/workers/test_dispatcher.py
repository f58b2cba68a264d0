"""The dispatcher on a real database: what it hints, and when."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import metrics
from jobs.batches import lifecycle
from jobs.chunks import fleet, leasing
from jobs.database import try_advisory_lock
from jobs.ids import new_id
from jobs.settings import Settings
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from workers.app import RUN_CHUNK_TASK, make_app, model_queue
from workers.dispatcher import Dispatcher, Plan
from workers.hints import MOST_QUEUED, PAUSE_SECONDS, HintSender

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
def dispatcher(maker: sessionmaker[Session], storage: Storage, hints: RecordedHints, settings: Settings) -> Dispatcher:
    return Dispatcher(maker, storage, hints=hints, settings=settings)


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


def test_with_nothing_open_a_tick_is_one_question_and_a_new_batch_is_hinted_by_the_next(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
) -> None:
    submit(lines(1))
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET state = 'failed', failed_at = now()"))
    sent: list[str] = []
    engine = maker.kw["bind"]
    event.listen(engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    dispatcher.tick()
    dispatcher.reap_suspects()
    assert len(sent) == 1, sent
    dispatcher.tick()
    started = submit(lines(1))
    dispatcher.tick()
    assert hints.sent == [("validate", started)]


def test_an_idle_dispatcher_looks_on_one_connection_and_sees_a_new_batch(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.dispatcher._COUNT_LOOK_SECONDS", 1000.0)
    stop, looked = threading.Event(), threading.Semaphore(0)
    engine = maker.kw["bind"]
    num_taken = 0

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if "EXISTS (SELECT FROM batch" in statement:
            looked.release()

    def count(*_: object) -> None:
        nonlocal num_taken
        num_taken += 1

    event.listen(engine, "before_cursor_execute", note)
    thread = threading.Thread(target=dispatcher.run, args=(stop,))
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
    with maker.begin() as session:
        claim = leasing.claim_next(session, model="demo", worker_id=worker, lease=settings.lease)
        assert claim is not None
    dispatcher.tick()
    assert hints.sent == []
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET lease_until = now() - interval '1 second'"))
    dispatcher.tick()
    assert hints.sent == [("demo", claim.chunk_id)]


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
    with maker.begin() as session:
        claim = leasing.claim_next(session, model="demo", worker_id=worker, lease=settings.lease)
        assert claim is not None
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
    thread = threading.Thread(target=dispatcher.run, args=(stop,))
    thread.start()
    while sum("database unreachable" in record.message for record in caplog.records) < 2:
        assert thread.is_alive()
    stop.set()
    thread.join()


# --- sending ---------------------------------------------------------------------------------------------------------


def test_a_hint_arrives_on_the_queue_of_its_model(valkey_url: str) -> None:
    app: Celery = make_app(valkey_url)
    assert HintSender(app).run_chunk(7, model="org/model")
    with app.connection_for_read() as connection, connection.SimpleQueue("model.org/model") as queue:
        message = queue.get(timeout=5)
        message.ack()
    assert message.headers["task"] == "tokenmill.run_chunk"
    assert message.payload[0] == [7]


@pytest.mark.parametrize("seconds_ahead", [-60.0, 60.0])
def test_a_hint_from_a_machine_with_another_clock_is_followed(
    valkey_url: str, seconds_ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sending: Celery = make_app(valkey_url)
    clock = sending.now
    monkeypatch.setattr(sending, "now", lambda: clock() + timedelta(seconds=seconds_ahead))
    model, arrived = new_id("model"), queue.SimpleQueue[int]()
    working: Celery = make_app(valkey_url, queue=model_queue(model))

    @working.task(name=RUN_CHUNK_TASK, shared=False)
    def follow(chunk_id: int) -> None:
        arrived.put(chunk_id)

    assert HintSender(sending).run_chunk(7, model=model)
    with start_worker(working, pool="solo", perform_ping_check=False):
        assert arrived.get(timeout=30) == 7


def test_a_broker_that_is_down_drops_hints_and_is_not_tried_at_once_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    sender = HintSender(make_app("redis://127.0.0.1:1/0"), monotonic=lambda: clock[0])
    tried: list[str] = []
    has_room = sender._has_room

    def noted(queue: str) -> bool:
        tried.append(queue)
        return has_room(queue)

    monkeypatch.setattr(sender, "_has_room", noted)
    assert not sender.validate("batch_1")
    assert not sender.validate("batch_2")
    assert len(tried) == 1, "no second try during the pause"
    clock[0] += PAUSE_SECONDS + 1
    assert not sender.validate("batch_3")
    assert len(tried) == 2


def test_hints_that_nobody_reads_do_not_pile_up(valkey_url: str) -> None:
    app: Celery = make_app(valkey_url)
    sender, model = HintSender(app), new_id("model")

    def send(count: int) -> int:
        return sum(sender.run_chunk(number, model=model) for number in range(count))

    with app.connection_for_read() as connection, connection.SimpleQueue(model_queue(model)) as unread:
        assert send(3 * MOST_QUEUED) == MOST_QUEUED
        assert unread.qsize() == MOST_QUEUED
        for _ in range(MOST_QUEUED):  # a worker has come
            unread.get(timeout=5).ack()
        assert send(5) == 5
        assert unread.qsize() == 5


def test_a_dispatcher_forecasts_batches_again_when_that_is_due(
    dispatcher: Dispatcher,
    submit_valid: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
) -> None:
    def forecasts() -> list[str]:
        with maker() as session:
            return list(session.scalars(text("SELECT batch_id FROM forecast")))

    first = submit_valid(lines(1))
    dispatcher.forecast()
    second = submit_valid(lines(1))
    dispatcher.forecast()
    assert forecasts() == [first], "not due yet"
    with maker.begin() as session:
        session.execute(text("UPDATE chore SET due_at = now()"))
    dispatcher.forecast()
    assert sorted(forecasts()) == sorted([first, second])


def test_one_dispatcher_counts_the_queue_for_all_and_for_whoever_asks(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
    storage: Storage,
    settings: Settings,
) -> None:
    other = Dispatcher(maker, storage, hints=hints, settings=settings)

    def shown() -> float:
        with maker() as session:
            samples = [found for found in metrics.read_samples(session) if isinstance(found, metrics.Sample)]
        return sum(sample.value for sample in samples if sample.name == "tokenmill_batches")

    submit(lines(1))
    dispatcher.count_queue()
    submit(lines(1))
    other.count_queue()
    assert shown() == 1, "counted once"
    with maker.begin() as session:
        session.execute(text("UPDATE chore SET due_at = now()"))
    other.count_queue()
    assert shown() == 2
