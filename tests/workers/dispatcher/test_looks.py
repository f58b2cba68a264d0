"""Tests of when a dispatcher has something to do: the single query before a tick."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches.due import Due
from jobs.chunks import leasing
from jobs.chunks.recording import LineResult
from jobs.settings import Settings
from jobs.tables import Batch
from tests.workers.dispatcher.builders import MakeLines, RecordedHints, claim_one
from workers.dispatcher import Dispatcher


def test_with_nothing_open_nothing_is_due(
    submit: Callable[..., str], lines: MakeLines, maker: sessionmaker[Session], look: Callable[[], Due]
) -> None:
    assert look() == Due()
    submit(lines(1))
    assert look() == Due(is_any_open=True, is_any=True)
    with maker.begin() as session:
        session.execute(text("UPDATE batch SET state = 'failed', failed_at = now()"))
    assert look() == Due()


@pytest.mark.usefixtures("no_other_questions")
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
    monkeypatch.setattr("workers.dispatcher._TRUE_UP_SECONDS", 1000.0)
    batch_id = submit_valid(lines(12))
    for _ in range(2):
        claim_one(maker, worker, settings)
    stop, looked, sent = threading.Event(), threading.Semaphore(0), list[str]()

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if statement.startswith("SELECT EXISTS (SELECT FROM batch"):  # before the query itself
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
    claim = claim_one(maker, worker, settings)
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


@pytest.mark.usefixtures("no_other_questions")
def test_an_idle_dispatcher_looks_on_one_connection_and_sees_a_new_batch(
    dispatcher: Dispatcher,
    hints: RecordedHints,
    submit: Callable[..., str],
    lines: MakeLines,
    maker: sessionmaker[Session],
) -> None:
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
