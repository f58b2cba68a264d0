"""Tests that all due runs are made: in small transactions, tenants in turn, despite crashes, failures and locks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.scheduling.due import DueSchedule
from features.pipelines.scheduling.due_turns import (
    AT_ONCE,
    BUSY_SECONDS,
    FAILED_SECONDS,
    QUIET_TIMES,
    DueTurns,
    next_in_turn,
)
from features.pipelines.scheduling.planning import LATE
from features.pipelines.tables import Pipeline, Run, Schedule
from jobs.accounts import tenants
from jobs.database import connect, sessions
from jobs.errors import ServiceError
from jobs.ids import new_id
from jobs.tables import ScheduleWatch, Tenant
from protocol.turns import TurnQueue
from tests.database_roles import as_superuser_do

LATE_IS_LOOKED_FOR = "run.late_at IS NULL"
SLOW = 5 * LATE
"""How long ago the schedules were due: longer than a run may be late."""


class Clock:
    """A monotonic clock that a test advances."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def turns(maker: sessionmaker[Session], clock: Clock) -> DueTurns:
    return DueTurns(maker, monotonic=clock)


@pytest.fixture(autouse=True)
def watch(session: Session) -> None:
    """Dispatchers have polled all the time."""
    now = datetime.now(UTC)
    session.add(ScheduleWatch(since=now - timedelta(days=1), seen_at=now))
    session.commit()


@pytest.fixture
def other_tenants(session: Session) -> list[Tenant]:
    made = [tenants.create_tenant(session, new_id("tenant")) for _ in range(AT_ONCE + 10)]
    session.commit()
    return made


def add_due(session: Session, tenant: Tenant, number: int, *, ago: timedelta = SLOW, **columns: Any) -> list[str]:
    """Insert daily schedules of a tenant that were due some time ago; keywords override their columns."""
    pipeline = Pipeline(id=new_id("pipeline"), tenant_id=tenant.id, name=new_id("name"), definition={"steps": []})
    session.add(pipeline)
    session.flush()
    due_at = datetime.now(UTC) - ago
    values = {"cron": f"{due_at.minute} {due_at.hour} * * *", "next_at": due_at, "due_at": due_at}
    values |= {"time_zone": "UTC", "catch_up": "none", "catch_up_seconds": 0}
    owner = {"tenant_id": tenant.id, "pipeline_id": pipeline.id}
    ids = [new_id("schedule") for _ in range(number)]
    session.add_all(Schedule(id=each, name=each, **owner, **values | columns) for each in ids)
    session.commit()
    return ids


def made(session: Session) -> Counter[tuple[str | None, str]]:
    """Return the number of runs of each schedule, by state."""
    session.rollback()
    return Counter((run.schedule_id, run.state) for run in session.scalars(select(Run)))


def once(schedule_ids: Sequence[str]) -> Counter[tuple[str | None, str]]:
    """Return the result of `made` if each of these has its run."""
    return Counter((schedule_id, "queued") for schedule_id in schedule_ids)


def test_all_schedules_that_are_due_run_however_many_and_whatever_that_takes(
    session: Session, tenant: Tenant, turns: DueTurns
) -> None:
    ids = add_due(session, tenant, 3 * AT_ONCE + 1)
    turns.make_due_runs()
    assert made(session) == once(ids)


def test_what_was_due_while_nobody_looked_is_still_skipped(session: Session, tenant: Tenant, turns: DueTurns) -> None:
    session.execute(text("UPDATE schedule_watch SET seen_at = seen_at - interval '10 minutes'"))
    ids = add_due(session, tenant, AT_ONCE + 1)
    turns.make_due_runs()
    assert made(session) == Counter((schedule_id, "skipped") for schedule_id in ids)


def test_a_transaction_has_a_bounded_number_of_schedules_and_late_runs_are_looked_for_after_each(
    session: Session, tenant: Tenant, turns: DueTurns, statements: list[tuple[str, Any]]
) -> None:
    add_due(session, tenant, 2 * AT_ONCE + 1)
    statements.clear()
    turns.make_due_runs()
    kinds = ["insert" if "INSERT INTO run" in sent else "late" for sent, _ in statements if is_told(sent)]
    assert kinds == ["insert", "late"] * 3


def test_late_runs_that_take_long_to_look_for_are_looked_for_less_often(
    session: Session, tenant: Tenant, maker: sessionmaker[Session], clock: Clock, statements: list[tuple[str, Any]]
) -> None:
    add_due(session, tenant, 2 * AT_ONCE + 1)

    def take_long(_: object, __: object, statement: str, *more: object) -> None:
        clock.seconds += 1.0 if LATE_IS_LOOKED_FOR in statement else 0.0

    turns = DueTurns(maker, monotonic=clock)
    event.listen(maker.kw["bind"], "before_cursor_execute", take_long)
    statements.clear()
    turns.make_due_runs()
    clock.seconds += QUIET_TIMES
    turns.make_due_runs()
    assert sum(LATE_IS_LOOKED_FOR in sent for sent, _ in statements) == 2


def test_a_poll_at_rest_takes_no_transaction(session: Session, tenant: Tenant, turns: DueTurns, engine: Engine) -> None:
    add_due(session, tenant, 1, ago=-SLOW)
    committed: list[object] = []
    event.listen(engine, "commit", committed.append)
    turns.make_due_runs()
    assert committed == []
    assert made(session) == Counter()


def test_a_late_run_is_reported_by_the_next_poll_and_once(
    session: Session, tenant: Tenant, turns: DueTurns, clock: Clock
) -> None:
    add_due(session, tenant, 1, ago=timedelta(0), late_after_seconds=0)
    turns.make_due_runs()
    late_at = session.scalars(select(Run.late_at)).one()
    assert late_at is not None
    clock.seconds += QUIET_TIMES
    turns.make_due_runs()
    session.rollback()
    assert session.scalars(select(Run.late_at)).one() == late_at


def is_told(statement: str) -> bool:
    return "INSERT INTO run" in statement or LATE_IS_LOOKED_FOR in statement


def test_another_tenants_schedule_is_made_next_whatever_one_tenant_has_due(
    session: Session, tenant: Tenant, turns: DueTurns, other_tenants: Sequence[Tenant]
) -> None:
    add_due(session, tenant, 3 * AT_ONCE)
    first = add_due(session, other_tenants[0], 1, ago=timedelta(0))
    assert turns.make_some()
    assert made(session)[first[0], "queued"] == 1
    later = add_due(session, other_tenants[0], 1, ago=timedelta(0))
    assert turns.make_some()
    assert made(session)[later[0], "queued"] == 1


def test_many_tenants_with_much_due_delay_another_by_one_transaction(
    session: Session, turns: DueTurns, other_tenants: Sequence[Tenant]
) -> None:
    *busy, late = other_tenants
    for tenant in busy:
        add_due(session, tenant, 3)
    assert turns.make_some()
    [schedule_id] = add_due(session, late, 1, ago=timedelta(0))
    assert turns.make_some()
    assert made(session)[schedule_id, "queued"] == 1
    session.rollback()
    served = Counter(session.scalars(select(Run.tenant_id)))
    assert set(served) == {tenant.id for tenant in other_tenants}, "each had a turn before any had its last"


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=80),
    st.dictionaries(st.integers(0, 79).map(str), st.integers(1, 9), max_size=80),
)
def test_no_tenant_has_a_second_turn_before_each_has_had_one(sizes: list[int], served: dict[str, int]) -> None:
    due = [
        DueSchedule(id=f"{tenant} {number}", tenant_id=str(tenant))
        for tenant, size in enumerate(sizes)
        for number in range(size)
    ]
    queue: TurnQueue[DueSchedule] = TurnQueue()
    for tenant_id in sorted(served, key=lambda one: served[one]):
        queue.take(queue.put(due[0], tenant=tenant_id))
    chosen = next_in_turn(queue, due)
    assert len(chosen) == min(AT_ONCE, len(due))
    turns_of = Counter(each.tenant_id for each in chosen)
    for tenant, size in enumerate(sizes):
        for other in turns_of:
            assert turns_of[other] - turns_of[str(tenant)] <= 1 or turns_of[str(tenant)] == size
    if len(sizes) > AT_ONCE:
        left_out = [served.get(str(tenant), 0) for tenant in range(len(sizes)) if str(tenant) not in turns_of]
        assert max(served.get(tenant, 0) for tenant in turns_of) <= min(left_out), "who was served longest ago is next"


def test_two_dispatchers_at_once_make_each_run_once(
    session: Session, tenant: Tenant, database_url: str, other_tenants: Sequence[Tenant]
) -> None:
    ids = add_due(session, tenant, 4 * AT_ONCE)
    for each in other_tenants:
        ids += add_due(session, each, 2)
    engine = connect(database_url, connections=2)
    both = [DueTurns(sessions(engine)) for _ in range(2)]
    with ThreadPoolExecutor(2) as dispatchers:
        list(dispatchers.map(DueTurns.make_due_runs, both))
    engine.dispose()
    assert made(session) == once(ids)


def test_schedules_that_a_dispatcher_holds_which_hangs_are_left_to_it_and_taken_when_it_is_dead(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, turns: DueTurns, clock: Clock
) -> None:
    held, free = add_due(session, tenant, AT_ONCE), add_due(session, tenant, AT_ONCE + 1, ago=timedelta(0))
    hanging = maker()
    hanging.scalars(select(Schedule).where(Schedule.id.in_(held)).with_for_update(key_share=True)).all()
    turns.make_due_runs()
    assert made(session) == once(free)
    hanging.close()  # rolls back, as the server does when its client is killed
    turns.make_due_runs()
    assert made(session) == once(free), "not tried again at once"
    clock.seconds += BUSY_SECONDS
    turns.make_due_runs()
    assert made(session) == once(held + free)


def test_a_dispatcher_whose_connection_dies_in_the_middle_leaves_its_transaction_to_the_next(
    session: Session, maker: sessionmaker[Session], tenant: Tenant, engine: Engine, clock: Clock
) -> None:
    ids = add_due(session, tenant, 3 * AT_ONCE)
    dying = DueTurns(maker, monotonic=clock)
    assert dying.make_some()
    with killed_at(engine, "UPDATE schedule SET"), pytest.raises(ServiceError):
        dying.make_due_runs()
    assert made(session).total() == AT_ONCE
    DueTurns(maker).make_due_runs()
    assert made(session) == once(ids)
    clock.seconds += BUSY_SECONDS
    dying.make_due_runs()
    assert made(session) == once(ids)


@contextmanager
def killed_at(engine: Engine, beginning: str) -> Iterator[None]:
    """Let Postgres end each connection that sends a statement with this beginning."""

    def kill(connection: Any, _: object, statement: str, *__: object) -> None:
        if statement.startswith(beginning):
            pid = connection.connection.driver_connection.info.backend_pid
            with engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})

    event.listen(engine, "before_cursor_execute", kill)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", kill)


def test_schedules_whose_runs_cannot_be_made_hold_up_no_others_and_are_not_late_when_they_can(
    session: Session, tenant: Tenant, turns: DueTurns, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bad = add_due(session, tenant, AT_ONCE + 5, ago=2 * SLOW)
    as_superuser_do(session, "CREATE TABLE bad (id text)", "GRANT ALL ON bad TO PUBLIC", _REFUSE)
    session.execute(text("INSERT INTO bad (id) SELECT unnest(CAST(:ids AS text[]))"), {"ids": bad})
    session.commit()
    good = add_due(session, tenant, AT_ONCE + 5)
    caplog.set_level(logging.ERROR)
    turns.make_due_runs()
    assert made(session) == once(good)
    assert len(caplog.records) == len(bad), "one for each"
    turns.make_due_runs()
    assert len(caplog.records) == len(bad), "they rest"
    as_superuser_do(session, "DROP TRIGGER refuse ON run")
    clock.seconds += FAILED_SECONDS
    turns.make_due_runs()
    assert made(session) == once(bad + good)


_REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM bad WHERE id = NEW.schedule_id) THEN RAISE EXCEPTION 'refused'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON run FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def test_a_tenant_that_is_disabled_or_deleted_holds_up_no_other(
    session: Session, tenant: Tenant, turns: DueTurns, other_tenants: Sequence[Tenant]
) -> None:
    disabled, deleted = other_tenants[:2]
    rests = add_due(session, disabled, AT_ONCE) + add_due(session, deleted, AT_ONCE)
    good = add_due(session, tenant, 1)
    tenants.set_disabled(session, disabled, is_disabled=True)
    deleted.deleted_at = datetime.now(UTC)
    session.commit()
    turns.make_due_runs()
    assert made(session) == once(good)
    tenants.set_disabled(session, disabled, is_disabled=False)
    session.commit()
    turns.make_due_runs()
    assert made(session) == once(good) + Counter((each, "skipped") for each in rests[:AT_ONCE]), "they were due then"


def test_without_a_database_nothing_is_made_and_the_call_may_be_repeated() -> None:
    engine = connect("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(ServiceError):
        DueTurns(sessions(engine)).make_due_runs()
    engine.dispose()
