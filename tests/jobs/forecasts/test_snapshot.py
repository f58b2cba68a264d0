"""Forecasts of real batches: what a look at the queue keeps, and what owners are told of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import budgets, tenants
from jobs.chunks import fleet
from jobs.forecasts import snapshot
from jobs.forecasts.outlooks import Outlook, outlooks
from jobs.tables import Batch, Tenant
from tests.jobs.chunks.builders import chunk_ids, claim_one, flush

Run = Callable[..., Batch]


def worker(session: Session) -> None:
    """Let a worker of `m` give a sign of life."""
    fleet.register(session, worker_id="w1", model="m", max_chunks=1, max_model_len=64)
    session.commit()


def look_after(session: Session, seconds: float) -> None:
    """Take a snapshot that comes so long after the one before."""
    session.execute(
        text("UPDATE serving_rate SET measured_at = clock_timestamp() - make_interval(secs => :s)"), {"s": seconds}
    )
    snapshot.take(session)
    session.commit()


@pytest.fixture
def measured(session: Session, run: Run) -> list[Batch]:
    """Two batches of one tenant, and a worker that has finished four lines of the first in 3.2 s: 10 tokens/s."""
    batches = [run(8, expires_at=datetime.now(UTC) + timedelta(hours=hours)) for hours in (1, 2)]
    worker(session)
    claim = claim_one(session, chunk_ids(session, batches[0])[0])
    look_after(session, 0)
    flush(session, claim, range(4))
    look_after(session, 3.2)
    return batches


@pytest.mark.parametrize(
    ("counters", "seconds"), [("{}", 1.0), ('{"ledger_id": 0}', 7200.0)], ids=["none noted", "noted long ago"]
)
def test_a_look_that_follows_no_recent_one_measures_nothing_and_forgets_nothing(
    session: Session, measured: list[Batch], counters: str, seconds: float
) -> None:
    before = session.scalar(text("SELECT tokens_per_second FROM serving_rate"))
    session.execute(text("UPDATE serving_rate SET counters = CAST(:counters AS jsonb)"), {"counters": counters})
    look_after(session, seconds)
    last = "SELECT tokens_per_second, (counters->>'ledger_id')::bigint = (SELECT max(id) FROM ledger) FROM serving_rate"
    assert session.execute(text(last)).one() == (before, True)


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
    # 300 tokens were estimated for eight lines; those that are finished used 8 each, and so will the others.
    assert seconds_left(session, first) == pytest.approx(4 * 8 / rate, abs=1)
    assert seconds_left(session, second) == pytest.approx(12 * 8 / rate, abs=1)
    assert (first.position, first.waits_for) == (0, None)
    assert (second.position, second.waits_for) == (
        1,
        "Behind 32 tokens of class normal; your share is all of 1 worker at 10 tokens/s.",
    )


def test_a_rate_is_known_once_half_of_the_only_chunk_is_finished(session: Session, run: Run) -> None:
    batch = run(4)
    worker(session)
    claim = claim_one(session, chunk_ids(session, batch)[0])
    look_after(session, 0)
    flush(session, claim, [0], flush_no=1)
    look_after(session, 1)
    assert told(session, batch).ends_at is None
    flush(session, claim, [1], flush_no=2)
    look_after(session, 1)
    rate = session.scalar(text("SELECT tokens_per_second FROM serving_rate"))
    assert 0 < rate <= 8.1  # less where more than the second passed in truth
    assert seconds_left(session, told(session, batch)) == pytest.approx(2 * 8 / rate, abs=1)


def test_without_finished_lines_there_is_a_place_and_no_end(session: Session, run: Run) -> None:
    batches = [run(4), run(4)]
    worker(session)
    claim_one(session, chunk_ids(session, batches[0])[0])
    look_after(session, 0)
    look_after(session, 10)
    outlook = told(session, batches[1])
    assert (outlook.ends_at, outlook.position, outlook.waits_for) == (None, 1, None)
    assert (told(session, batches[0]).running_lines, outlook.running_lines) == (4, 0)


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
    assert len(statements) == num_of_one <= 3
