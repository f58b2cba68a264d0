"""Tests of the cap on urgent work: a tenant's urgent chunks go first up to it, then alternate with normal ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.accounts import tenants
from jobs.accounts.limits import set_limits
from jobs.batches.changing import change_batch
from jobs.batches.lost_leases import Reaped, reap_expired, return_leases
from jobs.chunks import claiming, fairshare, lease_ends, queue_marks, ready_queues
from jobs.chunks.fair_order import Cap, Queue, QueuedChunk, lower_capped, order
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.wanted import Wanted
from jobs.states import AskedPriority, BatchState, ChunkState, Priority
from jobs.tables import Batch, Chunk, Tenant

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=20)
URGENT, NORMAL = Priority.URGENT, Priority.NORMAL
AddWork = Callable[..., Batch]


def queue(tenant_id: str, *ids: int, priority: Priority, time: float = 0, room: int | None = None) -> Queue:
    return Queue(
        tenant_id=tenant_id,
        priority=priority,
        weight=1,
        virtual_time=time,
        waiting_since=NOW,
        chunks=[QueuedChunk(id=chunk_id, estimated_tokens=100) for chunk_id in ids],
        cap=None if room is None else Cap(room=room),
    )


def ordered(*queues: Queue) -> list[int]:
    return order(lower_capped(queues), now=NOW, limit=20)


@pytest.mark.parametrize(
    ("room", "expected"),
    [
        (None, [1, 2, 3, 4, 11, 12, 13]),
        (400, [1, 2, 3, 4, 11, 12, 13]),
        (101, [1, 2, 3, 11, 4, 12, 13]),
        (0, [1, 11, 2, 12, 3, 13, 4]),
        (-500, [1, 11, 2, 12, 3, 13, 4]),
    ],
)
def test_what_is_beyond_the_room_takes_turns_with_others(room: int | None, expected: list[int]) -> None:
    capped = queue("a", 1, 2, 3, 4, priority=URGENT, time=7, room=room)
    assert ordered(capped, queue("b", 11, 12, 13, priority=NORMAL, time=500)) == expected


def test_lowered_work_comes_before_the_tenants_own_and_shares_its_turns() -> None:
    own = queue("a", 5, 6, priority=NORMAL, time=500)
    other = queue("b", 11, 12, 13, priority=NORMAL, time=500)
    assert ordered(queue("a", 1, 2, priority=URGENT, room=0), own, other) == [1, 11, 2, 12, 5, 13, 6]


def test_nobody_elses_work_is_needed_for_all_to_be_served() -> None:
    assert ordered(queue("a", 1, 2, 3, priority=URGENT, room=100)) == [1, 2, 3]


@pytest.fixture
def add_work(session: Session, make_batch: Callable[..., Batch], make_chunk: Callable[..., Chunk]) -> AddWork:
    """Make a running batch of a tenant with this many chunks of 50 tokens."""

    served_models.put_model(session, "m", "/models/m")

    def add(tenant: Tenant, num_chunks: int, priority: Priority) -> Batch:
        batch = make_batch(tenant_id=tenant.id, state=BatchState.IN_PROGRESS, priority=priority.value)
        fairshare.activate(session, model="m", priority=priority, tenant_id=tenant.id)
        for _ in range(num_chunks):
            make_chunk(batch)
        queue_marks.mark(session, model="m", priority=priority, tenant_id=tenant.id)
        return batch

    return add


@pytest.fixture
def other(session: Session) -> Tenant:
    return tenants.create_tenant(session, "other")


def claims(session: Session, number: int, *, urgent_tokens: int | None = 100) -> list[ClaimedChunk]:
    found = [
        claiming.claim_next(session, model="m", worker_id="w", lease=LEASE, urgent_tokens=urgent_tokens)
        for _ in range(number)
    ]
    return [claim for claim in found if claim is not None]


def shown(claimed: list[ClaimedChunk], mine: Tenant) -> list[str]:
    return [f"{'mine' if claim.tenant_id == mine.id else 'theirs'} {claim.priority}" for claim in claimed]


def test_a_deep_urgent_backlog_goes_first_up_to_its_cap_and_then_takes_turns(
    session: Session, tenant: Tenant, other: Tenant, add_work: AddWork
) -> None:
    add_work(tenant, 9, URGENT)
    add_work(other, 3, NORMAL)
    claimed = shown(claims(session, 12), tenant)
    assert claimed[:2] == ["mine urgent", "mine urgent"]
    assert sorted(claimed[2:6]) == ["mine normal", "mine normal", "theirs normal", "theirs normal"]
    assert claimed.count("theirs normal") == 3
    assert len(claimed) == 12, "nothing waits while somebody could run it"


def test_an_ended_chunk_makes_room_for_an_urgent_one(
    session: Session, tenant: Tenant, other: Tenant, add_work: AddWork
) -> None:
    add_work(tenant, 9, URGENT)
    add_work(other, 9, NORMAL)
    first = claims(session, 2)
    assert {claim.priority for claim in claims(session, 2)} == {"normal"}
    for claim in first:
        lease_ends.leave(session, claim, ChunkState.WITHDRAWN)
    while (leased := claims(session, 1)[0]).priority == "normal":
        lease_ends.leave(session, leased, ChunkState.WITHDRAWN)
    assert leased.tenant_id == tenant.id


def test_a_tenants_own_cap_wins_and_a_look_for_urgent_work_finds_none_beyond_it(
    session: Session, tenant: Tenant, add_work: AddWork
) -> None:
    add_work(tenant, 3, URGENT)
    set_limits(session, tenant.id, {"urgent_tokens": 1})
    assert shown(claims(session, 1), tenant) == ["mine urgent"]
    look = Wanted(classes=[URGENT])
    assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE, wanted=look, urgent_tokens=10**6) is None
    assert shown(claims(session, 2), tenant) == ["mine normal", "mine normal"]


def test_a_hint_beyond_the_cap_runs_as_normal_work(session: Session, tenant: Tenant, add_work: AddWork) -> None:
    add_work(tenant, 3, URGENT)
    picked = ready_queues.pick_ready(session, model="m", limit=3, again_seconds=10, urgent_tokens=100)
    taken = [
        claiming.claim_chunk(session, chunk_id, worker_id="w", lease=LEASE, urgent_tokens=100) for chunk_id in picked
    ]
    assert [claim.priority for claim in taken if claim] == ["urgent", "urgent", "normal"]


def test_a_lowered_chunk_that_loses_its_lease_gives_back_what_it_was_charged_where_it_was_charged(
    session: Session, tenant: Tenant, other: Tenant, add_work: AddWork
) -> None:
    add_work(tenant, 3, URGENT)
    add_work(other, 1, NORMAL)
    assert sorted(shown(claims(session, 4), tenant)) == ["mine normal", "mine urgent", "mine urgent", "theirs normal"]
    assert virtual_times(session, tenant) == {"urgent": 100, "normal": 50}
    session.execute(text("UPDATE chunk SET lease_until = clock_timestamp() - interval '1 second'"))
    assert reap_expired(session, lease=timedelta(0)) == [Reaped.READY] * 4
    assert virtual_times(session, tenant) == {"urgent": 0, "normal": 0}


def test_a_chunk_gives_back_where_it_was_charged_last(session: Session, tenant: Tenant, add_work: AddWork) -> None:
    add_work(tenant, 1, URGENT)
    for urgent_tokens in (0, 100):
        (claim,) = claims(session, 1, urgent_tokens=urgent_tokens)
        assert claim.priority == ("urgent" if urgent_tokens else "normal")
        assert return_leases(session) == 1
        assert set(virtual_times(session, tenant).values()) == {0}


def test_work_that_runs_as_urgent_counts_as_such_whatever_its_batch_becomes(
    session: Session, tenant: Tenant, add_work: AddWork
) -> None:
    first = add_work(tenant, 2, URGENT)
    assert shown(claims(session, 2), tenant) == ["mine urgent", "mine urgent"]
    change_batch(session, tenant, first.id, priority=AskedPriority.NORMAL)
    add_work(tenant, 1, URGENT)
    assert shown(claims(session, 1), tenant) == ["mine normal"]


def virtual_times(session: Session, tenant: Tenant) -> dict[str, float]:
    query = text("SELECT priority, virtual_time FROM fair_share WHERE tenant_id = :id")
    return {row.priority: row.virtual_time for row in session.execute(query, {"id": tenant.id})}
