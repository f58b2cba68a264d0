"""Tests that limits hold: lines are covered before they run, and any end of a lease returns its cover once."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.accounts.covers import fitting
from jobs.audit.audit import audit
from jobs.batches.lost_leases import reap_suspects, return_leases
from jobs.chunks import covering, leasing, waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.errors import FencedOutError
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.jobs.chunks.builders import Run
from tests.jobs.chunks.covers import claim_next, covers, end_lease, flush, limit, reap, states

# --- groups of lines -------------------------------------------------------------------------------------------------


def test_lines_are_covered_by_what_their_batch_has_reserved_and_then_by_the_budget(
    session: Session, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 150)
    run(4, reserved_tokens=100)
    claim = claim_next(session)
    assert covering.cover(session, claim, [60], covered=0).fits == [True]
    assert budgets.quota(session, tenant.id).reserved == 100
    found = covering.cover(session, claim, [70, 30, 50, 10], covered=60)
    assert (found.fits, found.tokens) == ([True, False, False, True], 80), "a smaller one after one that does not fit"
    assert found.quota == budgets.Quota(limit=150, reserved=100, spent=0)
    assert budgets.quota(session, tenant.id).available == 10
    assert covers(session) == (140, 140, 140)


def test_what_fits_is_chosen_in_order() -> None:
    assert fitting([5, 4, 3, 2], 10) == ([True, True, False, False], 9, 0)
    assert fitting([5, 4], None) == ([True, True], 9, 0)
    assert fitting([11, 0], 0) == ([False, True], 0, 0)


def test_ended_lines_take_their_cover_along_and_leave_the_rest_of_it_to_the_batch(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 100)
    run(4, reserved_tokens=40)
    claim = claim_next(session)
    covering.cover(session, claim, [25, 25, 25, 25], covered=0)
    flush(session, claim, {0: 25, 1: 5}, covered=50)
    assert covers(session) == (50, 50, 70)
    assert budgets.quota(session, tenant.id) == budgets.Quota(limit=100, reserved=70, spent=30)
    assert covering.cover(session, claim, [20], covered=50).fits == [True], "what the second line did not use"
    with maker() as fresh:
        assert audit(fresh) == []


def test_a_flush_and_a_cover_that_are_repeated_after_an_unknown_commit_count_once(
    session: Session, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 1000)
    run(4, reserved_tokens=100)
    claim = claim_next(session)
    for _ in range(2):
        assert covering.cover(session, claim, [70, 50], covered=0).tokens == 120
        assert covers(session) == (120, 120, 120)
    for _ in range(2):
        flush(session, claim, {0: 60}, covered=50)
        assert covers(session) == (50, 50, 60)
    assert budgets.quota(session, tenant.id).spent == 60


def test_two_chunks_cannot_both_take_the_last_tokens(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 1000)
    run(32, reserved_tokens=100)
    claims = [claim_next(session) for _ in range(8)]
    barrier, taken = threading.Barrier(8), []

    def work(claim: ClaimedChunk) -> None:
        barrier.wait()
        with maker.begin() as own:
            taken.append(covering.cover(own, claim, [300], covered=0).tokens)

    threads = [threading.Thread(target=work, args=(claim,)) for claim in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [0] * 5 + [300] * 3
    assert covers(session) == (900, 900, 900)


# --- ends of leases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["release", "lay_aside", "reap", "return", "split"])
def test_a_lease_that_ends_gives_its_cover_back_once(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run, tenant: Tenant, end: str
) -> None:
    limit(session, tenant, 100)
    run(4, reserved_tokens=40)
    claim = claim_next(session)
    covering.cover(session, claim, [30, 30], covered=0)
    session.commit()
    if end == "release":
        leasing.release(session, claim)
    elif end == "lay_aside":
        waiting.lay_aside(session, claim, tokens=70)
    elif end == "return":
        return_leases(session)
    else:
        leasing.start(session, claim)
        session.execute(text("UPDATE chunk SET losses = :losses"), {"losses": 5 if end == "split" else 0})
        end_lease(session, claim)
        reap(session)
        session.commit()
        reap_suspects(maker, storage, lease=timedelta(0))
    session.commit()
    assert covers(session) == (0, 0, 60)
    assert ("split" in states(session)) == (end == "split")
    with pytest.raises(FencedOutError):
        covering.cover(session, claim, [1], covered=60)
    session.rollback()
    with pytest.raises(FencedOutError):
        flush(session, claim, {0: 1}, covered=0)
    session.rollback()
    assert covers(session) == (0, 0, 60)


# --- limits that change ----------------------------------------------------------------------------------------------


def test_without_a_limit_nothing_is_covered_and_one_that_is_set_meanwhile_holds_from_the_next_claim_on(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    run(8, reserved_tokens=50)
    first = claim_next(session)
    assert not first.is_limited
    limit(session, tenant, 60)
    second = claim_next(session)
    assert second.is_limited
    covering.cover(session, second, [45], covered=0)
    flush(session, first, {0: 500}, covered=0)
    quota = budgets.quota(session, tenant.id)
    assert (quota.spent, quota.reserved) == (500, 45), "what is covered stays so"
    assert covering.cover(session, second, [1], covered=45).tokens == 0
    flush(session, second, {4: 40}, covered=0)
    with maker() as fresh:
        assert audit(fresh) == []


def test_a_limit_below_what_is_committed_stops_growth_and_not_what_is_accepted(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 1000)
    run(4, reserved_tokens=100)
    claim = claim_next(session)
    limit(session, tenant, 10)
    found = covering.cover(session, claim, [60, 60], covered=0)
    assert found.fits == [True, False]
    flush(session, claim, {0: 60}, covered=0)
    with maker() as fresh:
        assert audit(fresh) == []
