"""Tests of flushes: results once, money once, and nothing from a worker that lost its lease."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.accounts.limits import set_limits
from jobs.accounts.money import rounded_micros
from jobs.accounts.prices import Prices, cost_picos
from jobs.audit.audit import audit
from jobs.batches.lost_leases import Reaped
from jobs.chunks import leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult, Wasted
from jobs.errors import FencedOutError
from jobs.overview.spending import wasted_by_model
from jobs.served_models import MAX_PRICE_PICOS, set_prices
from jobs.storage import Storage
from jobs.tables import Batch, Ledger, Result, Tenant
from tests.jobs.chunks.builders import (
    LEASE,
    Run,
    answer,
    answers,
    chunk_ids,
    claim_first,
    claim_one,
    end_lease,
    expected,
    flush,
    lose,
    reap,
    states,
    totals,
)


def messages(maker: sessionmaker[Session]) -> list[str]:
    with maker() as fresh:
        return [finding.message for finding in audit(fresh)]


def test_a_flush_stores_counts_and_bills_in_one_transaction(session: Session, run: Run, tenant: Tenant) -> None:
    batch = run(4, reserved_tokens=100)
    claim = claim_first(session, batch)
    outcome = flush(session, claim, [0, 2])
    assert (outcome.num_inserted, outcome.batch_wanted) == (2, True)
    assert totals(session, batch) == expected(2, tokens=16)
    assert (batch.cached_tokens, rounded_micros(cost_picos(batch)), batch.reserved_tokens) == (2, 10 * 1 + 6 * 2, 84)
    assert budgets.quota(session, tenant.id).reserved == 84
    entry = session.scalars(select(Ledger)).one()
    assert (entry.chunk_id, entry.fence, entry.flush_no, entry.num_results) == (claim.chunk_id, 1, 0, 2)
    assert (entry.input_tokens, entry.cached_tokens, entry.output_tokens, int(entry.cost_picos)) == (
        10,
        2,
        6,
        22_000_000,
    )
    assert (batch.reasoning_tokens, entry.reasoning_tokens) == (4, 4)
    assert leasing.lines_done(session, claim) == {0, 2}


def test_a_flush_is_four_statements(session: Session, run: Run, statements: list[tuple[str, Any]]) -> None:
    claim = claim_first(session, run(4, reserved_tokens=100))
    session.commit()
    statements.clear()
    flush(session, claim, [0, 2])
    kinds = [next(word for word in KINDS if word in statement) for statement, _ in statements]
    assert kinds == ["extended AS", "INSERT INTO result", "INSERT INTO ledger", "UPDATE budget"]


KINDS = ("extended AS", "INSERT INTO result", "INSERT INTO ledger", "UPDATE budget", "")


def test_a_flush_sent_again_counts_its_time_once(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    for _ in range(2):
        leasing.flush(session, claim, answers(claim, [0, 1]), flush_no=0, lease=LEASE, worker_microseconds=7)
        session.commit()
    session.refresh(batch)
    assert (batch.worker_microseconds, session.scalars(select(Ledger.worker_microseconds)).all()) == (7, [7])


@pytest.mark.parametrize(
    ("price", "shown"),
    [(60_000, 2), (65_000, 2)],  # 0.48 and 0.52 micro-units per line: rounded line by line, four lines would be 0 and 4
)
def test_a_bill_does_not_depend_on_how_results_were_flushed(session: Session, run: Run, price: int, shown: int) -> None:
    whole, by_line = run(96), run(4)
    set_prices(session, "m", input_price_picos=price, output_price_picos=price)
    for chunk_id in chunk_ids(session, whole):
        claim = claim_one(session, chunk_id)
        flush(session, claim, range(claim.first_line, claim.first_line + claim.num_lines))
    claim = claim_first(session, by_line)
    for line_no in range(4):
        flush(session, claim, [line_no], flush_no=line_no)
    for batch in (whole, by_line):
        session.refresh(batch)
    assert (int(by_line.cost_picos), int(whole.cost_picos)) == (4 * 8 * price, 96 * 8 * price)
    assert rounded_micros(cost_picos(by_line)) == shown


def test_each_part_of_a_bill_has_the_price_of_its_claim(session: Session, run: Run) -> None:
    batch = run(8)
    first, second = chunk_ids(session, batch)
    claims = [claim_one(session, first)]
    set_prices(session, "m", input_price_picos=7, output_price_picos=MAX_PRICE_PICOS)
    claims.append(claim_one(session, second))
    for claim in claims:
        flush(session, claim, [claim.first_line])
    query = select(Ledger.input_price_picos, Ledger.output_price_picos, Ledger.cost_picos).order_by(Ledger.id)
    dear = 5 * 7 + 3 * MAX_PRICE_PICOS
    rows = [tuple(int(value or 0) for value in row) for row in session.execute(query)]
    assert rows == [(1_000_000, 2_000_000, 11_000_000), (7, MAX_PRICE_PICOS, dear)]
    session.refresh(batch)
    assert rounded_micros(cost_picos(batch)) == (11_000_000 + dear + 500_000) // 10**6


def test_tokens_that_the_prefix_cache_had_cost_their_own_price(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    batch = run(4)
    set_prices(session, "m", cached_input_price_picos=100_000)
    flush(session, claim_first(session, batch), [0, 2])  # 10 tokens of prompts, 2 of them cached, and 6 of answers
    session.refresh(batch)
    assert int(batch.cost_picos) == 8 * 1_000_000 + 2 * 100_000 + 6 * 2_000_000
    entry = session.scalars(select(Ledger)).one()
    assert (entry.input_price_picos, entry.cached_input_price_picos, entry.priority) == (1_000_000, 100_000, "normal")
    assert messages(maker) == []
    session.execute(update(Ledger).values(cached_input_price_picos=100_001))
    session.commit()
    assert messages(maker) == [
        "1 ledger entries have cost_picos 20200000 and their tokens at their prices give 20200002"
    ]


@pytest.mark.parametrize(("priority", "factor"), [("urgent", 2.5), ("normal", 1), ("bulk", 0.5)])
def test_a_class_has_its_own_prices(session: Session, run: Run, priority: str, factor: float) -> None:
    batch = run(4, priority=priority)
    set_prices(session, "m", cached_input_price_picos=100_000, urgent_price_percent=250, bulk_price_percent=50)
    flush(session, claim_first(session, batch), [0, 2])
    session.refresh(batch)
    assert int(batch.cost_picos) == factor * 20_200_000
    assert session.scalars(select(Ledger.priority)).all() == [priority]


def test_urgent_lines_that_run_in_the_next_class_have_its_prices(session: Session, run: Run, tenant: Tenant) -> None:
    batch = run(4, priority="urgent")
    set_prices(session, "m", urgent_price_percent=200)
    set_limits(session, tenant.id, {"urgent_tokens": 0})
    session.commit()
    flush(session, claim_first(session, batch), [0, 2])
    session.refresh(batch)
    assert (int(batch.cost_picos), session.scalars(select(Ledger.priority)).all()) == (22_000_000, ["normal"])


def test_a_price_of_a_class_is_a_whole_number_of_micro_units(session: Session, run: Run) -> None:
    """It is a price, not a rounded amount: bills at it are exact, and the audit knows it."""
    batch = run(4, priority="bulk")
    set_prices(session, "m", input_price_picos=3, output_price_picos=1, bulk_price_percent=50)
    assert claim_first(session, batch).prices == Prices(input_picos=2, output_picos=1)


def test_waste_is_noted_once_beside_the_bill(session: Session, maker: sessionmaker[Session], run: Run) -> None:
    claim = claim_first(session, run(4))
    for _ in range(2):
        leasing.flush(session, claim, answers(claim, [0]), flush_no=0, lease=LEASE, wasted=Wasted(input_tokens=7))
        session.commit()
    for _ in range(2):
        leasing.flush(session, claim, [], flush_no=1, lease=LEASE, wasted=Wasted(input_tokens=1, output_tokens=9))
        session.commit()
    entries = session.scalars(select(Ledger).order_by(Ledger.id)).all()
    assert [(each.num_results, each.wasted_input_tokens, each.wasted_output_tokens) for each in entries] == [
        (1, 7, 0),
        (0, 1, 9),
    ]
    assert totals(session, session.get_one(Batch, claim.batch_id)) == expected(1, tokens=8)
    [wasted] = wasted_by_model(session)
    assert (wasted.model, wasted.input_tokens, wasted.output_tokens) == (claim.model, 8, 9)
    assert messages(maker) == []


def test_a_rolled_back_flush_leaves_nothing(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    leasing.flush(session, claim, answers(claim, [0]), flush_no=0, lease=LEASE)
    session.rollback()
    assert totals(session, batch) == expected(0, tokens=0)


def test_a_flush_repeated_after_an_unknown_commit_bills_nothing_twice(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    flush(session, claim, [0, 1])
    assert flush(session, claim, [0, 1]).num_inserted == 0
    assert totals(session, batch) == expected(2, tokens=16)


def test_lines_that_have_a_result_are_not_billed_by_a_later_flush(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    flush(session, claim, [0, 1])
    assert flush(session, claim, [1, 2], flush_no=1).num_inserted == 1
    assert totals(session, batch) == expected(3, tokens=24)
    assert list(session.scalars(select(Result.result_no).order_by(Result.result_no))) == [1, 2, 3]


def test_a_flush_number_cannot_be_used_for_other_results(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    flush(session, claim, [0])
    with pytest.raises(IntegrityError):
        leasing.flush(session, claim, answers(claim, [1]), flush_no=0, lease=LEASE)
    session.rollback()
    assert totals(session, batch) == expected(1, tokens=8)


def test_error_results_are_counted_as_failed(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    results = [LineResult(line_no=0, line=b"{}", status_code=400), LineResult(line_no=1, line=b"{}", status_code=None)]
    leasing.flush(session, claim, [*results, answer(claim, 2)], flush_no=0, lease=LEASE)
    session.refresh(batch)
    assert (batch.num_completed, batch.num_failed) == (1, 2)


def test_truncated_answers_are_counted_once_however_often_they_are_flushed(session: Session, run: Run) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    cut = [replace(answer(claim, line_no), is_truncated=True) for line_no in (0, 2)]
    leasing.flush(session, claim, [*cut, answer(claim, 1)], flush_no=0, lease=LEASE)
    leasing.flush(session, claim, [*cut, replace(answer(claim, 3), is_truncated=True)], flush_no=1, lease=LEASE)
    session.refresh(batch)
    assert (batch.num_completed, batch.num_truncated) == (4, 3)
    assert session.scalars(select(Ledger.num_truncated).order_by(Ledger.id)).all() == [2, 1]


def test_a_line_of_another_chunk_is_our_own_mistake(session: Session, run: Run) -> None:
    claim = claim_first(session, run(8))
    with pytest.raises(AssertionError, match="outside"):
        leasing.flush(session, claim, answers(claim, [4]), flush_no=0, lease=LEASE)


def test_a_zombies_flush_is_refused_after_the_chunk_was_claimed_again(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run
) -> None:
    batch = run(4)
    zombie = claim_first(session, batch)
    assert lose(session, storage, zombie) == [Reaped.READY]
    heir = claim_first(session, batch, "w2")
    assert heir.fence == zombie.fence + 1
    with maker() as other, pytest.raises(FencedOutError):
        leasing.flush(other, zombie, answers(zombie, [0, 1]), flush_no=0, lease=LEASE)
    for act in (leasing.complete, leasing.release):
        with maker() as other, pytest.raises(FencedOutError):
            act(other, zombie)
    with maker() as other, pytest.raises(FencedOutError):
        leasing.extend(other, zombie, LEASE)
    flush(session, heir, [0, 1, 2, 3])
    assert totals(session, batch) == expected(4, tokens=32)


def test_a_zombies_flush_is_refused_even_before_anybody_claims_again(
    session: Session, storage: Storage, run: Run
) -> None:
    zombie = claim_first(session, run(4))
    lose(session, storage, zombie)
    with pytest.raises(FencedOutError):
        flush(session, zombie, [0])


def test_a_late_flush_that_comes_before_the_reaper_keeps_the_chunk(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run
) -> None:
    batch = run(4)
    claim = claim_first(session, batch)
    end_lease(session, claim)
    with maker.begin() as worker:
        leasing.flush(worker, claim, answers(claim, [0]), flush_no=0, lease=LEASE)
        assert reap(session, storage) == []  # does not wait for the row either
        session.commit()
    assert reap(session, storage) == []
    assert states(session, batch) == ["leased"]


def test_flushes_of_many_workers_number_their_results_without_gaps(
    session: Session, maker: sessionmaker[Session], run: Run
) -> None:
    batch = run(24)
    claims = [claim_one(session, chunk_id, f"w{chunk_id}") for chunk_id in chunk_ids(session, batch)]

    def work(claim: ClaimedChunk) -> None:
        for flush_no, line_no in enumerate(range(claim.first_line, claim.first_line + 4)):
            with maker.begin() as own:
                leasing.flush(own, claim, answers(claim, [line_no]), flush_no=flush_no, lease=LEASE)

    threads = [threading.Thread(target=work, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals(session, batch) == expected(24, tokens=24 * 8)
    assert list(session.scalars(select(Result.result_no).order_by(Result.result_no))) == list(range(1, 25))
