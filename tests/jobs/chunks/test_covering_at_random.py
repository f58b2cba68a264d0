"""Tests of random, concurrent events of covered lines: the limit holds and nothing stays reserved."""

from __future__ import annotations

import random
import threading

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.chunks import claiming, covering, leasing, waiting
from jobs.chunks.leasing import ClaimedChunk
from jobs.tables import Batch, Chunk, Tenant
from tests.jobs.chunks.builders import Run
from tests.jobs.chunks.covers import LEASE, answer, covers, limit, reap


def test_workers_sweeps_and_lost_leases_at_once_keep_the_limit(
    session: Session, maker: sessionmaker[Session], run: Run, tenant: Tenant
) -> None:
    """Real transactions of six threads in the order required by the locks: no deadlock, no token too many."""
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
                    claim = claiming.claim_next(own, model="m", worker_id=f"w{seed}", lease=LEASE)
                if claim is not None:
                    use(claim, chance)
        except BaseException as error:  # noqa: BLE001 - reported to the test
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
        ended = {line_no: chance.randint(1, running.pop(line_no)) for line_no in list(running)[:2]}
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
        except BaseException as error:  # noqa: BLE001 - reported to the test
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
            claim = claiming.claim_next(session, model="m", worker_id="w", lease=LEASE)
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
            results = [answer(claim, line, tokens=chance.randint(1, running.pop(line))) for line in ended]
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
