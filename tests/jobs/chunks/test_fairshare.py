"""Tests of fair share: shares follow weights, classes come first, ageing prevents starvation, picking is cheap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks import fairshare, queue_marks, ready_queues
from jobs.chunks.fair_order import (
    AGE_OF_BULK,
    AGE_OF_NORMAL,
    Queue,
    QueuedChunk,
    effective_rank,
    order,
    wanted_in_order,
)
from jobs.chunks.wanted import Wanted
from jobs.states import AskedPriority, Priority
from jobs.tables import Batch, Tenant
from tests.database_roles import as_superuser_do

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def queue(
    tenant_id: str,
    *chunk_ids: int,
    priority: Priority = Priority.NORMAL,
    weight: float = 1.0,
    virtual_time: float = 0.0,
    waited: timedelta = timedelta(0),
) -> Queue:
    chunks = [QueuedChunk(id=chunk_id, estimated_tokens=100) for chunk_id in chunk_ids]
    return Queue(
        tenant_id=tenant_id,
        priority=priority,
        weight=weight,
        virtual_time=virtual_time,
        waiting_since=NOW - waited,
        chunks=chunks,
    )


# --- the decision ----------------------------------------------------------------------------------------------------


def test_the_least_served_tenant_is_next() -> None:
    assert order([queue("a", 1, virtual_time=50), queue("b", 2, virtual_time=40)], now=NOW, limit=2) == [2, 1]


def test_each_pick_is_charged_before_the_next() -> None:
    assert order([queue("a", 1, 2, 3), queue("b", 4, 5, 6)], now=NOW, limit=6) == [1, 4, 2, 5, 3, 6]


def test_a_double_weight_gets_two_chunks_for_one() -> None:
    picked = order([queue("a", 1, 2, 3), queue("b", *range(10, 20), weight=2)], now=NOW, limit=9)
    assert sum(chunk_id >= 10 for chunk_id in picked) == 6


def test_a_newcomer_need_not_wait_where_it_has_the_turn_and_only_there() -> None:
    full = Wanted(classes=[Priority.URGENT], newcomer_classes=[Priority.NORMAL], present={"here"})
    here = queue("here", 1, 2, virtual_time=150)

    def wanted(*others: Queue) -> list[int]:
        return wanted_in_order([here, *others], full, now=NOW, limit=9)

    assert wanted() == []
    assert wanted(queue("new", 10, 11, 12)) == [10, 11], "the third would be charged from beyond the other's time"
    assert wanted(queue("level", 10, 11, virtual_time=150)) == [10]
    assert wanted(queue("served", 10, virtual_time=200)) == []
    assert wanted(queue("new", 10), queue("here", 20, priority=Priority.URGENT)) == [20], "better work first"
    assert wanted(queue("bulk", 10, priority=Priority.BULK)) == []


def test_classes_come_before_fairness() -> None:
    queues = [
        queue("a", 1, priority=Priority.BULK),
        queue("a", 2, priority=Priority.URGENT, virtual_time=900),
        queue("b", 3, virtual_time=5),
    ]
    assert order(queues, now=NOW, limit=3) == [2, 3, 1]


def test_hints_under_way_count_as_served() -> None:
    busy = replace(queue("a", 1), hinted_tokens=300)
    assert order([busy, queue("b", 2, 3, virtual_time=10)], now=NOW, limit=3) == [2, 3, 1]


def test_an_aged_queue_goes_first_in_its_new_class_for_one_chunk() -> None:
    aged = queue("old", 1, 2, priority=Priority.NORMAL, waited=AGE_OF_NORMAL)
    urgent = queue("new", 10, 11, priority=Priority.URGENT)
    assert order([urgent, aged], now=NOW, limit=4) == [1, 10, 11, 2]


def test_an_aged_queue_with_a_hint_under_way_is_not_lifted_again() -> None:
    aged = replace(queue("old", 1, waited=AGE_OF_NORMAL), hinted_tokens=100)
    assert order([aged, queue("new", 10, priority=Priority.URGENT)], now=NOW, limit=2) == [10, 1]


@pytest.mark.parametrize(
    ("priority", "waited", "rank"),
    [
        (Priority.URGENT, timedelta(days=9), 0),
        (Priority.NORMAL, AGE_OF_NORMAL - timedelta(seconds=1), 1),
        (Priority.NORMAL, AGE_OF_NORMAL, 0),
        (Priority.BULK, AGE_OF_BULK - timedelta(seconds=1), 2),
        (Priority.BULK, AGE_OF_BULK, 1),
        (Priority.BULK, AGE_OF_BULK + AGE_OF_NORMAL, 0),
    ],
)
def test_waiting_lifts_a_class_at_the_stated_ages(priority: Priority, waited: timedelta, rank: int) -> None:
    assert effective_rank(priority, waited) == rank


def test_the_order_ends_where_a_queue_was_not_read_to_its_end() -> None:
    cut = replace(queue("a", 1), has_more=True)
    assert order([cut, queue("b", 5, virtual_time=1000)], now=NOW, limit=2) == [1]


@given(
    weights=st.lists(st.floats(0.1, 10), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=50),
    starts=st.lists(st.floats(0, 100), min_size=6, max_size=6),
)
def test_shares_converge_to_the_weights(weights: list[float], sizes: list[int], starts: list[float]) -> None:
    """Start-time fair queueing: between two backlogged tenants, service ÷ weight differs by at most one chunk each."""
    queues = [
        Queue(
            tenant_id=str(index),
            priority=Priority.NORMAL,
            weight=weight,
            virtual_time=starts[index],
            waiting_since=NOW,
            chunks=[
                QueuedChunk(id=index * 1000 + number, estimated_tokens=sizes[(index + number) % len(sizes)])
                for number in range(400)
            ],
            has_more=True,
        )
        for index, weight in enumerate(weights)
    ]
    tokens = {chunk.id: chunk.estimated_tokens for queue in queues for chunk in queue.chunks}
    served = dict.fromkeys(range(len(weights)), 0)
    for chunk_id in order(queues, now=NOW, limit=300):
        served[chunk_id // 1000] += tokens[chunk_id]
    clocks = [starts[index] + served[index] / weight for index, weight in enumerate(weights)]
    slack = max(max(sizes) / weight for weight in weights)
    assert max(clocks) - min(clocks) <= max(slack, *starts) + 1e-6


ASKED = [Priority(asked) for asked in AskedPriority]


@given(st.lists(st.sampled_from(ASKED), min_size=1, max_size=8), st.integers(5, 60))
@example(classes=[Priority.URGENT, *[Priority.NORMAL] * 5], seconds=60)  # the others have always aged
@hypothesis_settings(deadline=None, max_examples=30)
def test_nobody_starves_under_endless_urgent_load(classes: list[Priority], seconds: int) -> None:
    """One chunk ends every `seconds`; each other queue is served at least once within its age plus one turn of all."""
    queues = {0: queue("urgent", 0, priority=Priority.URGENT)}
    for index, priority in enumerate(classes, start=1):
        queues[index] = queue(f"t{index}", index, priority=priority)
    step = timedelta(seconds=seconds)
    bound = AGE_OF_BULK + AGE_OF_NORMAL + step * (len(queues) + 1)
    now, last = NOW, dict.fromkeys(queues, NOW)
    while now < NOW + 2 * bound:
        now += step
        (picked,) = order(queues.values(), now=now, limit=1)
        before = queues[picked]
        queues[picked] = replace(before, virtual_time=before.virtual_time + 100, waiting_since=now)
        if classes and picked:
            assert now - last[picked] <= bound
        last[picked] = now
    assert all(now - moment <= bound for index, moment in last.items() if index)


@given(st.integers(0, 20), st.integers(0, 50))
def test_every_chunk_is_picked_once(num_queues: int, limit: int) -> None:
    queues = [queue(str(index), *range(index * 10, index * 10 + 5)) for index in range(num_queues)]
    picked = order(queues, now=NOW, limit=limit)
    assert len(set(picked)) == len(picked) == min(limit, num_queues * 5)


# --- the queries -----------------------------------------------------------------------------------------------------


@pytest.fixture
def add_chunks(session: Session, make_batch: Callable[..., Batch]) -> Callable[..., list[int]]:
    """Insert ready chunks of a tenant and return their ids."""
    batch = make_batch()

    def add(tenant_id: str, number: int, **columns: object) -> list[int]:
        values = {"priority": "normal", "model": "m", "expires_at": NOW + timedelta(days=1), "state": "ready"} | columns
        query = text("""
            INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
                byte_start, byte_end, estimated_tokens, state)
            SELECT :batch_id, :tenant_id, :model, :priority, :expires_at, n, 1, 1, 0, 1, 100, :state
            FROM generate_series(1, :number) AS n RETURNING id
        """)
        rows = session.scalars(query, values | {"batch_id": batch.id, "tenant_id": tenant_id, "number": number})
        ids = list(rows)
        if values["state"] == "ready":
            queue_marks.mark_chunks(session, ids[:1])
        return ids

    return add


@pytest.fixture
def second(session: Session) -> str:
    session.execute(text("INSERT INTO tenant (id, name, weight) VALUES ('t2', 'two', 2)"))
    return "t2"


AddChunks = Callable[..., list[int]]


def pick(session: Session, limit: int, *, again_seconds: float = 10.0) -> list[int]:
    return ready_queues.pick_ready(session, model="m", limit=limit, again_seconds=again_seconds)


def test_inside_a_tenant_the_earliest_deadline_then_the_oldest_is_next(
    session: Session, tenant: Tenant, add_chunks: AddChunks
) -> None:
    late = add_chunks(tenant.id, 2, expires_at=NOW + timedelta(days=2))
    soon = add_chunks(tenant.id, 2, expires_at=NOW + timedelta(days=1))
    assert pick(session, 4) == soon + late


def test_what_was_hinted_lately_is_not_hinted_again(session: Session, tenant: Tenant, add_chunks: AddChunks) -> None:
    ids = add_chunks(tenant.id, 3)
    assert pick(session, 2) == ids[:2]
    assert pick(session, 2) == ids[2:]
    assert pick(session, 2) == []
    session.execute(text("UPDATE chunk SET hinted_at = hinted_at - interval '11 seconds'"))
    assert pick(session, 2) == ids[:2]


def test_a_chunk_counts_as_hinted_for_a_while_on_the_databases_clock(
    session: Session, tenant: Tenant, add_chunks: AddChunks
) -> None:
    ids, within = add_chunks(tenant.id, 2), timedelta(seconds=10)
    pick(session, 1)
    ages = [ready_queues.hint_age(session, chunk_id, within=within) for chunk_id in [*ids, 0]]
    assert ages[0] is not None
    assert timedelta(0) < ages[0] < within
    assert ages[1:] == [None, None]
    session.execute(text("UPDATE chunk SET hinted_at = hinted_at - interval '11 seconds'"))
    assert ready_queues.hint_age(session, ids[0], within=within) is None


def test_only_ready_chunks_of_the_model_are_picked(session: Session, tenant: Tenant, add_chunks: AddChunks) -> None:
    add_chunks(tenant.id, 1, model="other")
    for state in ("leased", "done", "split", "withdrawn"):
        add_chunks(tenant.id, 1, state=state)
    assert pick(session, 5) == []
    assert pick(session, 0) == []


def test_the_virtual_times_and_weights_in_the_tables_decide(
    session: Session, tenant: Tenant, second: str, add_chunks: AddChunks
) -> None:
    mine, theirs = add_chunks(tenant.id, 5), add_chunks(second, 5)
    for tenant_id in (tenant.id, second):
        fairshare.activate(session, model="m", priority="normal", tenant_id=tenant_id)
    fairshare.charge(session, model="m", priority="normal", tenant_id=tenant.id, tokens=100)
    picked = pick(session, 5)
    assert [chunk_id in theirs for chunk_id in picked].count(True) == 4
    assert picked[-1] in mine or picked[-2] in mine


def test_a_tenant_not_served_for_long_is_lifted(
    session: Session, tenant: Tenant, second: str, add_chunks: AddChunks
) -> None:
    bulk = add_chunks(tenant.id, 2, priority="bulk")
    urgent = add_chunks(second, 2, priority="urgent")
    session.execute(text("UPDATE fair_share SET waiting_since = waiting_since - interval '21 minutes'"))
    assert ready_queues.next_chunks(session, model="m", limit=4) == [bulk[0], *urgent, bulk[1]]
    fairshare.charge(session, model="m", priority="bulk", tenant_id=tenant.id, tokens=1)
    assert ready_queues.next_chunks(session, model="m", limit=4) == [*urgent, *bulk]


def virtual_time(session: Session, tenant_id: str) -> float:
    query = text("SELECT virtual_time FROM fair_share WHERE tenant_id = :id AND model = 'm' AND priority = 'normal'")
    return float(session.execute(query, {"id": tenant_id}).scalar_one())


def activate(session: Session, tenant_id: str) -> float:
    fairshare.activate(session, model="m", priority="normal", tenant_id=tenant_id)
    return virtual_time(session, tenant_id)


def charge(session: Session, tenant_id: str, tokens: int) -> None:
    fairshare.charge(session, model="m", priority="normal", tenant_id=tenant_id, tokens=tokens)


def test_the_first_tenant_of_all_starts_at_zero(session: Session, tenant: Tenant) -> None:
    assert activate(session, tenant.id) == 0


@pytest.mark.parametrize("state", ["ready", "leased"])
def test_a_newcomer_starts_at_the_least_active(
    session: Session, tenant: Tenant, second: str, add_chunks: AddChunks, state: str
) -> None:
    activate(session, tenant.id)
    charge(session, tenant.id, 500)
    session.execute(text("INSERT INTO tenant (id, name) VALUES ('t3', 'three')"))
    charge(session, "t3", 900)
    add_chunks(tenant.id, 1, state=state)
    assert activate(session, second) == 500


def test_after_a_pause_of_all_the_clock_stands_where_the_last_one_left(
    session: Session, tenant: Tenant, second: str
) -> None:
    activate(session, tenant.id)
    charge(session, tenant.id, 500)
    assert activate(session, second) == 500


def test_a_tenant_that_paid_more_keeps_its_own_time(
    session: Session, tenant: Tenant, second: str, add_chunks: AddChunks
) -> None:
    charge(session, tenant.id, 10)
    charge(session, second, 1000)
    add_chunks(tenant.id, 1)
    assert activate(session, second) == 500  # 1000 tokens at weight 2


def test_an_active_tenant_is_not_moved_by_its_next_batch(
    session: Session, tenant: Tenant, second: str, add_chunks: AddChunks
) -> None:
    charge(session, tenant.id, 10)
    charge(session, second, 1000)
    add_chunks(tenant.id, 1)
    add_chunks(second, 1)
    assert activate(session, tenant.id) == 10


def test_a_correction_gives_back_what_was_not_used(session: Session, second: str) -> None:
    charge(session, second, 1000)
    fairshare.correct(session, model="m", priority="normal", tenant_id=second, tokens=-600)
    assert virtual_time(session, second) == 200


def test_each_model_has_its_own_clock(session: Session, tenant: Tenant, second: str) -> None:
    fairshare.charge(session, model="busy", priority="normal", tenant_id=tenant.id, tokens=10**9)
    assert activate(session, second) == 0


def buffers_of_reading(session: Session, classes: Sequence[str]) -> tuple[int, int]:
    """Return the pages that reading the queues touches, and the chunks that it finds."""
    values = {"model": "m", "limit": 20, "classes": list(classes), "min_fetched": 4, "again": timedelta(seconds=10)}
    values |= {"urgent_tokens": 100, "num_present": 0, "ages": AGE_OF_NORMAL}
    plan = session.scalar(text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + str(ready_queues._READ_IN_TURN)), values)
    assert isinstance(plan, list)
    assert "Seq Scan on chunk" not in str(plan)
    root = plan[0]["Plan"]
    return root["Shared Hit Blocks"] + root["Shared Read Blocks"], root["Actual Rows"]


@pytest.mark.parametrize("has_statistics", [True, False])
def test_picking_reads_the_heads_of_the_queues_and_not_the_backlog(
    session: Session, tenant: Tenant, second: str, add_chunks: AddChunks, has_statistics: bool
) -> None:
    for tenant_id in (tenant.id, second):
        add_chunks(tenant_id, 10_000)
    if has_statistics:
        as_superuser_do(session, "ANALYZE chunk")
    num_pages, num_rows = buffers_of_reading(session, list(Priority))
    assert num_pages < 200
    assert 0 < num_rows <= 2 * 20


def test_a_look_for_a_better_class_does_not_read_the_others(
    session: Session, tenant: Tenant, second: str, add_chunks: AddChunks
) -> None:
    for tenant_id, priority in ((tenant.id, "bulk"), (second, "normal")):
        add_chunks(tenant_id, 10_000, priority=priority)
    (urgent,) = add_chunks(second, 1, priority="urgent")
    as_superuser_do(session, "ANALYZE chunk")
    num_pages, num_rows = buffers_of_reading(session, ["urgent"])
    assert (num_pages < 100, num_rows) == (True, 1)
    found = ready_queues.next_chunks(session, model="m", limit=9, wanted=Wanted(classes=[Priority.URGENT]))
    assert found == [urgent]
