"""Tests of the next batch of a control worker, and of their concurrency; without a broker, as hints only wake it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import tenants
from jobs.batches.sweeps import DueBatch
from jobs.chunks.fair_order import AGE_OF_BULK, AGE_OF_NORMAL
from jobs.chunks.wanted import ANY, Wanted
from jobs.settings import Settings
from jobs.states import AskedPriority, BatchState, Priority
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from workers.app import FINALISE_TASK, VALIDATE_TASK, make_app
from workers.control import Control, register
from workers.turns.due_batches import FRESH_SECONDS, DueBatches, Turns

NEVER = 10_000.0
"""Poll interval in seconds: so long that every pick has another reason."""
URGENT, NORMAL, BULK = Priority.URGENT, Priority.NORMAL, Priority.BULK


def due(batch_id: str, tenant_id: str = "a", priority: Priority = NORMAL, *, waited: float = 0.0) -> DueBatch:
    return DueBatch(
        batch_id=batch_id,
        tenant_id=tenant_id,
        priority=priority,
        state=BatchState.VALIDATING,
        waited=timedelta(seconds=waited),
    )


def taken(*batches: DueBatch) -> list[str]:
    """Return the ids in the order in which they are taken up."""
    turns, order = Turns(), []
    turns.renew(batches)
    while (first := turns.take_next(ANY)) is not None:
        order.append(first.batch_id)
    return order


def first(turns: Turns, waiting: Sequence[DueBatch], wanted: Wanted) -> DueBatch | None:
    turns.renew(waiting)
    return turns.take_next(wanted)


def test_classes_come_first_then_age() -> None:
    batches = [due("old bulk", priority=BULK, waited=9), due("normal"), due("urgent", priority=URGENT)]
    assert taken(*batches, due("older bulk", priority=BULK, waited=10)) == [
        "urgent",
        "normal",
        "older bulk",
        "old bulk",
    ]


def test_inside_a_class_tenants_take_turns() -> None:
    crowd = [due(f"a{number}", waited=100 - number) for number in range(150)]
    assert taken(*crowd, due("b0", "b", waited=1), due("b1", "b"))[:5] == ["a0", "b0", "a1", "b1", "a2"]


def test_waiting_lifts_a_batch_into_a_better_class() -> None:
    aged = due("aged", priority=BULK, waited=AGE_OF_BULK.total_seconds())
    assert taken(due("normal", "b", waited=5), aged) == ["aged", "normal"]


def test_an_old_backlog_goes_before_others_once_and_then_takes_turns() -> None:
    aged = AGE_OF_NORMAL.total_seconds()
    backlog = [due(f"a{number}", waited=aged + 10 - number) for number in range(4)]
    assert taken(*backlog, due("b0", "b"), due("b1", "b")) == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_a_tenant_that_was_served_long_ago_ages_again() -> None:
    now = 0.0
    turns = Turns(monotonic=lambda: now)
    assert first(turns, [due("first", priority=BULK)], ANY) is not None
    now = AGE_OF_BULK.total_seconds()
    aged = due("aged", priority=BULK, waited=now)
    assert first(turns, [due("normal", "a"), aged, due("young", priority=BULK)], ANY) is aged


def test_only_the_allowed_classes_are_taken_up() -> None:
    assert first(Turns(), [due("bulk", priority=BULK)], Wanted(classes=[URGENT, NORMAL])) is None


def test_above_those_that_are_full_a_newcomer_is_taken_up_when_it_has_the_turn() -> None:
    full = Wanted(classes=[URGENT], newcomer_classes=[NORMAL], present={"a"})
    mine, other = due("mine", "a", waited=5), due("other", "b")
    turns = Turns()
    assert first(turns, [mine], full) is None
    assert first(turns, [mine], ANY) is mine
    assert first(turns, [mine, other], full) is other
    assert first(turns, [mine, due("again", "b")], full) is None, "now it was served last"


class HeldWork:
    """Replaces long validations: each waits until it may end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._may_end = threading.Event()
        self._changed = threading.Condition()

    def do(self, batch: DueBatch) -> bool:
        with self._changed:
            self.begun.append(batch.batch_id)
            self._changed.notify_all()
        assert self._may_end.wait(60)
        return False  # it moved no batch on

    def until_begun(self, number: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= number, timeout=60), self.begun
            return list(self.begun)

    def release(self) -> None:
        self._may_end.set()


@pytest.fixture
def held() -> HeldWork:
    return HeldWork()


Start = Callable[..., DueBatches]


@pytest.fixture
def start(maker: sessionmaker[Session], settings: Settings, held: HeldWork) -> Iterator[Start]:
    """Start a search for due batches, with `work` as the work on each."""
    started: list[DueBatches] = []

    def start(
        do: Callable[[DueBatch], bool], *, monotonic: Callable[[], float] = time.monotonic, **changed: Any
    ) -> DueBatches:
        made = DueBatches(maker, do=do, settings=settings.model_copy(update=changed), monotonic=monotonic)
        made.start()
        started.append(made)
        return made

    yield start
    held.release()
    for made in started:
        made.stop()


@pytest.fixture
def control(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Control:
    return Control(maker, storage, settings)


Submit = Callable[..., str]
ReadBatch = Callable[[str], Batch]
MakeLine = Callable[..., dict[str, Any]]


def until(read_batch: ReadBatch, batch_id: str, state: BatchState) -> None:
    for _ in range(600):
        if read_batch(batch_id).state == state:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{batch_id} is {read_batch(batch_id).state}, not {state}")


def test_better_batches_pass_two_long_validations(
    start: Start, held: HeldWork, submit: Submit, line: MakeLine, maker: sessionmaker[Session]
) -> None:
    with maker.begin() as session:
        other = tenants.create_tenant(session, "other", limit_tokens=1_000_000, best_priority=AskedPriority.URGENT)
    bulk = [submit([line(0)], priority=BULK) for _ in range(4)]
    every_poll_is_old = count(step=FRESH_SECONDS).__next__
    looking = start(held.do, monotonic=every_poll_is_old, claim_alone_seconds=NEVER, hint_again_seconds=NEVER)
    assert set(held.until_begun(2)) == set(bulk[:2])
    normal = submit([line(0)], tenant=other)
    looking.wake()
    assert held.until_begun(3)[2:] == [normal]
    urgent = submit([line(0)], priority=URGENT, tenant=other)
    looking.wake()
    assert held.until_begun(4)[3:] == [urgent]
    last_urgent = submit([line(0)], priority=URGENT, tenant=other)
    looking.wake()
    held.release()
    assert held.until_begun(7)[4] == last_urgent, "no fifth at once, and then the best"


def test_either_hint_wakes_a_control_worker(start: Start, held: HeldWork, submit: Submit, line: MakeLine) -> None:
    looking = start(held.do, claim_alone_seconds=NEVER, hint_again_seconds=NEVER)
    app: Celery = make_app("memory://")
    register(app, looking)
    app.finalize()
    for number, task in enumerate((VALIDATE_TASK, FINALISE_TASK), start=1):
        batch_id = submit([line(0)])
        app.tasks[task]("batch_1")
        assert held.until_begun(number)[-1] == batch_id


def test_without_a_broker_a_new_batch_is_validated_and_an_ended_one_written_out(
    start: Start,
    control: Control,
    submit: Submit,
    line: MakeLine,
    read_batch: ReadBatch,
) -> None:
    good, bad = submit([line(0)]), submit([line(1), line(1)])
    start(control.do, claim_alone_seconds=0.02)
    until(read_batch, good, BatchState.IN_PROGRESS)
    until(read_batch, bad, BatchState.FAILED)


def test_while_nothing_is_open_a_look_is_one_short_question(
    start: Start, held: HeldWork, maker: sessionmaker[Session]
) -> None:
    sent, looked = list[str](), threading.Semaphore(0)

    def note(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement)
        looked.release()

    event.listen(maker.kw["bind"], "before_cursor_execute", note)
    start(held.do, claim_alone_seconds=0.01)
    for _ in range(3):
        assert looked.acquire(timeout=60)
    assert all(statement.startswith("SELECT EXISTS (SELECT FROM batch") for statement in sent), sent


def test_what_one_poll_has_found_is_taken_up_without_another_until_it_is_old(
    maker: sessionmaker[Session], start: Start, held: HeldWork, submit: Submit, line: MakeLine
) -> None:
    polls, now = list[str](), 0.0

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if "row_number" in statement:
            polls.append(statement)

    event.listen(maker.kw["bind"], "before_cursor_execute", note)
    batches = [submit([line(0)]) for _ in range(4)]
    looking = start(held.do, monotonic=lambda: now, claim_alone_seconds=NEVER, hint_again_seconds=NEVER)
    assert set(held.until_begun(2)) == set(batches[:2])
    batches.append(submit([line(0)]))
    looking.wake()
    held.release()
    assert set(held.until_begun(4)) == set(batches[:4])
    now = FRESH_SECONDS
    looking.wake()
    assert held.until_begun(5)[4:] == batches[4:]
    looking.stop()
    assert len(polls) <= 4, (
        "one for the first four, one for the fifth, and those of wakes behind it: a poll each before"
    )


def test_a_batch_that_cannot_be_finished_does_not_keep_others_from_their_end(
    start: Start,
    control: Control,
    submit_valid: Submit,
    line: MakeLine,
    maker: sessionmaker[Session],
    read_batch: ReadBatch,
    tenant: Tenant,
) -> None:
    broken, good = [submit_valid([line(0)]) for _ in range(6)], submit_valid([line(1)])
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET state = 'done'"))  # without results: counters and results disagree
        session.execute(text("UPDATE batch SET state = 'finalizing', outcome = 'completed', finalizing_at = now()"))
        session.execute(text("UPDATE batch SET num_requests = 0 WHERE id = :id"), {"id": good})
    start(control.do, claim_alone_seconds=0.02)
    until(read_batch, good, BatchState.COMPLETED)
    assert {read_batch(batch_id).state for batch_id in broken} == {"finalizing"}


def test_what_another_worker_is_at_is_left_to_it_for_a_while(start: Start, submit: Submit, line: MakeLine) -> None:
    tries: list[str] = []
    has_both = threading.Event()

    def elsewhere(batch: DueBatch) -> bool:
        tries.append(batch.batch_id)
        if len(tries) == 2:
            has_both.set()
        return False

    batches = {submit([line(0)]), submit([line(1)])}
    looking = start(elsewhere, claim_alone_seconds=0.01, hint_again_seconds=NEVER)
    assert has_both.wait(60)
    looking.stop()
    assert sorted(tries) == sorted(batches)
