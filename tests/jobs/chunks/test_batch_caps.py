"""Tests of batch caps: lines start only if they have room, whatever their tenant has; then the batch is exhausted."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.chunks import claiming, covering, leasing, used_caps, waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.settings import Settings
from jobs.tables import Batch, Tenant
from tests.jobs.chunks.builders import Run
from tests.jobs.chunks.covers import LEASE, answer, claim_next, flush, states


@pytest.fixture(autouse=True)
def audited(maker: sessionmaker[Session]) -> Iterator[None]:
    yield
    with maker() as fresh:
        assert audit(fresh) == []


@pytest.fixture
def settings() -> Settings:
    return Settings(chunk_lines=2)


def cover(session: Session, claim: ClaimedChunk, *costs: tuple[int, int], covered: int = 0) -> list[bool]:
    """Cover lines of these tokens and amounts of money each."""
    tokens, picos = [cost[0] for cost in costs], [cost[1] for cost in costs]
    found = covering.cover(session, claim, tokens, covered=covered, picos=picos)
    session.commit()
    return list(found.fits)


def lay_aside(session: Session, claim: ClaimedChunk, tokens: int, picos: int = 0) -> None:
    waiting.lay_aside(session, claim, tokens=tokens, picos=picos)
    session.commit()


def is_used_up(session: Session, batch: Batch) -> bool:
    found = used_caps.is_used_up(session, batch.id)
    session.commit()
    return found


@pytest.mark.parametrize("limit", [None, 10_000])
def test_a_line_must_fit_into_the_caps_in_tokens_and_in_money_whatever_its_tenant_has(
    session: Session, run: Run, tenant: Tenant, limit: int | None
) -> None:
    budgets.set_limit(session, tenant.id, limit)
    run(2, reserved_tokens=500, cap_tokens=100, cap_picos=1000)
    claim = claim_next(session)
    assert claim.is_limited
    assert cover(session, claim, (60, 700), (50, 100), (30, 400), (40, 300)) == [True, False, False, True]


def test_a_batch_without_caps_of_a_tenant_without_a_limit_covers_nothing(session: Session, run: Run) -> None:
    run(2)
    assert not claim_next(session).is_limited


def test_what_was_used_counts_and_what_a_line_leaves_is_room_again(session: Session, run: Run) -> None:
    batch = run(2, cap_tokens=100)
    claim = claim_next(session)
    assert cover(session, claim, (90, 0), (20, 0)) == [True, False]
    flush(session, claim, {0: 30}, covered=0)
    session.refresh(batch)
    assert (batch.input_tokens, batch.covered_tokens) == (30, 0)
    assert cover(session, claim, (71, 0)) == [False]
    assert cover(session, claim, (70, 0)) == [True]
    flush(session, claim, {1: 70}, covered=0, flush_no=1)


def test_a_chunk_waits_and_is_not_woken_while_the_caps_have_no_room_and_then_the_batch_is_used_up(
    session: Session, run: Run
) -> None:
    batch = run(4, cap_tokens=100)
    first = claim_next(session)
    assert cover(session, first, (80, 0)) == [True]
    second = claim_next(session)
    assert cover(session, second, (40, 0), (60, 0)) == [False, False]
    lay_aside(session, second, 40)
    waiting.wake(session)
    session.commit()
    assert (states(session), is_used_up(session, batch)) == (["leased", "waiting"], False), "a line runs"
    flush(session, first, {0: 75}, covered=0)
    assert cover(session, first, (30, 0)) == [False]
    lay_aside(session, first, 30)
    waiting.wake(session)
    session.commit()
    assert states(session) == ["waiting", "waiting"]
    assert is_used_up(session, batch)


def test_a_line_that_leaves_enough_wakes_the_others(session: Session, run: Run) -> None:
    batch = run(4, cap_tokens=100)
    first = claim_next(session)
    cover(session, first, (80, 0))
    second = claim_next(session)
    cover(session, second, (40, 0))
    lay_aside(session, second, 40)
    flush(session, first, {0: 60}, covered=0)
    assert not is_used_up(session, batch)
    waiting.wake(session)
    session.commit()
    assert states(session) == ["leased", "ready"]


def test_a_chunk_that_nobody_has_tried_is_tried_before_the_batch_is_used_up(session: Session, run: Run) -> None:
    batch = run(4, cap_tokens=10)  # less than the estimate of any line
    first = claim_next(session)
    assert cover(session, first, (50, 0)) == [False]
    lay_aside(session, first, 50)
    assert states(session) == ["waiting", "waiting"], "the other one by its estimate"
    assert not is_used_up(session, batch)
    waiting.wake(session)
    session.commit()
    second = claim_next(session)
    lay_aside(session, second, 40)
    assert is_used_up(session, batch)


def test_money_alone_ends_a_batch_too(session: Session, run: Run) -> None:
    batch = run(2, cap_picos=100)
    claim = claim_next(session)
    assert cover(session, claim, (5, 101), (1, 200)) == [False, False]
    lay_aside(session, claim, 5, 101)
    waiting.wake(session)
    session.commit()
    assert is_used_up(session, batch)


def test_whatever_runs_and_ends_no_batch_uses_more_than_its_cap(session: Session, run: Run) -> None:
    chance = random.Random(7)
    batch = run(40, cap_tokens=300)
    used = 0
    for _ in range(60):
        waiting.wake(session)
        session.commit()
        claim = claiming.claim_next(session, model="m", worker_id="w", lease=LEASE)
        session.commit()
        if claim is None:
            break
        todo = range(claim.first_line, claim.first_line + claim.num_requests)
        done = set(session.scalars(text("SELECT line_no FROM result WHERE batch_id = :id"), {"id": batch.id}))
        costs = {line_no: chance.randrange(5, 40) for line_no in todo if line_no not in done}
        fits = cover(session, claim, *((cost, 0) for cost in costs.values()))
        run_now = [line_no for line_no, does in zip(costs, fits, strict=True) if does]
        ends = {line_no: chance.randrange(1, costs[line_no] + 1) for line_no in run_now}
        used += sum(ends.values())
        results = [answer(claim, line_no, tokens=tokens) for line_no, tokens in ends.items()]
        leasing.flush(session, claim, results, flush_no=0, lease=LEASE, covered=0)
        if len(run_now) == len(costs):
            leasing.complete(session, claim)
        else:
            left = [cost for line_no, cost in costs.items() if line_no not in ends]
            waiting.lay_aside(session, claim, tokens=min(left))
        session.commit()
        session.refresh(batch)
        assert batch.input_tokens == used <= 300
    assert is_used_up(session, batch)
    assert used > 250
