"""Tests of the order of a model's work: the most urgent first, then tenants in turn, and nothing without a waiter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from workers.pooling.turns import Asker, PieceTurns
from workers.prompt_lengths import Unwanted

BULK = Asker(batch_id="bulk", tenant="a", priority=1)
OTHER = Asker(batch_id="other", tenant="b", priority=1)
URGENT = Asker(batch_id="urgent", tenant="c", priority=0)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_between_two_pieces_what_is_urgent_and_then_another_tenant_have_theirs() -> None:
    turns, order, threads = PieceTurns(), list[str](), list[threading.Thread]()

    def compute(asker: Asker) -> None:
        with turns.held(asker, lambda: True):
            order.append(asker.batch_id)

    with turns.held(BULK, lambda: True):
        for number, asker in enumerate((BULK, BULK, OTHER, URGENT), start=1):
            threads.append(threading.Thread(target=compute, args=(asker,)))
            threads[-1].start()
            wait_until(lambda number=number: turns.num_waiting == number)  # type: ignore[misc]
    for thread in threads:
        thread.join(60)
    assert order == ["urgent", "other", "bulk", "bulk"]


def test_a_newcomer_waits_for_no_backlog_however_many_urgent_pieces_there_were() -> None:
    turns, order, threads = PieceTurns(), list[str](), list[threading.Thread]()

    def begin(asker: Asker) -> None:
        num_waiting = turns.num_waiting
        threads.append(threading.Thread(target=compute, args=(asker,)))
        threads[-1].start()
        wait_until(lambda: turns.num_waiting > num_waiting)

    def compute(asker: Asker) -> None:
        with turns.held(asker, lambda: True):
            order.append(asker.batch_id)
            if order == ["urgent"] * 5:
                begin(OTHER)

    with turns.held(BULK, lambda: True):
        for asker in [BULK] * 3 + [URGENT] * 5:
            begin(asker)
    wait_until(lambda: len(threads) == 9)
    for thread in threads:
        thread.join(60)
    assert order == ["urgent"] * 5 + ["other"] + ["bulk"] * 3


def test_who_is_no_longer_wanted_gives_its_place_up() -> None:
    turns = PieceTurns()
    with turns.held(BULK, lambda: True):
        with pytest.raises(Unwanted), turns.held(URGENT, lambda: False):
            raise AssertionError("two at once")
        assert turns.num_waiting == 0
    with turns.held(OTHER, lambda: True):
        pass


def test_a_piece_that_fails_ends_its_turn() -> None:
    turns = PieceTurns()
    with pytest.raises(ZeroDivisionError), turns.held(BULK, lambda: True):
        raise ZeroDivisionError
    with turns.held(BULK, lambda: True):
        pass
