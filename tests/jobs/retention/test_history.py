"""Tests of old batches: less is kept of them, but no sum changes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.audit.audit import audit
from jobs.audit.findings import Finding
from jobs.batches import sweeps
from jobs.chunks import fleet, leasing
from jobs.errors import FencedOutError
from jobs.retention import history
from jobs.served_models import set_prices
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, Ledger, Worker
from tests.jobs.batches.control import finalise
from tests.jobs.chunks.builders import chunk_ids, claim_one, flush

Make = Callable[..., Any]
AGE = timedelta(days=90)
SUMS = """
    SELECT sum(num_entries), sum(num_results), sum(input_tokens), sum(cached_tokens), sum(output_tokens),
        sum(cost_picos), sum(worker_microseconds)
    FROM ledger
"""
# As if it had run `days` ago, and its day of results had been dropped.
AGED = """
    UPDATE ledger SET created_at = created_at - make_interval(days => :days);
    UPDATE batch SET created_at = created_at - make_interval(days => :days),
        completed_at = completed_at - make_interval(days => :days),
        cancelled_at = cancelled_at - make_interval(days => :days);
    DELETE FROM result
"""


def age(session: Session, days: int) -> None:
    for statement in AGED.split(";"):
        session.execute(text(statement), {"days": days} if ":days" in statement else {})
    session.commit()


@pytest.fixture
def ended(session: Session, run: Make, storage: Storage) -> Batch:
    """A completed batch of 8 lines in two chunks, flushed line by line, the last chunk at another price."""
    batch: Batch = run(8)
    for chunk_id in chunk_ids(session, batch):
        claim = claim_one(session, chunk_id)
        for line_no in range(claim.first_line, claim.first_line + 4):
            flush(session, claim, [line_no], flush_no=line_no)
        leasing.complete(session, claim)
        set_prices(session, "m", input_price_picos=7)
        session.commit()
    sweeps.finish_ready(session)
    session.commit()
    assert finalise(session, storage, batch.id) == "completed"
    session.commit()
    return batch


def sums(session: Session) -> tuple[Any, ...]:
    session.rollback()
    return tuple(session.execute(text(SUMS)).one())


def num_rows(session: Session) -> tuple[int, int]:
    """Count chunks and ledger entries."""
    session.rollback()
    return len(session.scalars(select(Chunk.id)).all()), len(session.scalars(select(Ledger.id)).all())


def findings(maker: sessionmaker[Session]) -> list[Finding]:
    with maker() as fresh:
        return audit(fresh)


@pytest.mark.parametrize("num_rows_at_once", [2, 10_000])
def test_an_old_batch_loses_its_chunks_and_keeps_an_entry_a_day_and_price(
    session: Session,
    maker: sessionmaker[Session],
    ended: Batch,
    monkeypatch: pytest.MonkeyPatch,
    num_rows_at_once: int,
) -> None:
    monkeypatch.setattr(history, "_ROWS", num_rows_at_once)
    age(session, 100)
    # The first two entries on the day before.
    session.execute(text("UPDATE ledger SET created_at = created_at - interval '1 day' WHERE flush_no < 2"))
    session.execute(text("UPDATE ledger SET worker_microseconds = flush_no"))
    session.execute(text("UPDATE batch SET worker_microseconds = 28"))
    session.commit()
    before, found = sums(session), num_rows(session)
    assert (found, findings(maker)) == ((2, 8), [])
    assert history.roll_up(maker, age=AGE) == 1
    assert num_rows(session) == (0, 3)
    assert sums(session) == before
    assert sorted(session.scalars(select(Ledger.num_entries))) == [2, 2, 4]
    assert findings(maker) == []
    assert history.roll_up(maker, age=AGE) == 0
    assert (num_rows(session), sums(session)) == ((0, 3), before)


def test_the_audit_still_finds_a_wrong_bill_of_a_batch_whose_day_was_dropped(
    session: Session, maker: sessionmaker[Session], ended: Batch
) -> None:
    age(session, 100)
    history.roll_up(maker, age=AGE)
    session.execute(text("UPDATE ledger SET output_tokens = output_tokens + 1 WHERE flush_no = 0"))
    session.commit()
    said = [finding.message for finding in findings(maker) if finding.subject == ended.id]
    assert any("the ledger has output_tokens 25 and the results give 24" in message for message in said)


def test_an_entry_with_a_wrong_cost_stays_as_it_is(
    session: Session, maker: sessionmaker[Session], ended: Batch
) -> None:
    """Two wrong ones that cancel out are two findings, not none."""
    age(session, 100)
    for flush_no, error in ((0, 5), (1, -5)):
        values = {"flush_no": flush_no, "error": error}
        session.execute(text("UPDATE ledger SET cost_picos = cost_picos + :error WHERE flush_no = :flush_no"), values)
    session.commit()
    history.roll_up(maker, age=AGE)
    assert num_rows(session) == (0, 4)
    assert any("2 ledger entries have cost_picos" in finding.message for finding in findings(maker))


@pytest.mark.parametrize("column", ["cached_input_price_picos", "priority"])
def test_entries_of_other_prices_of_cached_tokens_or_of_another_class_stay_apart(
    session: Session, maker: sessionmaker[Session], ended: Batch, column: str
) -> None:
    age(session, 100)
    value = {"cached_input_price_picos": 7, "priority": "bulk"}[column]
    changed = f"UPDATE ledger SET {column} = :value, cost_picos = cost_picos - (input_price_picos - 7) * cached_tokens"
    unchanged = f"UPDATE ledger SET {column} = :value"
    session.execute(text(f"{unchanged if column == 'priority' else changed} WHERE flush_no = 0"), {"value": value})
    session.execute(text("UPDATE batch SET cost_picos = (SELECT sum(cost_picos) FROM ledger)"))
    session.commit()
    before = sums(session)
    history.roll_up(maker, age=AGE)
    assert (num_rows(session), sums(session), findings(maker)) == ((0, 3), before, [])


def test_entries_of_lines_that_left_the_house_stay_apart_with_what_they_cost(
    session: Session, maker: sessionmaker[Session], ended: Batch
) -> None:
    age(session, 100)
    session.execute(text("UPDATE ledger SET spill_picos = flush_no + 5 WHERE flush_no < 2"))
    session.commit()
    before, paid = sums(session), session.scalar(text("SELECT sum(spill_picos) FROM ledger"))
    history.roll_up(maker, age=AGE)
    assert (sums(session), session.scalar(text("SELECT sum(spill_picos) FROM ledger"))) == (before, paid)
    kept = session.execute(text("SELECT spill_picos IS NULL, count(*) FROM ledger GROUP BY 1")).all()
    assert {is_of_house for is_of_house, _ in kept} == {False, True}
    assert num_rows(session)[1] < 4


KEPT = {
    "it ended lately": "UPDATE batch SET completed_at = now() - interval '89 days'",
    "it has not ended": "UPDATE batch SET state = 'in_progress', completed_at = NULL",
    "its results are kept": "UPDATE batch SET created_at = now() - interval '10 hours', completed_at = created_at",
}


@pytest.mark.parametrize("reason", list(KEPT))
def test_a_batch_stays_whole_while(session: Session, maker: sessionmaker[Session], ended: Batch, reason: str) -> None:
    age(session, 100)
    session.execute(text(KEPT[reason]))
    session.commit()
    # The youngest day with a partition is today: data kept by it is younger than any other age.
    assert history.roll_up(maker, age=timedelta(hours=9) if "results" in reason else AGE) == 0
    assert num_rows(session) == (2, 8)


def test_a_worker_that_comes_back_after_all_that_is_fenced_out_and_bills_nothing(
    session: Session, maker: sessionmaker[Session], run: Make
) -> None:
    batch = run(4)
    claim = claim_one(session, chunk_ids(session, batch)[0])
    flush(session, claim, [0])
    session.execute(text("UPDATE chunk SET state = 'withdrawn', lease_until = NULL"))
    session.execute(text("UPDATE batch SET state = 'cancelled', cancelled_at = now()"))
    session.commit()
    age(session, 100)
    assert history.roll_up(maker, age=AGE) == 1
    for flush_no in (0, 1):
        with pytest.raises(FencedOutError):
            flush(session, claim, [1], flush_no=flush_no)
        session.rollback()
    assert num_rows(session) == (0, 1)


def test_two_who_roll_up_at_once_count_nothing_twice(
    session: Session, maker: sessionmaker[Session], ended: Batch
) -> None:
    age(session, 100)
    before = sums(session)
    with maker() as first:
        due = history._lock_due(first, age=AGE, after=(ended.created_at - timedelta(days=1000), ""))
        assert [batch.id for batch in due] == [ended.id]
        with ThreadPoolExecutor(1) as threads:  # neither waits for the other nor touches its rows
            assert threads.submit(history.roll_up, maker, age=AGE).result(timeout=60) == 0
        assert history._shorten(first, [ended.id])
        first.commit()
    assert history.roll_up(maker, age=AGE) == 0
    assert (num_rows(session), sums(session)) == ((0, 2), before)


def test_what_is_cut_off_has_changed_nothing_and_goes_on(
    session: Session, maker: sessionmaker[Session], ended: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(session, 100)
    before = sums(session)
    with monkeypatch.context() as patched:
        patched.setattr(history, "_NOTE", text("SELECT 1 / 0"))
        with pytest.raises(Exception, match="division by zero"):
            history.roll_up(maker, age=AGE)
    assert (num_rows(session), sums(session)) == ((2, 8), before)
    assert history.roll_up(maker, age=AGE) == 1
    assert sums(session) == before


def test_workers_that_have_long_been_silent_are_forgotten(session: Session, maker: sessionmaker[Session]) -> None:
    for worker_id, days in (("gone", 8), ("silent", 6), ("here", 0)):
        fleet.register(session, worker_id=worker_id, model="m", max_chunks=1, max_model_len=64)
        values = {"id": worker_id, "days": days}
        query = "UPDATE worker SET heartbeat_at = heartbeat_at - make_interval(days => :days) WHERE id = :id"
        session.execute(text(query), values)
    session.commit()
    assert history.forget_workers(maker) == 1
    assert set(session.scalars(select(Worker.id))) == {"silent", "here"}
