"""Tests of claims by workers whose servers are outside the house: what may leave it, and what its owner reads."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import spill_days
from jobs.accounts.spill_days import Asker
from jobs.chunks import claiming, fleet, ready_queues, unserved
from jobs.chunks.fair_order import AGE_OF_NORMAL
from jobs.engines import fits, leaving
from jobs.engines.leaving import Leave
from jobs.forecasts.outlooks import outlooks
from jobs.tables import Batch, Tenant
from tests.jobs.chunks.builders import LEASE
from tests.jobs.engines.outside import BUDGET, OUTSIDE, MakeLate, Run, allow, claim, forecast, start

# --- what: only what tenant and batch allow ---


def test_lines_of_a_tenant_that_does_not_allow_it_never_leave(session: Session, late: MakeLate, tenant: Tenant) -> None:
    late(engine_choice="any")
    allow(session, tenant, may=False)
    assert claim(session, OUTSIDE) is None
    (chunk_id,) = session.scalars(text("SELECT min(id) FROM chunk"))
    assert claiming.claim_chunk(session, chunk_id, worker_id="o", lease=LEASE, engine=OUTSIDE) is None
    allow(session, tenant)
    assert claiming.claim_chunk(session, chunk_id, worker_id="o", lease=LEASE, engine=OUTSIDE) is not None


def test_new_tenants_do_not_allow_it(session: Session, tenant: Tenant) -> None:
    session.refresh(tenant)
    assert tenant.may_leave_house is False


@pytest.mark.parametrize(
    ("columns", "leaves"),
    [
        ({"is_reproducible": True}, False),
        ({"engine": "tokenmill"}, False),
        ({"engine": "tokenmill", "engine_choice": "any"}, True),
        ({"engine": "openai"}, True),
        ({}, True),
    ],
)
def test_a_batch_that_stays_with_another_kind_of_engine_does_not_leave(
    session: Session, late: MakeLate, columns: dict[str, Any], *, leaves: bool
) -> None:
    late(**columns)
    assert (claim(session, OUTSIDE) is not None) == leaves


def test_a_batch_that_would_stay_outside_leaves_only_if_there_is_room_for_all_of_it(
    session: Session, late: MakeLate
) -> None:
    late()  # 100 tokens in and 200 out
    assert OUTSIDE.spill is not None
    for budget, leaves in ((499, False), (500, True)):
        poor = replace(OUTSIDE, spill=replace(OUTSIDE.spill, budget_picos=budget))
        assert (claim(session, poor) is not None) == leaves


def test_chunks_that_stay_are_not_read_one_by_one(session: Session, run: Run, tenant: Tenant) -> None:
    """20,000 chunks of a batch in time, with an earlier deadline, stand before the only one that leaves."""
    start(session, OUTSIDE)
    allow(session, tenant)
    stays, leaves = (run(4, engine_choice="any") for _ in range(2))
    session.execute(
        text("""
            INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
                byte_start, byte_end, estimated_tokens)
            SELECT batch_id, tenant_id, model, priority, expires_at, 0, 1, 1, 0, 1, 1
            FROM chunk, generate_series(1, 20000) WHERE batch_id = :id
        """),
        {"id": stays.id},
    )
    forecast(session)
    session.execute(text("UPDATE forecast SET is_late = FALSE WHERE batch_id = :id"), {"id": stays.id})
    values = {
        "model": "m",
        "limit": 8,
        "classes": ["normal"],
        "num_present": 0,
        "ages": AGE_OF_NORMAL,
        "min_fetched": 4,
        "again": timedelta(days=-1),
        "urgent_tokens": None,
        **fits.values_of(OUTSIDE),
    }
    plan = session.scalar(text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + str(ready_queues._READ_LEAVING)), values)
    assert isinstance(plan, list)
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 200
    claimed = claim(session, OUTSIDE)
    assert claimed is not None
    assert claimed.batch_id == leaves.id


# --- what its owner reads ---


def decided(session: Session, batch: Batch) -> Leave | None:
    """Return what its owner reads about lines that leave, which is part of what the batch waits for."""
    found = leaving.late_ones(session, [batch.id], within=fleet.LIVE_WITHIN).get(batch.id)
    session.refresh(batch)
    wait = outlooks(session, [batch])[batch.id].waits_for or ""
    assert (found is None and "openai" not in wait) or (found is not None and found.note in wait)
    return None if found is None else found.leave


@pytest.mark.parametrize(
    ("columns", "may", "leave"),
    [
        ({"engine_choice": "any"}, True, Leave.LEAVES),
        ({"engine_choice": "any"}, False, Leave.NOT_ALLOWED),
        ({"engine": "tokenmill"}, True, Leave.OTHER_ENGINE),
        ({"is_reproducible": True}, True, Leave.REPRODUCIBLE),
        ({"adapter": "sql", "server_model": "sql-lora"}, True, Leave.NO_ADAPTER),
    ],
)
def test_a_late_batch_says_whether_its_lines_leave_and_why_not(
    session: Session, late: MakeLate, tenant: Tenant, columns: dict[str, Any], leave: Leave, *, may: bool
) -> None:
    batch = late()
    for name, value in columns.items():
        setattr(batch, name, value)
    allow(session, tenant, may=may)
    assert decided(session, batch) is leave


def test_a_late_batch_says_that_the_budget_of_the_day_has_no_room(session: Session, late: MakeLate) -> None:
    batch = late(engine_choice="any")
    (chunk_id, *_) = session.scalars(text("SELECT id FROM chunk"))
    asker = Asker(model="m", batch_id=batch.id, chunk_id=chunk_id, fence=0)
    spill_days.reserve(session, asker, [BUDGET], budget_picos=BUDGET)
    assert decided(session, batch) is Leave.NO_ROOM


def test_a_batch_in_time_and_one_without_a_server_outside_say_nothing_of_it(session: Session, late: MakeLate) -> None:
    batch = late(engine_choice="any")
    assert decided(session, batch) is Leave.LEAVES
    forecast(session, is_late=False)
    assert decided(session, batch) is None
    forecast(session)
    fleet.stop(session, "openai")
    assert decided(session, batch) is None


@pytest.mark.parametrize("is_drained", [True, False])
def test_a_worker_outside_that_claims_nothing_promises_nothing(
    session: Session, late: MakeLate, *, is_drained: bool
) -> None:
    batch = late(engine_choice="any")
    if is_drained:
        fleet.set_draining(session, fleet.find_worker(session, "openai"), is_draining=True)
    else:
        fleet.heartbeat(session, "openai", out_reason="the server cannot be reached")
    assert decided(session, batch) is None


def test_a_batch_that_only_a_server_outside_could_answer_says_that_no_worker_runs(session: Session, run: Run) -> None:
    start(session, OUTSIDE)
    batch = run(4)
    forecast(session)
    assert batch.id in unserved.waits_for(session, [batch])
    assert decided(session, batch) is Leave.NOT_ALLOWED
