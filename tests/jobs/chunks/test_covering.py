"""A limit is one: lines are covered before they run, and whatever ends a lease gives its cover back once."""

from __future__ import annotations

import random
import threading
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.accounts.budgets import fitting
from jobs.audit import audit
from jobs.batches import lifecycle, sweeps
from jobs.batches.lost_leases import reap_expired, reap_suspects, return_leases
from jobs.chunks import covering, leasing, waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.errors import FencedOutError
from jobs.lines.output_lines import output_line
from jobs.states import UncoveredLines
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, Tenant
from tests.jobs.batches.control import finalise
from tests.jobs.chunks.builders import Run

LEASE = timedelta(seconds=20)


def claim_next(session: Session) -> ClaimedChunk:
    claim = leasing.claim_next(session, model="m", worker_id="w", lease=LEASE)
    assert claim is not None
    session.commit()
    return claim


def answer(claim: ClaimedChunk, line_no: int, *, tokens: int) -> LineResult:
    line = output_line(claim.batch_id, line_no, f"a{line_no}", status_code=200, body={})
    return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=tokens)


def flush(session: Session, claim: ClaimedChunk, used: dict[int, int], *, covered: int, flush_no: int = 0) -> None:
    results = [answer(claim, line_no, tokens=tokens) for line_no, tokens in used.items()]
    leasing.flush(session, claim, results, flush_no=flush_no, lease=LEASE, covered=covered)
    session.commit()


def covers(session: Session) -> tuple[int, int, int]:
    """Return what chunks cover, what batches cover, and what batches reserve."""
    session.commit()
    query = select(func.sum(Batch.covered_tokens), func.sum(Batch.reserved_tokens))
    covered, reserved = session.execute(query).one()
    return int(session.scalar(select(func.sum(Chunk.covered_tokens))) or 0), int(covered), int(reserved)


def states(session: Session) -> list[str]:
    return list(session.scalars(select(Chunk.state).order_by(Chunk.id)))


def end_lease(session: Session, claim: ClaimedChunk) -> None:
    session.execute(text("UPDATE chunk SET lease_until = clock_timestamp() WHERE id = :id"), {"id": claim.chunk_id})
    session.commit()


def limit(session: Session, tenant: Tenant, tokens: int | None) -> None:
    budgets.set_limit(session, tenant.id, tokens)
    session.commit()


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
    assert fitting([5, 4, 3, 2], 10) == ([True, True, False, False], 9)
    assert fitting([5, 4], None) == ([True, True], 9)
    assert fitting([11, 0], 0) == ([False, True], 0)


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


def reap(session: Session) -> None:
    reap_expired(session, lease=timedelta(0))


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_chunk_waits_until_there_is_room_for_it_and_nobody_hints_it(
    session: Session, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 100)
    batch = run(4, reserved_tokens=40)
    waiting.lay_aside(session, claim_next(session), tokens=150)
    session.commit()
    assert states(session) == ["waiting"]
    assert leasing.claim_next(session, model="m", worker_id="w", lease=LEASE) is None
    assert waiting.wake(session) == 0
    session.refresh(batch)
    sentence = str(waiting.waits_for(session, batch))
    assert sentence.startswith(
        "waiting_budget: the batch goes on when there is room for 150 tokens, and 100 are available"
    )
    limit(session, tenant, 149)
    assert waiting.wake(session) == 0
    limit(session, tenant, 150)
    assert (waiting.wake(session), states(session)) == (1, ["ready"])
    session.refresh(batch)
    assert (batch.waits_for_tokens, waiting.waits_for(session, batch)) == (None, None)
    assert claim_next(session).fence == 2


def test_one_large_line_does_not_make_the_other_chunks_wait_and_an_empty_budget_does(
    session: Session, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 10_000)
    run(12, reserved_tokens=100)
    waiting.lay_aside(session, claim_next(session), tokens=50_000)
    assert states(session) == ["waiting", "ready", "ready"]
    limit(session, tenant, 1)
    waiting.lay_aside(session, claim_next(session), tokens=5000)
    assert states(session) == ["waiting", "waiting", "ready"], "what is reserved has room for a line of it"
    session.execute(text("UPDATE batch SET covered_tokens = reserved_tokens"))
    waiting.lay_aside(session, claim_next(session), tokens=5000)
    assert states(session) == ["waiting"] * 3


def test_chunks_are_woken_as_far_as_the_room_goes(session: Session, run: Run, tenant: Tenant) -> None:
    limit(session, tenant, 0)
    run(16)
    for tokens in (300, 400, 500):
        waiting.lay_aside(session, claim_next(session), tokens=tokens)
        session.execute(text("UPDATE chunk SET state = 'ready' WHERE waits_for_tokens < 300"))  # laid aside with it
    assert states(session) == ["waiting", "waiting", "waiting", "ready"]
    limit(session, tenant, 800)
    assert waiting.wake(session) == 0, "while one is ready no other would find the room"
    claim_next(session)
    assert waiting.wake(session) == 2
    assert states(session) == ["ready", "ready", "waiting", "leased"]
    limit(session, tenant, None)
    session.execute(text("UPDATE chunk SET state = 'withdrawn' WHERE state = 'ready'"))
    assert (waiting.wake(session), states(session)[2]) == (1, "ready")


def test_batches_that_wait_do_not_hold_what_the_other_one_needs(session: Session, run: Run, tenant: Tenant) -> None:
    limit(session, tenant, 1000)
    for _ in range(2):
        run(4, reserved_tokens=500)
    for _ in range(2):
        waiting.lay_aside(session, claim_next(session), tokens=600)
        session.commit()
    assert waiting.wake(session) == 0
    assert budgets.quota(session, tenant.id).reserved == 0
    assert waiting.wake(session) == 2
    assert covering.cover(session, claim_next(session), [600], covered=0).tokens == 600


def test_lines_that_are_to_fail_do_so_once_nothing_of_the_tenant_runs_any_more(
    session: Session, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 100)
    run(4, reserved_tokens=0)
    first = claim_next(session)
    run(4, reserved_tokens=0, uncovered_lines=UncoveredLines.FAIL)
    second = claim_next(session)
    covering.cover(session, first, [90], covered=0)
    found = covering.cover(session, second, [20], covered=0)
    assert (found.fits, found.others_run, second.uncovered_lines) == ([False], True, "fail")
    waiting.lay_aside(session, second, tokens=20)
    assert waiting.wake(session) == 0
    flush(session, first, {0: 90}, covered=0)
    assert waiting.wake(session) == 1, "there is no room, and none will come"
    assert not covering.cover(session, claim_next(session), [20], covered=0).others_run


def test_a_batch_that_waits_can_be_cancelled_and_expires(
    session: Session, maker: sessionmaker[Session], storage: Storage, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 0)
    cancelled, expired = run(4), run(4)
    for _ in range(2):
        waiting.lay_aside(session, claim_next(session), tokens=10)
    lifecycle.cancel_batch(session, tenant.id, cancelled.id)
    session.execute(text("UPDATE batch SET expires_at = now() WHERE state = 'in_progress'"))
    assert sweeps.expire_overdue(session) == [expired.id]
    assert states(session) == ["withdrawn", "withdrawn"]
    for batch_id in sweeps.pick_for_finalizing(session, again_seconds=10):
        finalise(session, storage, batch_id)
    session.commit()
    assert set(session.scalars(select(Batch.state))) == {"cancelled", "expired"}
    with maker() as fresh:
        assert audit(fresh) == []


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


def test_workers_sweeps_and_lost_leases_at_once_keep_the_limit(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    """Real transactions of six threads in the order that the locks ask for: no deadlock, no token too many."""
    limit(session, tenant, 1500)
    for _ in range(3):
        run(32, reserved_tokens=200)
    session.commit()
    problems: list[BaseException] = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        try:
            for _ in range(12):
                with maker.begin() as own:
                    claim = leasing.claim_next(own, model="m", worker_id=f"w{seed}", lease=LEASE)
                if claim is not None:
                    use(claim, chance)
        except BaseException as error:  # noqa: BLE001 - told to the test
            problems.append(error)

    def use(claim: ClaimedChunk, chance: random.Random) -> None:
        costs = [chance.randint(1, 60) for _ in range(4)]
        with maker.begin() as own:
            fits = covering.cover(own, claim, costs, covered=0).fits
        running = {
            claim.first_line + index: cost
            for index, (cost, is_covered) in enumerate(zip(costs, fits, strict=True))
            if is_covered and claim.first_line + index not in done(claim)
        }
        ended = {line_no: chance.randint(0, running.pop(line_no)) for line_no in list(running)[:2]}
        results = [answer(claim, line_no, tokens=tokens) for line_no, tokens in ended.items()]
        with maker.begin() as own:
            leasing.flush(own, claim, results, flush_no=0, lease=LEASE, covered=sum(running.values()))
        with maker.begin() as own:
            if len(done(claim)) == claim.num_requests:
                leasing.complete(own, claim)
            elif chance.random() < 0.5:
                waiting.lay_aside(own, claim, tokens=min(costs))
            else:
                own.execute(
                    text("UPDATE chunk SET lease_until = clock_timestamp() WHERE id = :id"), {"id": claim.chunk_id}
                )

    def done(claim: ClaimedChunk) -> set[int]:
        with maker() as own:
            return leasing.lines_done(own, claim)

    def sweep() -> None:
        try:
            for _ in range(40):
                with maker.begin() as own:
                    reap(own)
                    waiting.wake(own)
        except BaseException as error:  # noqa: BLE001 - told to the test
            problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)] + [threading.Thread(target=sweep)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    quota = budgets.quota(session, tenant.id)
    assert 0 < quota.spent <= 1500 - quota.reserved
    session.execute(text("UPDATE chunk SET lease_until = clock_timestamp()"))
    session.commit()
    reap(session)
    assert covers(session)[:2] == (0, 0)
    with maker() as fresh:
        assert audit(fresh) == []


# --- anything, in any order ------------------------------------------------------------------------------------------


def test_whatever_happens_spent_and_reserved_stay_below_the_limit_and_nothing_stays_reserved(
    session: Session, run: Run, tenant: Tenant
) -> None:
    """Random covers, flushes, ends of leases, wakings and limits, over the real functions and tables."""
    template = [run(12, reserved_tokens=0) for _ in range(2)]
    pristine = [(chunk.id, chunk.batch_id) for chunk in session.scalars(select(Chunk))]

    class Covers(RuleBasedStateMachine):
        @initialize(limit=st.integers(0, 800), reserved=st.tuples(st.integers(0, 300), st.integers(0, 300)))
        def start(self, limit: int, reserved: tuple[int, int]) -> None:
            session.rollback()
            for table in ("result", "ledger"):
                session.execute(text(f"DELETE FROM {table}"))
            session.execute(text("DELETE FROM chunk WHERE id <> ALL(:ids)"), {"ids": [id for id, _ in pristine]})
            session.execute(
                text("UPDATE chunk SET state = 'ready', covered_tokens = 0, waits_for_tokens = NULL, losses = 0")
            )
            session.execute(
                text(
                    "UPDATE batch SET reserved_tokens = 0, covered_tokens = 0, waits_for_tokens = NULL,"
                    " num_completed = 0, num_failed = 0, input_tokens = 0, cost_picos = 0"
                )
            )
            session.execute(text("UPDATE budget SET reserved_tokens = 0, spent_tokens = 0, committed_tokens = 0"))
            budgets.set_limit(session, tenant.id, limit)
            for batch, tokens in zip(template, reserved, strict=True):
                if tokens <= (budgets.quota(session, tenant.id).available or 0):
                    budgets.reserve(session, tenant.id, tokens)
                    session.execute(
                        text("UPDATE batch SET reserved_tokens = :tokens WHERE id = :id"),
                        {"tokens": tokens, "id": batch.id},
                    )
            self.allowed = limit
            self.claims: dict[int, ClaimedChunk] = {}
            self.running: dict[int, dict[int, int]] = {}
            self.num_flushes = 0

        @rule()
        def claim(self) -> None:
            claim = leasing.claim_next(session, model="m", worker_id="w", lease=LEASE)
            if claim is not None:
                self.claims[claim.chunk_id] = claim
                self.running[claim.chunk_id] = {}

        @rule(choice=st.integers(0, 99), costs=st.lists(st.integers(1, 90), min_size=1, max_size=4))
        def cover(self, choice: int, costs: list[int]) -> None:
            claim = self.chosen(choice)
            if claim is None:
                return
            running = self.running[claim.chunk_id]
            done = leasing.lines_done(session, claim) | set(running)
            lines = [line for line in range(claim.first_line, claim.first_line + 4) if line not in done]
            chosen = dict(zip(lines, costs, strict=False))
            found = covering.cover(session, claim, list(chosen.values()), covered=sum(running.values()))
            running |= {line: cost for (line, cost), fits in zip(chosen.items(), found.fits, strict=True) if fits}

        @rule(choice=st.integers(0, 99), seed=st.integers(0, 99))
        def flush(self, choice: int, seed: int) -> None:
            claim = self.chosen(choice)
            if claim is None:
                return
            running, chance = self.running[claim.chunk_id], random.Random(seed)
            ended = [line for line in running if chance.random() < 0.6]
            results = [answer(claim, line, tokens=chance.randint(0, running.pop(line))) for line in ended]
            self.num_flushes += 1
            leasing.flush(
                session,
                claim,
                results,
                flush_no=self.num_flushes,
                lease=LEASE,
                covered=sum(running.values()),
            )

        @rule(choice=st.integers(0, 99), how=st.sampled_from(["release", "lay_aside", "reap", "complete"]))
        def end(self, choice: int, how: str) -> None:
            claim = self.chosen(choice)
            if claim is None:
                return
            if how == "complete" and len(leasing.lines_done(session, claim)) < claim.num_requests:
                return
            if how == "complete":
                leasing.complete(session, claim)
            elif how == "release":
                leasing.release(session, claim)
            elif how == "lay_aside":
                waiting.lay_aside(session, claim, tokens=50)
            else:
                session.execute(
                    text("UPDATE chunk SET lease_until = clock_timestamp() WHERE id = :id"), {"id": claim.chunk_id}
                )
                reap(session)
            del self.claims[claim.chunk_id], self.running[claim.chunk_id]

        @rule()
        def wake(self) -> None:
            waiting.wake(session)

        @rule(limit=st.none() | st.integers(0, 800))
        def change_limit(self, limit: int | None) -> None:
            quota = budgets.set_limit(session, tenant.id, limit)
            self.allowed = 10**9 if limit is None else max(limit, quota.spent + quota.reserved)
            if limit is None:  # what is claimed now would run without cover
                self.allowed = 10**9
                budgets.set_limit(session, tenant.id, 10**9)

        def chosen(self, choice: int) -> ClaimedChunk | None:
            claims = list(self.claims.values())
            return claims[choice % len(claims)] if claims else None

        @invariant()
        def is_within_the_limit(self) -> None:
            if not hasattr(self, "allowed"):
                return
            quota = budgets.quota(session, tenant.id)
            assert quota.spent + quota.reserved <= self.allowed
            rows = session.execute(text("SELECT id, reserved_tokens, covered_tokens FROM batch")).all()
            assert sum(row.reserved_tokens for row in rows) == quota.reserved
            for row in rows:
                held = [sum(self.running[c.chunk_id].values()) for c in self.claims.values() if c.batch_id == row.id]
                assert row.covered_tokens == sum(held) <= row.reserved_tokens
                query = text("SELECT sum(covered_tokens) FROM chunk WHERE batch_id = :id")
                assert session.scalar(query, {"id": row.id}) == row.covered_tokens

        def teardown(self) -> None:
            if not hasattr(self, "allowed"):
                return
            for claim in self.claims.values():
                leasing.release(session, claim)
            for batch in template:
                session.refresh(batch)
                budgets.release(session, batch)
            assert budgets.quota(session, tenant.id).reserved == 0
            assert session.scalar(select(func.sum(Batch.covered_tokens))) == 0
            session.rollback()

    run_state_machine_as_test(
        Covers,
        settings=settings(
            max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
