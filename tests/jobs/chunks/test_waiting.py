"""Tests of chunks without room in the budget: they are laid aside, and woken as far as there is room."""

from __future__ import annotations

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.batches import lifecycle, sweeps
from jobs.chunks import claiming, covering, wait_reasons, waiting
from jobs.states import UncoveredLines
from jobs.storage import Storage
from jobs.tables import Batch, Tenant
from tests.jobs.batches.control import finalise
from tests.jobs.chunks.builders import Run
from tests.jobs.chunks.covers import LEASE, claim_next, flush, limit, states


def test_a_chunk_waits_until_there_is_room_for_it_and_nobody_hints_it(
    session: Session, run: Run, tenant: Tenant
) -> None:
    limit(session, tenant, 100)
    batch = run(4, reserved_tokens=40)
    waiting.lay_aside(session, claim_next(session), tokens=150)
    session.commit()
    assert states(session) == ["waiting"]
    assert claiming.claim_next(session, model="m", worker_id="w", lease=LEASE) is None
    assert waiting.wake(session) == 0
    session.refresh(batch)
    sentence = str(wait_reasons.waits_for(batch, budgets.quota(session, tenant.id)))
    assert sentence.startswith(
        "waiting_budget: the batch continues when there is room for 150 tokens, and 100 are available"
    )
    limit(session, tenant, 149)
    assert waiting.wake(session) == 0
    limit(session, tenant, 150)
    assert (waiting.wake(session), states(session)) == (1, ["ready"])
    session.refresh(batch)
    assert (batch.waits_for_tokens, wait_reasons.waits_for(batch, budgets.quota(session, tenant.id))) == (None, None)
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


def test_each_waiting_batch_has_its_turn_to_be_looked_at(
    session: Session, run: Run, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_BATCHES", 2)
    limit(session, tenant, 0)
    for _ in range(5):
        run(4)
        waiting.lay_aside(session, claim_next(session), tokens=300)
    in_round = waiting.Round()
    assert [waiting.wake(session, in_round) for _ in range(4)] == [0] * 4
    limit(session, tenant, 10_000)
    assert [waiting.wake(session, in_round) for _ in range(4)] == [2, 1, 2, 0], "it was after the second"
    assert states(session) == ["ready"] * 5


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
