"""Tests of the promises of claims, for every table whose rows are claimed.

A worker that checks a row gets one of five answers: it owns it (yes), another worker owns it (no), the row is gone (not
there), its claim expired and no other worker has the row (late), or the row has moved on (never).
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.claims.claims import Held
from jobs.errors import FencedOutError
from jobs.tables import Tenant
from jobs.tables.base import Base
from tests.jobs.claims.rows import CLAIMS, MakeBatch, Row, add_row

ROOT = Path(__file__).resolve().parents[3]
FENCES = {"claim_fence", "fence"}
ENDS = {"claimed_until", "lease_until", "due_at"}
RACES = 12
STEPS = 60


@pytest.fixture(params=sorted(CLAIMS))
def row(
    request: pytest.FixtureRequest,
    session: Session,
    maker: sessionmaker[Session],
    tenant: Tenant,
    make_batch: MakeBatch,
    run: MakeBatch,
) -> Row:
    return add_row(request.param, session, maker, tenant, make_batch, run)


def taken(row: Row) -> Held:
    held = row.take()
    assert held is not None
    return held


def uses(row: Row) -> list[Callable[[Held], None]]:
    """Return the calls that only the owner of a row may make."""
    return [row.renew, row.confirm, row.hold, row.lock]


def assert_lost(row: Row, held: Held) -> None:
    """Check that a claim has ended, that its worker notices, and that none of its calls changes the row."""
    before = row.content()
    for use in uses(row):
        with pytest.raises(FencedOutError):
            use(held)
    row.give_up(held)
    assert row.content() == before


def test_every_table_with_a_fence_is_tried_here() -> None:
    fenced = {
        name
        for name, table in Base.metadata.tables.items()
        if FENCES & {*table.columns.keys()} and ENDS & {*table.columns.keys()}
    }
    assert {claims.kind for claims, _ in CLAIMS.values()} == fenced


def test_no_statement_outside_of_claims_takes_or_renews_a_row() -> None:
    writes = re.compile(
        r"fence = [\w.]*fence \+ 1|(claimed_until|lease_until) <?=|(claimed_by|claim_fence|worker_id) == "
    )
    files = [
        path for package in ("api", "cli", "features", "jobs", "workers") for path in (ROOT / package).rglob("*.py")
    ]
    assert [str(path.relative_to(ROOT)) for path in files if writes.search(path.read_text(encoding="utf-8"))] == []


def test_yes_one_worker_has_the_row(row: Row) -> None:
    held = taken(row)
    assert row.take() is None
    for use in uses(row):
        use(held)
    assert row.take() is None


def test_late_a_claim_whose_time_is_over_goes_on_until_another_worker_takes_the_row(row: Row) -> None:
    held = taken(row)
    row.lapse()
    with pytest.raises(FencedOutError):
        row.confirm(held)
    row.renew(held)
    row.confirm(held)
    assert row.take() is None


def test_no_another_worker_has_the_row_under_a_higher_fence(row: Row) -> None:
    lost = taken(row)
    row.lapse()
    held = taken(row)
    assert held.guard["fence"] == lost.guard["fence"] + 1
    assert_lost(row, lost)
    row.confirm(held)


def test_no_another_worker_has_the_row_under_the_same_fence_after_a_restore(row: Row) -> None:
    lost = taken(row)
    row.restore()
    held = row.take("worker_2")
    assert held is not None
    assert held.guard["fence"] == lost.guard["fence"]
    assert_lost(row, lost)
    row.confirm(held)


def test_never_what_was_given_up_or_has_moved_on_is_nobodys(row: Row) -> None:
    first = taken(row)
    row.give_up(first)
    assert_lost(row, first)
    second = taken(row)
    assert second.guard["fence"] == first.guard["fence"] + 1
    row.move_on()
    assert_lost(row, second)
    assert row.take() is None


def test_not_there_a_row_that_is_gone_is_nobodys(row: Row) -> None:
    held = taken(row)
    row.delete()
    assert_lost(row, held)
    assert row.take() is None


@pytest.mark.parametrize("seed", range(2))
def test_in_any_order_the_last_claim_alone_holds_and_fences_only_grow(row: Row, seed: int) -> None:
    chance = random.Random(seed)
    claims: list[Held] = []
    holder: Held | None = None
    is_over = False
    for _ in range(STEPS):
        step = chance.choice(["take", "take", "lapse", "renew", "confirm", "hold", "lock", "give up"])
        held = chance.choice(claims[-3:]) if claims else None
        if step == "take":
            new = row.take()
            assert (new is not None) == (holder is None or is_over)
            if new is not None:
                assert all(new.guard["fence"] > old.guard["fence"] for old in claims)
                claims.append(new)
                holder, is_over = new, False
        elif step == "lapse" and holder is not None:
            row.lapse()
            is_over = True
        elif held is not None and held is not holder:
            assert_lost(row, held)
        elif held is not None and step == "give up":
            row.give_up(held)
            holder = None
        elif held is not None and step == "confirm" and is_over:
            with pytest.raises(FencedOutError):
                row.confirm(held)
        elif held is not None and step in ("renew", "confirm", "hold", "lock"):
            getattr(row, step)(held)
            is_over = is_over and step != "renew"


def at_once(*works: Callable[[], bool]) -> int:
    """Run all works in threads that start together; return how many returned True."""
    answers: list[bool] = []
    begin = threading.Barrier(len(works))

    def do(work: Callable[[], bool]) -> None:
        begin.wait()
        answers.append(work())

    threads = [threading.Thread(target=do, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == len(works), "a thread has failed"
    return sum(answers)


def test_of_workers_that_claim_at_once_one_has_the_row(row: Row) -> None:
    for _ in range(RACES):
        won: list[Held] = []

        def take(worker: str, won: list[Held] = won) -> bool:
            held = row.take(worker)
            if held is not None:
                won.append(held)
            return held is not None

        assert at_once(lambda: take("worker_1"), lambda: take("worker_2"), lambda: take("worker_3")) == 1
        row.confirm(won[0])
        row.lapse()


def test_of_a_late_renewal_and_another_worker_one_has_the_row(row: Row) -> None:
    for _ in range(RACES):
        held = taken(row)
        row.lapse()

        def renew(held: Held = held) -> bool:
            try:
                row.renew(held)
            except FencedOutError:
                return False
            return True

        assert at_once(renew, lambda: row.take("worker_2") is not None) == 1
        row.lapse()
