"""Tests of the rule by which a worker of several models serves one of them. A worker computes a token a second."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.scaling.next_model import Demand, next_model
from jobs.scaling.rule import Due
from jobs.states import Priority

NOW = 1_000_000.0
START = 60.0
NORMAL, URGENT, BULK, OVERFLOW = Priority.NORMAL, Priority.URGENT, Priority.BULK, Priority.OVERFLOW
Work = tuple[Priority, float, float]
"""Class, minutes to the deadline, and minutes of work until then."""


def demand(
    model: str, *work: Work, rate: float | None = 1.0, others: int = 0, is_asked: bool = False, has_chunks: bool = False
) -> Demand:
    dues = {
        priority: [
            Due(at=NOW + 60 * left, tokens=60 * minutes) for one, left, minutes in sorted(work) if one is priority
        ]
        for priority in {priority for priority, _, _ in work}
    }
    return Demand(
        model=model, start_seconds=START, dues=dues, rate=rate, others=others, is_asked=is_asked, has_chunks=has_chunks
    )


def chosen(*demands: Demand, serving: str | None = "a", served_minutes: float = 60) -> str:
    return next_model(demands, serving=serving, served_seconds=60 * served_minutes, now=NOW)


DECISIONS: Sequence[tuple[str, Sequence[Work], Sequence[Work], str]] = [
    ("both can wait for their turn", [(NORMAL, 600, 60)], [(NORMAL, 600, 60)], "a"),
    ("the other may wait until the worker is free", [(NORMAL, 90, 30)], [(NORMAL, 120, 60)], "a"),
    ("the other would be late, and there is time for both", [(NORMAL, 1440, 300)], [(NORMAL, 30, 28.5)], "b"),
    ("the other has time still, so the worker stays for now", [(NORMAL, 1440, 300)], [(NORMAL, 60, 20)], "a"),
    ("staying meets both deadlines, leaving only one", [(NORMAL, 12, 10)], [(NORMAL, 60, 45)], "a"),
    ("a deadline is missed in any case, and it is kept", [(NORMAL, 12, 11)], [(NORMAL, 12, 10)], "a"),
    ("more work is lost by staying", [(NORMAL, 25, 30)], [(NORMAL, 62, 60)], "b"),
    ("less work is lost by staying", [(NORMAL, 62, 60)], [(NORMAL, 31, 10)], "a"),
    ("both are hopeless, so no time is lost to a switch", [(NORMAL, 10, 500)], [(NORMAL, 10, 500)], "a"),
    (
        "part of the own work can wait",
        [(NORMAL, 5, 3), (NORMAL, 900, 300)],
        [(NORMAL, 40, 30)],
        "a",
    ),
    ("a higher class that would be late is worth more", [(NORMAL, 62, 60)], [(URGENT, 12, 10)], "b"),
    ("a lower class that would be late is worth less", [(URGENT, 12, 10)], [(BULK, 65, 60)], "a"),
    ("a higher class goes first where no deadline is lost", [(BULK, 1440, 300)], [(URGENT, 1440, 1)], "b"),
    ("a lower class waits", [(URGENT, 1440, 300)], [(BULK, 1440, 1)], "a"),
    ("overflow gives way", [(OVERFLOW, 1440, 300)], [(BULK, 1440, 1)], "b"),
    ("overflow waits", [(BULK, 1440, 300)], [(OVERFLOW, 1440, 1)], "a"),
]


@pytest.mark.parametrize(("own", "other", "model"), [row[1:] for row in DECISIONS], ids=[row[0] for row in DECISIONS])
def test_a_worker_stays_or_switches(own: Sequence[Work], other: Sequence[Work], model: str) -> None:
    assert chosen(demand("a", *own), demand("b", *other)) == model


def test_a_free_worker_goes_where_work_is_due_first() -> None:
    late, soon = demand("b", (NORMAL, 900, 60)), demand("c", (NORMAL, 90, 60))
    assert chosen(demand("a"), late, soon) == "c"
    assert chosen(demand("a"), late, soon, serving=None) == "c"
    assert chosen(demand("a"), late, demand("c")) == "b"
    assert chosen(demand("a"), demand("b"), demand("c")) == "a"
    assert chosen(demand("a"), demand("b"), serving=None) == "a"


def test_a_free_worker_helps_where_others_would_do_in_time() -> None:
    assert chosen(demand("a"), demand("b", (NORMAL, 600, 60), others=3)) == "b"


def test_work_that_other_workers_do_in_time_needs_no_switch() -> None:
    own, other = (NORMAL, 1440, 300), (NORMAL, 30, 28.5)
    assert chosen(demand("a", own), demand("b", other)) == "b"
    assert chosen(demand("a", own), demand("b", other, others=1)) == "a"


def test_work_without_a_measurement_is_served_by_a_free_worker_alone() -> None:
    assert chosen(demand("a"), demand("b", is_asked=True)) == "b"
    assert chosen(demand("a", (NORMAL, 600, 60)), demand("b", is_asked=True)) == "a"
    assert chosen(demand("a"), demand("b", is_asked=True), demand("c", (NORMAL, 600, 60))) == "c"
    new = demand("a", is_asked=True, has_chunks=True)
    assert chosen(new, demand("b", (NORMAL, 600, 60))) == "a", "it is measured in a moment"
    counting = demand("a", is_asked=True)
    assert chosen(counting, demand("b", (URGENT, 5, 1))) == "b", "counts of inputs have no deadline, ever"


def test_a_switch_for_a_class_alone_waits_until_the_model_was_served_as_long_as_switches_take() -> None:
    own, other = demand("a", (BULK, 1440, 300)), demand("b", (URGENT, 1440, 1))
    assert chosen(own, other, served_minutes=1.9) == "a"
    assert chosen(own, other, served_minutes=2.1) == "b"
    late = demand("b", (URGENT, 10, 8))
    assert chosen(own, late, served_minutes=0.1) == "b", "a deadline does not wait"


def test_an_unknown_rate_counts_as_the_slowest_known_one() -> None:
    own = demand("a", (NORMAL, 1440, 300), rate=1.0)
    assert chosen(own, demand("b", (NORMAL, 30, 28.5), rate=None)) == "b"
    assert chosen(own, demand("b", (NORMAL, 30, 2850), rate=100.0)) == "b"
    assert chosen(own, demand("b", (NORMAL, 30, 28.5), rate=100.0)) == "a"


def test_without_any_rate_the_worker_stays_or_goes_by_the_first_deadline() -> None:
    late, soon = demand("a", (NORMAL, 900, 60), rate=None), demand("b", (NORMAL, 9, 60), rate=None)
    assert chosen(late, soon) == "a"
    assert chosen(late, soon, serving=None) == "b"


def test_of_three_models_the_one_that_would_be_late_is_served() -> None:
    lazy = demand("a", (NORMAL, 1440, 300))
    assert chosen(lazy, demand("b", (NORMAL, 600, 60)), demand("c", (NORMAL, 20, 18.5))) == "c"
    assert chosen(lazy, demand("b", (NORMAL, 20, 18.5)), demand("c", (NORMAL, 600, 60))) == "b"


works = st.lists(st.tuples(st.sampled_from([URGENT, NORMAL, BULK]), st.floats(1, 600), st.floats(0.5, 200)), max_size=3)


@given(works, works)
def test_a_worker_that_has_switched_does_not_return_at_once(own: list[Work], other: list[Work]) -> None:
    demands = demand("a", *own), demand("b", *other)
    if chosen(*demands) == "b":
        later = NOW + START
        assert next_model(demands, serving="b", served_seconds=0.0, now=later) == "b"
