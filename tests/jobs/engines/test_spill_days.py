"""Tests of the budget of a day for servers outside the house."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import spill_days
from jobs.accounts.spill_days import Asker, Reserved
from jobs.chunks import leasing
from jobs.decisions import Kind
from jobs.engines.engine import OWN_ENGINE
from jobs.tables import Batch
from tests.jobs.chunks.builders import LEASE
from tests.jobs.engines.outside import BUDGET, OUTSIDE, MakeLate, claim


def asker(session: Session, batch: Batch, *, number: int = 0, fence: int = 0) -> Asker:
    """Return a chunk of a batch, by its number."""
    chunks = text("SELECT id FROM chunk WHERE batch_id = :id ORDER BY id OFFSET :number LIMIT 1")
    chunk_id = session.execute(chunks, {"id": batch.id, "number": number}).scalar_one()
    return Asker(model="m", batch_id=batch.id, chunk_id=chunk_id, fence=fence)


def reserve(session: Session, batch: Batch, costs: list[int], *, number: int = 0, fence: int = 0) -> Reserved:
    chunk = asker(session, batch, number=number, fence=fence)
    return spill_days.reserve(session, chunk, costs, budget_picos=BUDGET)


def test_nothing_leaves_once_the_budget_of_the_day_is_used(session: Session, late: MakeLate) -> None:
    batch = late(engine_choice="any")
    reserved = reserve(session, batch, [BUDGET - 5, 5, 1])
    session.commit()
    assert reserved.fits == [True, True, False]
    assert claim(session, OUTSIDE) is None
    spill_days.settle(session, "m", {reserved.day: 5})
    session.commit()
    assert claim(session, OUTSIDE) is not None


def test_a_new_day_has_a_budget_of_its_own(session: Session, late: MakeLate) -> None:
    batch = late(engine_choice="any")
    reserve(session, batch, [BUDGET])
    session.execute(text("UPDATE spill_day SET day = day - 1"))
    session.commit()
    assert claim(session, OUTSIDE) is not None


def leave_room(session: Session, batch: Batch, picos: int) -> date:
    """Reserve the rest of the day's budget; return the day."""
    return reserve(session, batch, [BUDGET - picos - sum(spill_days.used_today(session).values())], number=1).day


def test_chunks_whose_lines_had_no_room_are_not_claimed_again_before_there_is_room(
    session: Session, late: MakeLate
) -> None:
    batch = late(engine_choice="any")
    day = leave_room(session, batch, 100)
    assert reserve(session, batch, [300, 200]).fits == [False, False]
    for returned, is_claimed in ((0, False), (99, False), (1, True)):
        spill_days.settle(session, "m", {day: returned})
        session.commit()
        assert (claim(session, OUTSIDE) is not None) == is_claimed


@pytest.mark.parametrize(
    ("number", "fence", "costs", "needed"),
    [
        (0, 0, [500], 300),
        (0, 0, [50], 300),
        (0, 1, [500], 500),
        (1, 0, [50], 300),
        (1, 0, [500], 300),
    ],
)
def test_the_least_that_a_chunk_lacked_counts_until_its_next_lease(
    session: Session, late: MakeLate, number: int, fence: int, costs: list[int], needed: int
) -> None:
    """Whatever other groups of its lines, and other chunks, lacked or not."""
    batch = late(engine_choice="any")
    reserve(session, batch, [BUDGET + 300])
    day = leave_room(session, batch, 100)
    reserve(session, batch, [300])
    reserve(session, batch, costs, number=number, fence=fence)
    used = spill_days.used_today(session)["m"]
    for room, is_claimed in ((needed - 1, False), (needed, True)):
        spill_days.settle(session, "m", {day: used - (BUDGET - room)})
        used = BUDGET - room
        session.commit()
        assert (claim(session, OUTSIDE) is not None) == is_claimed


def test_a_chunk_that_lacks_more_does_not_go_round_while_another_one_of_its_batch_is_claimed(
    session: Session, late: MakeLate
) -> None:
    batch = late(engine_choice="any")
    leave_room(session, batch, 300)
    reserve(session, batch, [500])
    reserve(session, batch, [301], number=1)
    session.commit()
    assert claim(session, OUTSIDE) is None
    spill_days.settle(session, "m", {spill_days.reserve(session, asker(session, batch), [], budget_picos=1).day: 1})
    session.commit()
    claimed = claim(session, OUTSIDE)
    assert claimed is not None
    assert claimed.chunk_id == asker(session, batch, number=1).chunk_id
    assert claim(session, OUTSIDE) is None


def test_what_a_chunk_lacked_that_the_house_has_run_keeps_no_other_chunk(session: Session, late: MakeLate) -> None:
    batch = late(engine_choice="any")
    leave_room(session, batch, 100)
    reserve(session, batch, [300])
    session.commit()
    assert claim(session, OUTSIDE) is None
    assert claim(session, OWN_ENGINE) is not None
    assert claim(session, OUTSIDE) is not None


def test_a_line_that_costs_more_than_the_budget_keeps_only_its_own_batch_in_the_house(
    session: Session, late: MakeLate
) -> None:
    dear = late(engine_choice="any")
    reserved = reserve(session, dear, [BUDGET + 1])
    assert reserved.fits == [False]
    session.commit()
    assert claim(session, OUTSIDE) is None
    cheap = late(engine_choice="any")
    claimed = claim(session, OUTSIDE)
    assert claimed is not None
    assert claimed.batch_id == cheap.id


def test_a_flush_that_is_repeated_settles_once(session: Session, late: MakeLate) -> None:
    batch = late(engine_choice="any")
    claimed = claim(session, OUTSIDE)
    assert claimed is not None
    day = reserve(session, batch, [1000]).day
    spent = spill_days.Spent(picos=300, unused={day: 700})
    for _ in range(2):
        leasing.flush(session, claimed, [], flush_no=0, lease=LEASE, spent=spent)
        session.commit()
    assert session.execute(text("SELECT spill_picos, num_results FROM ledger")).all() == [(300, 0)]
    assert spill_days.used_today(session) == {"m": 300}


def test_a_flush_locks_the_day_last_and_only_if_its_sum_changes(
    session: Session, late: MakeLate, statements: list[tuple[str, Any]]
) -> None:
    batch = late(engine_choice="any")
    claimed = claim(session, OUTSIDE)
    assert claimed is not None
    day = reserve(session, batch, [1000]).day
    session.commit()
    for number, (returned, is_last) in enumerate(((0, False), (700, True))):
        spent = spill_days.Spent(picos=300, unused={day: returned})
        decided = {Kind.GIVEN_BACK: 1}
        leasing.flush(session, claimed, [], flush_no=number, lease=LEASE, spent=spent, decided=decided)
        assert ("UPDATE spill_day" in statements[-1][0]) == is_last
        session.commit()
    assert session.scalar(text("SELECT num FROM decision WHERE kind = 'given_back'")) == 2
