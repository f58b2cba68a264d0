"""Tests that lines start only if every budget of day, month and key has room; others wait until a window turns."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets, keys, window_budgets
from jobs.accounts.allowances import Allowance
from jobs.accounts.window_budgets import NewBudget
from jobs.audit.audit import audit
from jobs.chunks import claiming, covering, leasing, wait_reasons, waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.states import BudgetUnit, BudgetWindow, UncoveredLines
from jobs.tables import Batch, Tenant
from tests.jobs.chunks.builders import Run
from tests.jobs.chunks.covers import LEASE, answer, claim_next, reap, states

TOKENS, MONEY = BudgetUnit.TOKENS, BudgetUnit.MONEY


def limit(session: Session, tenant: Tenant, unit: BudgetUnit, amount: int, **more: Any) -> Allowance:
    wanted = NewBudget(**{"unit": unit, "window": BudgetWindow.DAY, "limit": amount, **more})
    found = window_budgets.set_budget(session, tenant.id, wanted)
    session.commit()
    return found


def cover(session: Session, claim: ClaimedChunk, *costs: tuple[int, int]) -> list[bool]:
    """Cover lines of these tokens and amounts of money each."""
    tokens, picos = [cost[0] for cost in costs], [cost[1] for cost in costs]
    fits = covering.cover(session, claim, tokens, covered=0, picos=picos).fits
    session.commit()
    return list(fits)


def reserved(session: Session, tenant: Tenant) -> list[int]:
    session.commit()
    return [found.reserved for found in window_budgets.allowances(session, tenant.id)]


def is_clean(maker: sessionmaker[Session]) -> bool:
    with maker() as fresh:
        assert audit(fresh) == []
    return True


def waits_for(session: Session, batch: Batch) -> str | None:
    quota = budgets.quota(session, batch.tenant_id)
    return wait_reasons.waits_for(batch, quota, window_budgets.allowances(session, batch.tenant_id), currency="EUR")


def turn(session: Session) -> None:
    session.execute(text("UPDATE window_budget SET window_start = now() - interval '2 days', window_end = now()"))
    session.execute(text("UPDATE ledger SET created_at = created_at - interval '1 day'"))
    session.commit()


def test_a_line_must_fit_into_every_budget_in_tokens_and_in_money(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    budgets.set_limit(session, tenant.id, 10_000)
    limit(session, tenant, TOKENS, 100)
    limit(session, tenant, MONEY, 1000, window=BudgetWindow.MONTH)
    run(4, reserved_tokens=500)
    claim = claim_next(session)
    assert claim.is_limited
    assert cover(session, claim, (60, 700), (50, 100), (30, 400), (40, 300)) == [True, False, False, True]
    assert reserved(session, tenant) == [1000, 100]
    assert is_clean(maker)


def test_a_key_has_its_own_room_and_that_of_its_tenant(session: Session, run: Run, tenant: Tenant) -> None:
    key = keys.create_key(session, tenant.id)[0].id
    limit(session, tenant, TOKENS, 100)
    limit(session, tenant, TOKENS, 30, key_id=key)
    run(4, api_key_id=key)
    assert cover(session, claim_next(session), (20, 0), (20, 0), (10, 0)) == [True, False, True]
    run(4)
    assert cover(session, claim_next(session), (60, 0), (20, 0), (10, 0)) == [True, False, True]
    assert reserved(session, tenant) == [100, 30]


def test_what_ends_or_is_given_back_makes_room_again(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, MONEY, 100_000_000)
    run(4)
    claim = claim_next(session)
    assert cover(session, claim, (50, 60_000_000), (40, 40_000_000)) == [True, True]
    # Five of the first line's tokens were used, at 1,000,000 pico-units each.
    used = [answer(claim, claim.first_line, tokens=5)]
    leasing.flush(session, claim, used, flush_no=0, lease=LEASE, covered=40, covered_picos=40_000_000)
    assert reserved(session, tenant) == [40_000_000]
    leasing.release(session, claim)
    assert reserved(session, tenant) == [0]
    assert [found.left for found in window_budgets.allowances(session, tenant.id)] == [95_000_000]
    assert is_clean(maker)


def test_a_call_repeated_after_an_unknown_commit_covers_once(session: Session, run: Run, tenant: Tenant) -> None:
    limit(session, tenant, MONEY, 1000)
    run(4)
    claim = claim_next(session)
    for _ in range(2):
        assert cover(session, claim, (60, 700)) == [True]
    assert reserved(session, tenant) == [700]


@pytest.mark.parametrize("unit", [TOKENS, MONEY])
def test_what_has_no_room_waits_says_until_when_and_goes_on_when_the_window_turns(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant, unit: BudgetUnit
) -> None:
    limit(session, tenant, unit, 30, time_zone="Europe/Berlin")
    batch = run(4)
    session.execute(text("UPDATE window_budget SET spent_amount = 25"))
    claim = claim_next(session)
    assert cover(session, claim, (20, 20)) == [False]
    waiting.lay_aside(session, claim, tokens=20, picos=20)
    session.commit()
    assert waiting.wake(session) == 0
    session.refresh(batch)
    said = waits_for(session, batch)
    assert said is not None
    assert said.startswith("waiting_budget: the batch continues when there is room for ")
    assert re.search(r"it is reset at \d{4}-\d\d-\d\dT00:00:00\+0[12]:00 \(Europe/Berlin\)\.$", said), said
    turn(session)
    assert (waiting.wake(session), states(session)) == (1, ["ready"])
    session.refresh(batch)
    assert cover(session, claim_next(session), (20, 20)) == [True]
    assert is_clean(maker)


def test_a_waiting_chunk_goes_on_when_the_budget_is_raised_or_removed(
    session: Session, run: Run, tenant: Tenant
) -> None:
    found = limit(session, tenant, TOKENS, 10)
    run(2)
    for change in (
        lambda: limit(session, tenant, TOKENS, 20),
        lambda: window_budgets.remove_budget(session, found.budget_id),
    ):
        claim = claim_next(session)
        waiting.lay_aside(session, claim, tokens=20, picos=0)
        session.execute(text("UPDATE window_budget SET limit_amount = 10"))
        session.commit()
        assert (waiting.wake(session), states(session)) == (0, ["waiting"])
        change()
        assert (waiting.wake(session), states(session)) == (1, ["ready"])
        session.commit()


def test_the_turn_of_a_window_leaves_what_runs_reserved(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, TOKENS, 100)
    run(8)
    first = claim_next(session)
    assert cover(session, first, (80, 0)) == [True]
    turn(session)
    assert cover(session, claim_next(session), (80, 0), (20, 0)) == [False, True]
    results = [answer(first, first.first_line, tokens=70)]
    leasing.flush(session, first, results, flush_no=0, lease=LEASE)
    session.commit()
    assert [(found.spent, found.reserved) for found in window_budgets.allowances(session, tenant.id)] == [(70, 20)]
    assert is_clean(maker)


def test_a_limit_set_while_lines_run_without_cover_commits_what_they_use(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    run(4)
    claim = claim_next(session)
    assert not claim.is_limited
    limit(session, tenant, TOKENS, 10)
    results = [answer(claim, claim.first_line + number, tokens=30) for number in range(2)]
    leasing.flush(session, claim, results, flush_no=0, lease=LEASE)
    session.commit()
    assert [found.left for found in window_budgets.allowances(session, tenant.id)] == [-50]
    assert is_clean(maker)


def test_nobody_covers_past_a_budget_that_is_being_set(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    """The only statement that needs no budget waits for one that is being set, and then sees it."""
    budgets.set_limit(session, tenant.id, 10_000)
    run(4, reserved_tokens=500)
    claim = claim_next(session)
    taken: list[bool] = []

    def cover_now() -> None:
        with maker() as own:
            taken.extend(cover(own, claim, (60, 0)))

    with maker() as operator:
        wanted = NewBudget(unit=TOKENS, window=BudgetWindow.DAY, limit=10)
        window_budgets.set_budget(operator, tenant.id, wanted)
        thread = threading.Thread(target=cover_now)
        thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while not session.scalar(text(waits)):
            session.rollback()
        operator.commit()
        thread.join()
    assert taken == [False]
    assert is_clean(maker)


def test_workers_sweeps_turns_and_operators_at_once_keep_every_limit(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    """Real transactions of six threads: no deadlock, and in any order no token and no pico-unit too many."""
    key = keys.create_key(session, tenant.id)[0].id
    limit(session, tenant, MONEY, 900_000_000)
    limit(session, tenant, TOKENS, 500, key_id=key)
    for key_id in (key, None):
        run(32, reserved_tokens=0, api_key_id=key_id)
    session.commit()
    problems: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run_it() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - reported to the test
                problems.append(error)

        return run_it

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(12):
            with maker.begin() as own:
                claim = claiming.claim_next(own, model="m", worker_id=f"w{seed}", lease=LEASE)
            if claim is not None:
                use(claim, chance)

    def use(claim: ClaimedChunk, chance: random.Random) -> None:
        with maker.begin() as own:
            done = leasing.lines_done(own, claim)
            open_lines = [claim.first_line + index for index in range(4) if claim.first_line + index not in done]
            costs = {line_no: chance.randint(1, 60) for line_no in open_lines}
            picos = [cost * 1_000_000 for cost in costs.values()]
            fits = covering.cover(own, claim, list(costs.values()), covered=0, picos=picos).fits
        running = {line_no: costs[line_no] for line_no, is_covered in zip(costs, fits, strict=True) if is_covered}
        ended = {line_no: chance.randint(1, running.pop(line_no)) for line_no in list(running)[:2]}
        results = [answer(claim, line_no, tokens=tokens) for line_no, tokens in ended.items()]
        left = sum(running.values())
        with maker.begin() as own:
            leasing.flush(own, claim, results, flush_no=0, lease=LEASE, covered=left, covered_picos=left * 1_000_000)
        with maker.begin() as own:
            if len(leasing.lines_done(own, claim)) == claim.num_requests:
                leasing.complete(own, claim)
            elif chance.random() < 0.5:
                least = min(costs.values())
                waiting.lay_aside(own, claim, tokens=least, picos=least * 1_000_000)
            else:
                own.execute(
                    text("UPDATE chunk SET lease_until = clock_timestamp() WHERE id = :id"), {"id": claim.chunk_id}
                )

    def sweep() -> None:
        for number in range(40):
            with maker.begin() as own:
                reap(own)
                waiting.wake(own)
            if number % 10 == 5:
                with maker.begin() as own:  # again: everything is counted anew under the lock
                    wanted = NewBudget(unit=MONEY, window=BudgetWindow.DAY, limit=900_000_000)
                    window_budgets.set_budget(own, tenant.id, wanted)

    threads = [threading.Thread(target=guarded(lambda seed=seed: work(seed))) for seed in range(5)]  # type: ignore[misc]
    threads.append(threading.Thread(target=guarded(sweep)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    session.commit()
    found = window_budgets.allowances(session, tenant.id)
    assert all(0 < own.spent <= own.limit - own.reserved for own in found), found
    session.execute(text("UPDATE chunk SET lease_until = clock_timestamp()"))
    session.commit()
    reap(session)
    assert reserved(session, tenant) == [0, 0]
    assert is_clean(maker)


def test_a_batch_is_shown_what_it_waits_for_in_money(session: Session, run: Run, tenant: Tenant) -> None:
    limit(session, tenant, MONEY, 1_000_000_000_000)
    session.execute(text("UPDATE window_budget SET spent_amount = 900000000000"))
    batch: Batch = run(2)
    waiting.lay_aside(session, claim_next(session), tokens=5, picos=200_000_000_000)
    session.refresh(batch)
    said = waits_for(session, batch)
    assert said is not None
    assert "room for 0.20 EUR: your budget of the day is 1.00 EUR, 0.90 EUR spent and 0.00 EUR reserved" in said


def lay_two_aside(session: Session, run: Run, tenant: Tenant, **more: Any) -> Batch:
    """Make a batch of two chunks, one without room for its money, one for its tokens."""
    budgets.set_limit(session, tenant.id, 10_000)
    limit(session, tenant, TOKENS, 500)
    limit(session, tenant, MONEY, 500_000_000_000)
    batch: Batch = run(8, reserved_tokens=300, **more)
    claims = [claim_next(session) for _ in range(2)]
    for claim, (tokens, euros) in zip(claims, [(10, 1.0), (1000, 0.25)], strict=True):
        waiting.lay_aside(session, claim, tokens=tokens, picos=int(euros * 1_000_000_000_000))
    session.commit()
    return batch


def test_room_for_the_tokens_of_one_chunk_and_the_money_of_another_is_room_for_neither(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    batch = lay_two_aside(session, run, tenant)
    assert (waiting.wake(session), states(session)) == (0, ["waiting"] * 2)
    assert budgets.quota(session, tenant.id).reserved == 0, "others may need it"
    session.refresh(batch)
    assert waits_for(session, batch) == (
        "waiting_budget: the batch continues when one of its lines has room in budgets of tokens and of money at once: "
        "the smallest needs 10 tokens, another one, the cheapest, 0.25 EUR."
    )
    limit(session, tenant, MONEY, 1_000_000_000_000)
    assert (waiting.wake(session), states(session)) == (1, ["ready", "waiting"])
    assert is_clean(maker)


def test_a_chunk_nobody_has_tried_is_tried_where_room_for_tokens_and_for_money_is_of_different_ones(
    session: Session, run: Run, tenant: Tenant
) -> None:
    lay_two_aside(session, run, tenant)
    session.execute(text("UPDATE chunk SET needed_tokens = NULL, needed_picos = NULL WHERE waits_for_tokens = 1000"))
    assert (waiting.wake(session), states(session)) == (1, ["waiting", "ready"])


def test_lines_that_are_to_fail_do_so_where_room_for_tokens_and_for_money_is_of_different_ones(
    session: Session, run: Run, tenant: Tenant
) -> None:
    lay_two_aside(session, run, tenant, uncovered_lines=UncoveredLines.FAIL)
    assert (waiting.wake(session), states(session)) == (2, ["ready"] * 2)


def test_a_batch_whose_waiting_chunks_are_gone_waits_for_nothing(session: Session, run: Run, tenant: Tenant) -> None:
    batch = lay_two_aside(session, run, tenant)
    session.execute(text("UPDATE chunk SET state = 'withdrawn'"))
    assert waiting.wake(session) == 0
    session.refresh(batch)
    assert waits_for(session, batch) is None
