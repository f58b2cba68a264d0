"""Tests of finding the next chunks among the candidates: in the order of all, at a constant cost."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.chunks import claiming, fair_order, leasing, queue_marks, ready_queues
from jobs.chunks.wanted import ANY, Wanted
from jobs.states import Priority
from jobs.tables import Batch
from tests.database_roles import as_superuser_do

LEASE = timedelta(seconds=20)
CLASSES = list(Priority)

TENANTS = """
    INSERT INTO tenant (id, name, weight, max_urgent_tokens)
        SELECT 'q' || n, 'queue ' || n, 1 + n % 3, CASE n % 7 WHEN 0 THEN 0 WHEN 1 THEN 150 END
        FROM generate_series(1, :num) AS n;
    INSERT INTO budget (tenant_id) SELECT 'q' || n FROM generate_series(1, :num) AS n;
    INSERT INTO model (name, path) VALUES ('m', '/models/m') ON CONFLICT DO NOTHING
"""
CHUNKS = text("""
    INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
        byte_start, byte_end, estimated_tokens)
    SELECT :batch_id, tenant.id, 'm', class, now() + interval '1 day', n, 1, 1, 0, 1, 100
    FROM tenant, unnest(CAST(:classes AS text[])) AS class, generate_series(1, :each) AS n WHERE tenant.id LIKE 'q%'
    ORDER BY n, class, tenant.id
""")


def crowd(session: Session, batch: Batch, num_tenants: int, *, each: int, classes: list[str]) -> None:
    """Let `num_tenants` have ready chunks of these classes, as left by one validation after the other."""
    for statement in TENANTS.split(";\n"):
        session.execute(text(statement), {"num": num_tenants} if ":num" in statement else {})
    session.execute(CHUNKS, {"batch_id": batch.id, "each": each, "classes": classes})
    session.execute(text("UPDATE batch SET state = 'in_progress', model = 'm'"))
    queue_marks.mark_chunks(session, list(session.scalars(text("SELECT id FROM chunk"))))
    session.commit()


def pages(engine: Engine, session: Session, work: Callable[[], object]) -> int:
    """Return the pages that the statements of `work` touch."""
    total = 0

    def explain(connection: Any, cursor: Any, statement: str, values: Any, *_: object) -> None:
        nonlocal total
        if not statement.lstrip().startswith(("SELECT", "WITH", "INSERT", "UPDATE")):
            return
        with connection.connection.driver_connection.cursor() as other:
            other.execute("SAVEPOINT before")
            other.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", values)
            ((plan,),) = other.fetchall()
            other.execute("ROLLBACK TO before")
        total += plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]

    event.listen(engine, "before_cursor_execute", explain)
    try:
        work()
    finally:
        event.remove(engine, "before_cursor_execute", explain)
    return total


@pytest.mark.parametrize("has_statistics", [True, False])
def test_a_claim_costs_the_same_with_many_tenants_as_with_few(
    engine: Engine, session: Session, make_batch: Callable[..., Batch], has_statistics: bool
) -> None:
    crowd(session, make_batch(), 900, each=3, classes=["bulk", "normal"])
    if has_statistics:
        as_superuser_do(session, "ANALYZE")

    def claim() -> None:
        assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE, urgent_tokens=100) is not None

    claim()
    assert pages(engine, session, claim) < 720, "there are 1,800 queues"


SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_order_is_that_of_all_queues(
    session: Session, make_batch: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random shares, ages, hints, leases and caps: the result equals that of reading every queue."""
    at_once = partial(fair_order.wanted_in_order, now=datetime.now(UTC))  # or a queue may age between the two readings
    monkeypatch.setattr(
        ready_queues, "wanted_in_order", lambda queues, wanted, *, now, limit: at_once(queues, wanted, limit=limit)
    )
    chance = random.Random(seed)
    crowd(session, make_batch(), 60, each=3, classes=[priority.value for priority in CLASSES])
    session.execute(text("SELECT setseed(:seed)"), {"seed": seed / 100})
    session.execute(
        text("""
            UPDATE fair_share SET virtual_time = floor(random() * 8) * 100,
                waiting_since = now() - random() * interval '30 minutes';
            UPDATE fair_share SET served_at = waiting_since WHERE random() < 0.5;
            UPDATE chunk SET hinted_at = now() WHERE random() < 0.03;
            UPDATE chunk SET state = 'leased', worker_id = 'w', fence = 1, lease_until = now() + interval '1 hour'
            WHERE random() < 0.05;
            UPDATE chunk SET state = 'withdrawn' WHERE random() < 0.3
        """)
    )
    session.commit()
    for _ in range(25):
        wanted = chance.choice([
            ANY,
            Wanted(classes=[Priority.URGENT]),
            Wanted(classes=[], newcomer_classes=CLASSES, present={f"q{chance.randrange(60)}" for _ in range(6)}),
        ])  # fmt: skip
        given: dict[str, Any] = {
            "model": "m",
            "limit": chance.choice([1, 3, 8, 40]),
            "wanted": wanted,
            "hint_again": chance.choice([None, timedelta(seconds=10)]),
            "urgent_tokens": chance.choice([None, 0, 150, 100_000]),
        }
        with monkeypatch.context() as changed:
            changed.setattr(ready_queues, "_READ_IN_TURN", ready_queues._READ_ALL)
            expected = ready_queues.next_chunks(session, **given)
        assert ready_queues.next_chunks(session, **given) == expected, given
        claiming.claim_next(session, model="m", worker_id="w", lease=LEASE, urgent_tokens=150)


def marked(session: Session) -> list[str]:
    query = "SELECT tenant_id FROM fair_share WHERE waiting_since IS NOT NULL ORDER BY tenant_id"
    return list(session.scalars(text(query)))


def test_whose_last_chunk_is_claimed_is_looked_at_no_more_until_it_comes_back(
    session: Session, make_batch: Callable[..., Batch]
) -> None:
    crowd(session, make_batch(), 2, each=2, classes=["normal"])
    claims = [claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) for _ in range(3)]
    left = list(session.scalars(text("SELECT tenant_id FROM chunk WHERE state = 'ready'")))
    assert marked(session) == left
    claims.append(claiming.claim_next(session, model="m", worker_id="w", lease=LEASE))
    assert marked(session) == []
    returned = claims[0]
    assert returned is not None
    leasing.release(session, returned)
    assert marked(session) == [returned.tenant_id]
    assert ready_queues.next_chunks(session, model="m", limit=9) == [returned.chunk_id]


def test_a_chunk_that_comes_back_while_the_last_one_is_claimed_is_not_forgotten(
    session: Session, maker: sessionmaker[Session], make_batch: Callable[..., Batch]
) -> None:
    crowd(session, make_batch(), 1, each=2, classes=["normal"])
    first = claiming.claim_next(session, model="m", worker_id="w", lease=LEASE)
    assert first is not None
    session.commit()

    def claim_the_other() -> None:
        with maker.begin() as own:
            assert claiming.claim_next(own, model="m", worker_id="w2", lease=LEASE) is not None

    leasing.release(session, first)  # not committed: a claim of the other one does not see it
    thread = threading.Thread(target=claim_the_other)
    thread.start()
    with maker() as looking:
        while thread.is_alive() and not looking.scalar(text("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")):
            looking.rollback()
    session.commit()
    thread.join()
    assert marked(session) == ["q1"]
    assert ready_queues.next_chunks(session, model="m", limit=9) == [first.chunk_id]


def test_a_queue_that_nobody_marked_is_found_where_no_other_is_and_marked_for_good(
    session: Session, maker: sessionmaker[Session], make_batch: Callable[..., Batch]
) -> None:
    crowd(session, make_batch(), 2, each=1, classes=["normal"])
    session.execute(text("UPDATE fair_share SET waiting_since = NULL"))
    assert len(ready_queues.next_chunks(session, model="m", limit=9)) == 2
    session.commit()
    queue_marks.true_up(maker)
    assert marked(session) == ["q1", "q2"]


def test_what_was_withdrawn_is_marked_no_more(
    session: Session, maker: sessionmaker[Session], make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch()
    crowd(session, batch, 2, each=1, classes=["normal"])
    leasing.withdraw_open(session, batch.id)
    session.commit()
    queue_marks.true_up(maker)
    session.rollback()
    assert marked(session) == []


def test_whose_turn_it_is_is_planned_once_for_a_connection(session: Session, make_batch: Callable[..., Batch]) -> None:
    crowd(session, make_batch(), 40, each=3, classes=["normal"])
    for _ in range(12):  # from the fifth on the driver has prepared it, and Postgres makes five custom plans
        assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) is not None
        session.commit()

    plans = session.execute(
        text("SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE '%AS hinted_tokens%'")
    ).all()

    assert [tuple(found) for found in plans] == [(0, 7)]


def test_no_tenant_is_looked_at_whose_turn_cannot_be_next(
    engine: Engine, session: Session, make_batch: Callable[..., Batch]
) -> None:
    crowd(session, make_batch(), 900, each=1, classes=["normal"])
    as_superuser_do(session, "ANALYZE")
    read: list[str] = []

    def explain(connection: Any, cursor: Any, statement: str, values: Any, *_: object) -> None:
        if "AS hinted_tokens" in statement:
            with connection.connection.driver_connection.cursor() as other:
                read.extend(line for (line,) in other.execute(f"EXPLAIN {statement}", values))

    event.listen(engine, "before_cursor_execute", explain)
    try:
        assert len(ready_queues.next_chunks(session, model="m", limit=1)) == 1
    finally:
        event.remove(engine, "before_cursor_execute", explain)

    assert read
    assert [line for line in read if "Seq Scan on tenant" in line] == []
    assert [line for line in read if "Hash" in line and "Join" in line] == []
