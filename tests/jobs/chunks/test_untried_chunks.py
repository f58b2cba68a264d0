"""Tests of untried chunks, which wait by a guess: each is tried once if there is some room, so small lines run."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.chunks import covering, leasing, waiting
from jobs.tables import Tenant
from tests.jobs.chunks.builders import Run, chunk_ids, claim_one, states


def test_chunks_whose_average_line_does_not_fit_are_tried_once_each_and_their_small_lines_run(
    session: Session, run: Run, tenant: Tenant
) -> None:
    budgets.set_limit(session, tenant.id, 500)
    batch = run(12, reserved_tokens=0)
    session.execute(text("UPDATE chunk SET estimated_tokens = 600 * num_requests"))
    first, second, third = chunk_ids(session, batch)
    waiting.lay_aside(session, claim_one(session, first), tokens=5000)
    assert states(session, batch) == ["waiting"] * 3
    assert (waiting.wake(session), states(session, batch)) == (1, ["waiting", "ready", "waiting"])
    assert waiting.wake(session) == 0, "one at a time"
    claim = claim_one(session, second)
    assert waiting.wake(session) == 0, "while one runs"
    waiting.lay_aside(session, claim, tokens=700)
    assert (waiting.wake(session), states(session, batch)) == (1, ["waiting", "waiting", "ready"])
    claim = claim_one(session, third)
    assert covering.cover(session, claim, [5000, 10], covered=0).fits == [False, True]
    waiting.lay_aside(session, claim, tokens=5000)
    assert waiting.wake(session) == 0, "each has been tried"
    session.refresh(batch)
    assert batch.waits_for_tokens == 700, "what one of them needs indeed"
    budgets.set_limit(session, tenant.id, 700)
    assert (waiting.wake(session), states(session, batch)) == (1, ["waiting", "ready", "waiting"])


def test_no_chunk_is_tried_where_there_is_no_room_at_all(session: Session, run: Run, tenant: Tenant) -> None:
    budgets.set_limit(session, tenant.id, 0)
    batch = run(12, reserved_tokens=0)
    waiting.lay_aside(session, claim_one(session, chunk_ids(session, batch)[0]), tokens=5000)
    assert (waiting.wake(session), states(session, batch)) == (0, ["waiting"] * 3)


def test_a_chunk_that_was_tried_waits_for_what_it_needs_however_often_it_is_laid_aside(
    session: Session, run: Run, tenant: Tenant
) -> None:
    budgets.set_limit(session, tenant.id, 5)
    batch = run(8, reserved_tokens=0)
    session.execute(text("UPDATE chunk SET estimated_tokens = 600 * num_requests"))
    tried, other = chunk_ids(session, batch)
    waiting.lay_aside(session, claim_one(session, tried), tokens=10)
    assert states(session, batch) == ["waiting", "waiting"], "the other's average line has no room either"
    budgets.set_limit(session, tenant.id, 10)
    assert (waiting.wake(session), states(session, batch)) == (1, ["ready", "waiting"])
    # Another worker lays a chunk of the batch aside before the woken one is claimed.
    session.execute(text("UPDATE chunk SET state = 'ready' WHERE id = :id"), {"id": other})
    budgets.set_limit(session, tenant.id, 5)
    waiting.lay_aside(session, claim_one(session, other), tokens=700)
    assert states(session, batch) == ["waiting", "waiting"]
    session.refresh(batch)
    assert batch.waits_for_tokens == 10, "not its average"
    budgets.set_limit(session, tenant.id, 10)
    assert (waiting.wake(session), states(session, batch)) == (1, ["ready", "waiting"])


def test_a_chunk_that_was_tried_is_not_laid_aside_by_another_while_there_is_room_for_it(
    session: Session, run: Run, tenant: Tenant
) -> None:
    budgets.set_limit(session, tenant.id, 5)
    batch = run(8, reserved_tokens=0)
    session.execute(text("UPDATE chunk SET estimated_tokens = 600 * num_requests"))
    tried, other = chunk_ids(session, batch)
    waiting.lay_aside(session, claim_one(session, tried), tokens=10)
    budgets.set_limit(session, tenant.id, 10)
    waiting.wake(session)
    session.execute(text("UPDATE chunk SET state = 'ready' WHERE id = :id"), {"id": other})
    waiting.lay_aside(session, claim_one(session, other), tokens=700)
    assert states(session, batch) == ["ready", "waiting"]


def test_a_chunk_whose_need_nobody_has_found_out_is_tried_though_it_was_claimed_before(
    session: Session, run: Run, tenant: Tenant
) -> None:
    batch = run(8, reserved_tokens=0)
    session.execute(text("UPDATE chunk SET estimated_tokens = 600 * num_requests"))
    drained, other = chunk_ids(session, batch)
    leasing.release(session, claim_one(session, drained))  # by a worker that was stopped
    budgets.set_limit(session, tenant.id, 5)
    waiting.lay_aside(session, claim_one(session, other), tokens=700)
    assert (waiting.wake(session), states(session, batch)) == (1, ["ready", "waiting"])
