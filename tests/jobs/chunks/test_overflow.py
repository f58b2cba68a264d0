"""Tests of batches beyond their tenant's token limit that may overflow: outside the limit, after all others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets, limits, tenants, window_budgets
from jobs.accounts.window_budgets import NewBudget
from jobs.audit.audit import audit
from jobs.batches import changing, lifecycle, retrying
from jobs.batches.submission import CreateBatch
from jobs.chunks import claiming, covering, fairshare, leasing, ready_queues
from jobs.chunks.fair_order import Queue, QueuedChunk, order
from jobs.errors import ConflictError, OverBudgetError
from jobs.settings import Settings
from jobs.states import AskedPriority, BudgetUnit, BudgetWindow, Priority
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, File, Tenant
from tests.jobs.batches.control import validate
from tests.jobs.chunks.builders import LEASE, claim_first, flush

Make = Callable[..., Batch]
NOW = datetime.now(UTC)


def messages(maker: sessionmaker[Session]) -> list[str]:
    with maker() as fresh:
        return [finding.message for finding in audit(fresh)]


@pytest.fixture
def create(session: Session, tenant: Tenant, make_file: Callable[..., File], settings: Settings) -> Make:
    """Submit a batch of 300 estimated tokens."""

    def create() -> Batch:
        wanted = CreateBatch(
            input_file_id=make_file().id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            priority=AskedPriority.URGENT,
        )
        return lifecycle.create_batch(session, tenant, wanted, settings)

    return create


def allow(session: Session, tenant: Tenant, *, limit: int) -> None:
    budgets.set_limit(session, tenant.id, limit)
    limits.set_overflow(session, tenant.id, is_allowed=True)
    session.commit()
    session.refresh(tenant)


def test_within_the_limit_a_batch_is_reserved_for_and_beyond_it_overflows(
    session: Session, tenant: Tenant, create: Make
) -> None:
    allow(session, tenant, limit=500)
    first, second = create(), create()
    assert [(batch.priority, batch.reserved_tokens) for batch in (first, second)] == [("urgent", 300), ("overflow", 0)]
    found = budgets.quota(session, tenant.id)
    assert (found.reserved, found.available) == (300, 200)


def test_without_the_right_a_batch_beyond_the_limit_is_refused_as_ever(
    session: Session, tenant: Tenant, create: Make
) -> None:
    budgets.set_limit(session, tenant.id, 200)
    with pytest.raises(OverBudgetError):
        create()


def test_a_total_that_is_used_up_refuses_what_would_overflow_too(
    session: Session, tenant: Tenant, create: Make
) -> None:
    allow(session, tenant, limit=200)
    wanted = NewBudget(unit=BudgetUnit.TOKENS, window=BudgetWindow.TOTAL, limit=250)
    window_budgets.set_budget(session, tenant.id, wanted)
    with pytest.raises(OverBudgetError):
        create()


@pytest.mark.parametrize("priority", [AskedPriority.URGENT, AskedPriority.BULK])
def test_nobody_changes_the_class_and_a_retry_asks_for_bulk(
    session: Session, tenant: Tenant, create: Make, priority: AskedPriority
) -> None:
    allow(session, tenant, limit=0)
    batch = create()
    with pytest.raises(ConflictError, match="your token budget did not cover it"):
        changing.change_batch(session, tenant, batch.id, priority=priority)
    assert changing.change_batch(session, tenant, batch.id, completion_window="48h").priority == "overflow"
    assert retrying.wish(batch).priority is AskedPriority.BULK


def queue(tenant_id: str, *ids: int, priority: Priority, waited: timedelta = timedelta(0)) -> Queue:
    chunks = [QueuedChunk(id=chunk_id, estimated_tokens=100) for chunk_id in ids]
    return Queue(
        tenant_id=tenant_id, priority=priority, weight=1, virtual_time=0, waiting_since=NOW - waited, chunks=chunks
    )


def test_what_overflows_comes_after_all_other_work_however_long_it_waits() -> None:
    queues = [
        queue("a", 1, 2, priority=Priority.OVERFLOW, waited=timedelta(days=3)),
        queue("b", 3, 4, priority=Priority.BULK),
        queue("c", 5, priority=Priority.NORMAL),
        queue("d", 6, 7, priority=Priority.OVERFLOW),
    ]
    assert order(queues, now=NOW, limit=9) == [5, 3, 4, 1, 6, 2, 7]


def test_a_claim_takes_it_where_nobody_else_has_work(
    session: Session, run: Make, make_batch: Make, make_chunk: Callable[..., Chunk], tenant: Tenant
) -> None:
    own = run(4, priority="overflow")
    other = run(4, priority="bulk", tenant_id=tenants.create_tenant(session, "other").id)
    session.commit()
    claims = [claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) for _ in range(3)]
    assert [claim and claim.batch_id for claim in claims] == [other.id, own.id, None]
    assert ready_queues.next_chunks(session, model="m", limit=9) == []


def test_it_uses_nothing_of_the_limit_and_the_audit_knows_both_sums(
    session: Session, maker: sessionmaker[Session], run: Make, tenant: Tenant
) -> None:
    allow(session, tenant, limit=100)
    batch = run(4, priority="overflow")
    claim = claim_first(session, batch)
    assert not claim.is_limited
    flush(session, claim, [0, 2])
    flush(session, claim_first(session, run(4)), [0])
    found = budgets.quota(session, tenant.id)
    assert (found.spent, found.reserved, found.overflow_spent) == (8, 0, 16)
    assert messages(maker) == []
    session.execute(text("UPDATE budget SET overflow_spent_tokens = 15"))
    session.commit()
    assert messages(maker) == ["the budget has 15 tokens of class overflow spent and the ledger 16"]


def test_window_budgets_hold_for_it_too(
    session: Session, maker: sessionmaker[Session], run: Make, tenant: Tenant
) -> None:
    allow(session, tenant, limit=0)
    wanted = NewBudget(unit=BudgetUnit.TOKENS, window=BudgetWindow.DAY, limit=30)
    window_budgets.set_budget(session, tenant.id, wanted)
    batch = run(4, priority="overflow")
    claim = claim_first(session, batch)
    assert claim.is_limited
    assert covering.cover(session, claim, [12, 12, 12], covered=0).fits == [True, True, False]
    session.commit()
    assert messages(maker) == []
    leasing.flush(session, claim, [], flush_no=0, lease=LEASE, covered=12)
    flush(session, claim, [0], flush_no=1)
    (found,) = window_budgets.allowances(session, tenant.id)
    assert (found.spent, found.reserved) == (8, 0)
    assert messages(maker) == []
    leasing.release(session, claim)
    session.execute(text("UPDATE batch SET state = 'cancelling' WHERE id = :id"), {"id": batch.id})
    session.refresh(batch)
    budgets.release(session, batch)
    session.commit()
    quota = budgets.quota(session, tenant.id)
    assert (batch.reserved_tokens, quota.reserved, quota.spent, quota.overflow_spent) == (0, 0, 0, 8)
    assert messages(maker) == []


def test_a_batch_that_overflows_runs_through_validation_in_its_class(
    session: Session,
    tenant: Tenant,
    submit: Make,
    storage: Storage,
    settings: Settings,
    request_line: Callable[..., str],
) -> None:
    batch = submit([request_line("a")], priority="overflow")
    assert validate(session, storage, batch.id, settings=settings) == "in_progress"
    assert session.query(Chunk.priority).all() == [("overflow",)]
    fairshare.activate(session, model="m", priority="overflow", tenant_id=tenant.id)
    assert claim_first(session, batch).priority == "overflow"
