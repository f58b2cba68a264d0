"""Tests of whose documents are read next."""

from __future__ import annotations

import threading

from workers.preparing.readers import ReaderPool, Readers
from workers.preparing.turns import Turns

LONG = 30.0
"""Seconds after which a test has failed."""


def take(turns: Turns[str], *, is_spare: bool = False) -> str | None:
    taken = turns.take(is_spare=is_spare, timeout_seconds=0)
    return None if taken is None else taken[1]


def put(turns: Turns[str], *works: str) -> None:
    """Put work of the tenants whose letter it begins with."""
    for work in works:
        turns.put(work[0], work)


def test_the_tenant_with_the_least_under_way_is_next() -> None:
    turns: Turns[str] = Turns(4)
    put(turns, "a1", "a2", "a3", "b1", "b2")
    assert [take(turns) for _ in range(4)] == ["a1", "b1", "a2", "b2"]
    turns.done("b")
    put(turns, "b3")
    assert take(turns) == "b3"


def test_tenants_with_as_much_under_way_take_turns() -> None:
    turns: Turns[str] = Turns(1)
    put(turns, "a1", "a2", "b1", "c1", "a3", "b2")
    order = []
    while (work := take(turns)) is not None:
        order.append(work)
        turns.done(work[0])
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_a_spare_thread_works_for_newcomers_while_the_others_are_at_work() -> None:
    turns: Turns[str] = Turns(2)
    put(turns, "a1", "a2", "a3")
    assert take(turns, is_spare=True) is None, "others are free"
    assert [take(turns), take(turns)] == ["a1", "a2"]
    assert take(turns, is_spare=True) is None, "nobody new waits"
    put(turns, "b1", "b2")
    assert take(turns, is_spare=True) == "b1"
    assert (turns.num_under_way, turns.num_waiting) == (3, 2)


def test_nothing_begins_once_turns_are_closed() -> None:
    turns: Turns[str] = Turns(1)
    put(turns, "a1")
    turns.close()
    assert take(turns) is None


def test_a_tenants_document_waits_for_no_slow_documents_of_another() -> None:
    pool = ReaderPool(2)
    pool.start()
    all_begun, is_over, is_read = threading.Barrier(3), threading.Event(), threading.Event()

    def read_slowly(readers: Readers) -> None:
        all_begun.wait(LONG)
        is_over.wait(LONG)

    try:
        for _ in range(2):
            pool.submit(read_slowly, tenant_id="slow")
        all_begun.wait(LONG)
        pool.submit(lambda readers: None, tenant_id="slow")
        pool.submit(lambda readers: is_read.set(), tenant_id="other")
        assert is_read.wait(LONG)
        assert pool.num_waiting == 1, "no further document of the slow tenant has begun"
    finally:
        is_over.set()
        pool.close()
