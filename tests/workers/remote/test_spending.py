"""Tests of what is reserved for a chunk's lines at midnight, and while the chunk drops them."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import event, text

from jobs.accounts import spill_days
from jobs.accounts.spill_days import Asker
from tests.workers.remote.builders import Post
from tests.workers.remote.spilling import MakeLine, SubmitLines, TenTokens, spill, used_by_day
from workers.remote.calls.outcomes import Outcome
from workers.remote.spending import SpillSpending
from workers.remote.verdicts import Unpaid


@pytest.mark.parametrize("has_room", [True, False])
def test_a_line_that_was_reserved_yesterday_is_reserved_today_before_it_is_sent(
    post: Post, submit_late: SubmitLines, line: MakeLine, *, has_room: bool
) -> None:
    submit_late([line(0)])
    post.open(spill=spill(100))
    asked = TenTokens(0)  # costs 80
    assert post.answerer is not None
    claim = post.claim()
    spending = SpillSpending(claim, spill(100), post.maker)
    assert spending.reserve([asked]) == [True]
    assert spending.permit(asked).may_send()
    assert post.rows("SELECT used_picos::int FROM spill_day") == [(80,)]
    _pass_midnight(post, spending)
    with post.maker.begin() as session:
        other = Asker(model="demo", batch_id=claim.batch_id, chunk_id=claim.chunk_id, fence=claim.fence)
        spill_days.reserve(session, other, [20 if has_room else 21], budget_picos=100)
    assert spending.permit(asked).may_send() == has_room
    assert used_by_day(post) == [80, 100 if has_room else 21]
    spending.settle(asked, Outcome(verdict=Unpaid()))
    _flush(post, spending)
    assert used_by_day(post) == [0, 20 if has_room else 21]


def _flush(post: Post, spending: SpillSpending) -> None:
    with post.maker.begin() as session:
        spill_days.settle(session, "demo", spending.pop().unused)


def test_a_line_that_is_dropped_while_it_is_reserved_anew_returns_all(
    post: Post, submit_late: SubmitLines, line: MakeLine
) -> None:
    submit_late([line(0)])
    post.open(spill=spill(100))
    gate, is_reserving = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        if threading.current_thread() is sender:
            is_reserving.set()
            assert gate.wait(20)

    asked, caller = TenTokens(0), SimpleNamespace(withdraw=frozenset)
    spending = SpillSpending(post.claim(), spill(100), post.maker)
    sender = threading.Thread(target=spending.permit(asked).may_send)
    assert spending.reserve([asked]) == [True]
    _pass_midnight(post, spending)
    event.listen(post.maker.kw["bind"], "begin", hold)
    sender.start()
    assert is_reserving.wait(20)
    dropping = threading.Thread(target=spending.drop, args=(caller, {0: "key"}))
    dropping.start()
    dropping.join(0.2)  # ends only if it does not wait for the other thread
    gate.set()
    sender.join()
    dropping.join()
    assert used_by_day(post) == [80, 80]
    _flush(post, spending)
    assert used_by_day(post) == [0, 0]


@pytest.mark.parametrize("is_sent", [True, False])
def test_nothing_is_reserved_for_a_line_that_has_been_dropped(
    post: Post, submit_late: SubmitLines, line: MakeLine, *, is_sent: bool
) -> None:
    submit_late([line(0)])
    post.open(spill=spill(200))
    asked = TenTokens(0)
    caller: Any = SimpleNamespace(withdraw=lambda keys: frozenset(() if is_sent else keys))
    spending = SpillSpending(post.claim(), spill(200), post.maker)
    spending.reserve([asked])
    spending.drop(caller, {0: "key"})
    permit = spending.permit(asked)
    assert not permit.may_repeat()
    _pass_midnight(post, spending)
    assert not permit.may_send()
    assert used_by_day(post) == [80]
    assert sum(spending.pop().unused.values()) == (0 if is_sent else 80)


def _pass_midnight(post: Post, spending: SpillSpending) -> None:
    with post.maker.begin() as session:
        session.execute(text("UPDATE spill_day SET day = day - 1"))
    for line_no, (reserved,) in spending._reserved.items():
        spending._reserved[line_no] = [replace(reserved, day=reserved.day - timedelta(days=1))]
