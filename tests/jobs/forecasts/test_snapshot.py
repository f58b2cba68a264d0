"""Tests of forecasts of real batches: what a snapshot of the queue keeps, and what owners see of it."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import budgets, tenants
from jobs.chunks import fleet, leasing
from jobs.forecasts import snapshot
from jobs.forecasts.outlooks import Outlook, outlooks
from jobs.tables import Batch, Tenant
from tests.jobs.chunks.builders import LEASE, answer, chunk_ids, claim_one, flush

Run = Callable[..., Batch]


def worker(session: Session) -> None:
    """Let a worker of `m` send a heartbeat."""
    fleet.register(session, worker_id="w1", model="m", max_chunks=1, max_model_len=64)
    session.commit()


def look_after(session: Session, seconds: float) -> None:
    """Take a snapshot `seconds` after the previous one."""
    session.execute(
        text("UPDATE serving_rate SET measured_at = clock_timestamp() - make_interval(secs => :s)"), {"s": seconds}
    )
    snapshot.take(session)
    session.commit()


@pytest.fixture
def measured(session: Session, run: Run) -> list[Batch]:
    """Two batches of one tenant, and a worker that has finished four lines of the first in 2.8 s: 10 tokens/s.

    Each used 8 tokens, of which one was cached.
    """
    batches = [run(8, expires_at=datetime.now(UTC) + timedelta(hours=hours)) for hours in (1, 2)]
    worker(session)
    claim = claim_one(session, chunk_ids(session, batches[0])[0])
    look_after(session, 0)
    flush(session, claim, range(4))
    look_after(session, 2.8)
    return batches


RATE = "SELECT tokens_per_second FROM serving_rate"


@pytest.mark.parametrize(
    ("seconds", "is_kept"), [(1.0, True), (1200.0, True), (7200.0, False)], ids=["just now", "lately", "long ago"]
)
def test_a_rate_is_kept_while_it_says_something_and_forgotten_then(
    session: Session, measured: list[Batch], seconds: float, is_kept: bool
) -> None:
    before = session.scalar(text(RATE))
    session.execute(text("UPDATE serving_rate SET counters = counters - 'ledger_id' || '{\"evidence_seconds\": 60}'"))
    look_after(session, seconds)
    last = f"{RATE.replace(' FROM', ', (counters->>' + repr('ledger_id') + ')::bigint FROM')}"
    rate, ledger_id = session.execute(text(last)).one()
    assert rate == (before if is_kept else None)
    assert ledger_id == session.scalar(text("SELECT max(id) FROM ledger"))


def told(session: Session, batch: Batch) -> Outlook:
    session.refresh(batch)
    return outlooks(session, [batch])[batch.id]


def seconds_left(session: Session, outlook: Outlook) -> float:
    now = session.scalar(text("SELECT now()"))
    assert outlook.ends_at is not None
    return float((outlook.ends_at - now).total_seconds())


def test_a_batch_is_told_when_it_ends_and_what_is_before_it(session: Session, measured: list[Batch]) -> None:
    first, second = (told(session, batch) for batch in measured)
    rate = session.execute(text("SELECT tokens_per_second FROM serving_rate WHERE model = 'm'")).scalar_one()
    assert rate == pytest.approx(10, rel=0.1)
    # 300 tokens were estimated for eight lines; finished ones computed 7 each, and others hardly more.
    assert 4 * 7 / rate < seconds_left(session, first) < 4 * 37.5 / rate
    assert 12 * 7 / rate < seconds_left(session, second) < 12 * 37.5 / rate
    assert (first.position, first.waits_for) == (0, None)
    assert second.position == 1
    ahead = re.fullmatch(
        r"Behind (\d+) tokens of class normal; your share is all of 1 worker at \d+ tokens/s\.", str(second.waits_for)
    )
    assert ahead is not None
    assert 28 <= int(ahead[1]) < 100


def test_the_end_lies_between_two_moments(session: Session, measured: list[Batch]) -> None:
    for batch in measured:
        outlook = told(session, batch)
        assert outlook.earliest_at is not None
        assert outlook.ends_at is not None
        assert outlook.latest_at is not None
        assert outlook.earliest_at < outlook.ends_at < outlook.latest_at


@pytest.mark.parametrize("age", [0, 20, 240, 500])
def test_no_end_is_told_that_lies_in_the_past(session: Session, measured: list[Batch], age: float) -> None:
    session.execute(
        text("UPDATE forecast SET earliest_seconds = 5, seconds = 15, latest_seconds = 30, made_at = now() - :age"),
        {"age": timedelta(seconds=age)},
    )
    session.commit()
    outlook = told(session, measured[0])
    for moment in (outlook.earliest_at, outlook.ends_at, outlook.latest_at):
        assert moment is not None
        assert moment >= session.execute(text("SELECT now()")).scalar_one()


def test_copies_and_cached_tokens_are_nothing_that_is_computed(session: Session, run: Run) -> None:
    """Of eight lines three are copies; of the others one is finished, whose prompt was cached except for one token."""
    batch = run(8)
    worker(session)
    first, second = chunk_ids(session, batch)
    session.execute(text("UPDATE chunk SET copies = '{2,0,3,0}' WHERE id = :id"), {"id": first})
    session.execute(text("UPDATE chunk SET copies = '{7,0}' WHERE id = :id"), {"id": second})
    session.commit()
    claim = claim_one(session, first)
    look_after(session, 0)
    computed = replace(answer(claim, 0, input_tokens=1000, output_tokens=6), cached_tokens=999)
    copied = replace(answer(claim, 2, input_tokens=0, output_tokens=0), cached_tokens=0)
    leasing.flush(session, claim, [computed, copied], flush_no=0, lease=LEASE)
    session.commit()
    look_after(session, 10)
    rate = session.scalar(text(RATE))
    assert rate == pytest.approx(0.7, rel=0.1)
    (load,) = snapshot.queue_of(session, "m").loads
    assert load.leased_lines == 2
    session.refresh(batch)
    assert (batch.num_completed, batch.num_computed) == (2, 1)
    of_a_line = load.ready_tokens / 3
    estimated = session.execute(text("SELECT (estimated_input_tokens + estimated_output_tokens) / 8.0 FROM file"))
    assert of_a_line < float(estimated.scalar_one()), "the copy is no line of no tokens, and the cached ones are none"


def test_an_end_is_compared_with_what_was_told_of_it(session: Session, measured: list[Batch]) -> None:
    batch = measured[0]
    (chunk_id,) = chunk_ids(session, batch)[1:]
    flush(session, claim_one(session, chunk_id), range(4, 8))
    session.execute(
        text(
            "UPDATE batch SET state = 'finalizing', outcome = 'completed', finalizing_at = clock_timestamp() "
            "WHERE id = :id"
        ),
        {"id": batch.id},
    )
    marks = {"50": {"made_at": time.time() - 40, "seconds": 20.0, "kind": ["queue", "normal"]}, "75": None}
    session.execute(
        text("UPDATE forecast SET told = jsonb_set(told, '{marks}', CAST(:marks AS jsonb)) WHERE batch_id = :id"),
        {"marks": json.dumps(marks), "id": batch.id},
    )
    look_after(session, 5)
    ((phase, priority, (error,)),) = session.scalars(text("SELECT counters->'errors' FROM serving_rate")).one()
    assert (phase, priority) == ("queue", "normal")
    assert error == pytest.approx(math.log(2), abs=0.1)


def test_without_finished_lines_there_is_a_place_and_no_end(session: Session, run: Run) -> None:
    batches = [run(4), run(4)]
    worker(session)
    claim_one(session, chunk_ids(session, batches[0])[0])
    look_after(session, 0)
    look_after(session, 10)
    outlook = told(session, batches[1])
    assert (outlook.ends_at, outlook.position, outlook.waits_for) == (None, 1, None)


def test_an_end_beyond_all_calendars_is_not_kept(session: Session, measured: list[Batch]) -> None:
    session.execute(text("UPDATE serving_rate SET tokens_per_second = 1e-9"))
    look_after(session, 0)
    outlook = told(session, measured[0])
    assert (outlook.ends_at, outlook.position) == (None, 0)


def test_the_other_tenants_share_is_told(session: Session, run: Run, measured: list[Batch]) -> None:
    other = tenants.create_tenant(session, "other", weight=2.0)
    session.commit()
    run(8, tenant_id=other.id)
    look_after(session, 0)
    assert "your share is 1/3 of 1 worker" in str(told(session, measured[1]).waits_for)


def test_without_a_worker_nobody_knows_when(session: Session, run: Run) -> None:
    batch = run(4)
    look_after(session, 0)
    outlook = told(session, batch)
    assert (outlook.ends_at, outlook.position) == (None, 0)
    assert str(outlook.waits_for).startswith("No running worker serves")


def test_a_batch_that_waits_for_its_budget_has_no_end(session: Session, tenant: Tenant, measured: list[Batch]) -> None:
    session.execute(text("UPDATE batch SET waits_for_tokens = 700 WHERE id = :id"), {"id": measured[1].id})
    budgets.set_limit(session, tenant.id, 10)
    session.commit()
    outlook = told(session, measured[1])
    assert outlook.ends_at is None
    assert str(outlook.waits_for).startswith("waiting_budget: ")


def test_forecasts_of_somebody_who_is_gone_are_not_told(session: Session, measured: list[Batch]) -> None:
    session.execute(text("UPDATE forecast SET made_at = now() - interval '1 hour'"))
    session.commit()
    assert told(session, measured[1]) == Outlook()


def test_ended_batches_leave_no_forecast(session: Session, measured: list[Batch]) -> None:
    session.execute(text("UPDATE batch SET state = 'cancelling' WHERE id = :id"), {"id": measured[0].id})
    look_after(session, 0)
    assert session.scalars(text("SELECT batch_id FROM forecast")).all() == [measured[1].id]


def test_a_hundred_batches_cost_as_many_queries_as_one(
    session: Session, make_batch: Callable[..., Batch], tenant: Tenant, statements: list[tuple[str, Any]]
) -> None:
    worker(session)
    budgets.set_limit(session, tenant.id, 10)
    batches = [make_batch(state="in_progress", model="m", waits_for_tokens=5) for _ in range(100)]
    del statements[:]
    outlooks(session, batches[:1])
    num_of_one = len(statements)
    del statements[:]
    assert len(outlooks(session, batches)) == 100
    assert len(statements) == num_of_one <= 4
