"""Tests of turns between tenants: nobody is served twice while another waits, and the memory is bounded."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import turns
from protocol.turns import TurnQueue

Key = tuple[int, str]
"""A rank and a tenant."""

KEYS = st.tuples(st.sampled_from([0, 0, 0, 1]), st.sampled_from("abcd"))
EVENTS = st.lists(st.one_of(KEYS, st.none()), max_size=80)
"""Arrivals, by rank and tenant; None: the next one is served."""


class Run:
    """A queue of arrival numbers, and everything that it served."""

    def __init__(self) -> None:
        self.queue: TurnQueue[int] = TurnQueue()
        self.served: list[Key] = []
        self._num_works = 0

    @property
    def waiting(self) -> set[Key]:
        return {(place.rank, place.tenant) for place in self.queue}

    def put(self, key: Key) -> None:
        rank, tenant = key
        self.queue.put(self._num_works, tenant=tenant, rank=rank)
        self._num_works += 1

    def serve(self) -> int | None:
        """Serve the next work; return it."""
        place = self.queue.first()
        if place is None:
            return None
        self.served.append((place.rank, place.tenant))
        return self.queue.take(place)

    def do(self, event: Key | None) -> None:
        self.serve() if event is None else self.put(event)


def ran(events: Sequence[Key | None]) -> Run:
    run = Run()
    for event in events:
        run.do(event)
    return run


@given(EVENTS, st.sampled_from([0, 1, 2, turns.MAX_REMEMBERED]))
def test_while_a_tenant_waits_no_other_of_its_rank_is_served_twice_and_none_of_a_worse_one(
    events: list[Key | None], max_remembered: int
) -> None:
    run = Run()
    before: defaultdict[Key, Counter[Key]] = defaultdict(Counter)  # by waiting work: the services of others meanwhile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "MAX_REMEMBERED", max_remembered)
        for event in [*events, *[None] * len(events)]:
            waiting = run.waiting
            run.do(event)
            if event is None and waiting:
                note(run.served[-1], waiting, before)
    assert not run.waiting


def note(served: Key, waiting: set[Key], before: dict[Key, Counter[Key]]) -> None:
    """Count a service for everything that waited meanwhile; only the first work of a tenant may be served."""
    assert served[0] == min(rank for rank, _ in waiting)
    before.pop(served, None)
    for other in waiting - {served}:
        before[other][served] += 1
        assert before[other][served] <= 1 or served[0] < other[0]


@given(EVENTS, st.integers(1, 200))
def test_a_newcomer_waits_for_no_backlog(events: list[Key | None], backlog: int) -> None:
    run = ran([*events, *[(1, "a")] * backlog, (1, "new")])
    ahead = {key for key in run.waiting if key[0] <= 1} - {(1, "new")}
    num_better = sum(place.rank < 1 for place in run.queue)
    run.served.clear()
    while (1, "new") in run.waiting:
        run.serve()
    assert len(run.served) <= num_better + sum(rank == 1 for rank, _ in ahead) + 1
    assert run.served.count((1, "a")) <= 1


@given(EVENTS)
def test_a_tenants_own_work_keeps_its_order(events: list[Key | None]) -> None:
    run = Run()
    last: dict[Key, int] = {}
    for event in [*events, *[None] * len(events)]:
        if event is not None:
            run.put(event)
        elif (work := run.serve()) is not None:
            assert work > last.get(run.served[-1], -1)
            last[run.served[-1]] = work


def test_tenants_that_came_once_are_forgotten() -> None:
    run = ran([event for number in range(5000) for event in ((0, f"t{number}"), None)])
    assert len(run.served) == 5000
    assert run.queue.num_remembered == turns.MAX_REMEMBERED
    assert list(run.queue) == []


def test_who_was_served_longest_ago_is_forgotten_first_and_overtakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = ((0, tenant) for tenant in "abc")
    monkeypatch.setattr(turns, "MAX_REMEMBERED", 1)
    assert ran([a, None, a, b, None, b, None]).served == [a, b, a]
    monkeypatch.setattr(turns, "MAX_REMEMBERED", 2)
    assert ran([a, None, b, None, a, None, c, None, b, a, None]).served == [a, b, a, c, b]


@given(EVENTS)
def test_who_still_waits_keeps_its_turn_when_all_that_waits_is_found_anew(events: list[Key | None]) -> None:
    plain, renewed = Run(), Run()
    for event in events:
        one_rank = None if event is None else (0, event[1])
        plain.do(one_rank)
        renewed.queue.renew([(place.tenant, place.work) for place in renewed.queue])
        renewed.do(one_rank)
    assert renewed.served == plain.served
    assert [place.work for place in renewed.queue] == [place.work for place in plain.queue]


def test_renewing_lets_go_what_waits_no_more() -> None:
    queue: TurnQueue[str] = TurnQueue()
    for tenant in "abc":
        queue.put(f"old {tenant}", tenant=tenant)
    queue.renew([("d", "new d"), ("c", "new c"), ("b", "new b")])
    assert [place.work for place in queue.firsts()] == ["new b", "new c", "new d"]
    assert len(queue) == 3


def test_a_place_that_is_left_is_no_turn() -> None:
    queue: TurnQueue[str] = TurnQueue()
    _, left, _, _ = (queue.put(work, tenant=work[0]) for work in ("a1", "a2", "a3", "b1"))
    queue.leave(left)
    order = []
    while (place := queue.first()) is not None:
        order.append(queue.take(place))
    assert order == ["a1", "b1", "a3"]
    assert len(queue) == 0


def test_who_was_served_just_now_goes_behind_who_was_not() -> None:
    run = ran([(0, "a"), None, (0, "a"), (0, "b")])
    run.serve()
    run.serve()
    assert run.served == [(0, "a"), (0, "b"), (0, "a")]


def test_a_turn_in_one_rank_is_none_in_another() -> None:
    run = ran([(1, "a"), None, (1, "b"), (0, "b"), (0, "b"), None, None, (1, "a"), None, None])
    assert run.served == [(1, "a"), (0, "b"), (0, "b"), (1, "b"), (1, "a")], "b was not served in this rank"
