"""Hints that wake control workers: a few at once, and few of a stream."""

from __future__ import annotations

from workers.turns.control_wakes import A_SECOND, MOST_AT_ONCE, ControlWakes


def test_batches_that_become_due_together_wake_a_few_workers() -> None:
    wakes = ControlWakes(monotonic=lambda: 0.0)
    assert wakes.take(3) == 3
    assert wakes.take(100) == MOST_AT_ONCE - 3
    assert wakes.take(1) == 0


def test_nothing_due_takes_nothing() -> None:
    wakes = ControlWakes(monotonic=lambda: 0.0)
    assert wakes.take(0) == 0
    assert wakes.take(100) == MOST_AT_ONCE


def test_a_stream_of_batches_wakes_so_many_a_second() -> None:
    now = 0.0
    wakes = ControlWakes(monotonic=lambda: now)
    wakes.take(MOST_AT_ONCE)
    taken = 0
    for tick in range(1, 41):
        now = tick / 4
        taken += wakes.take(9)
    assert taken == 10 * A_SECOND


def test_a_rest_allows_no_more_than_so_many_at_once() -> None:
    now = 0.0
    wakes = ControlWakes(monotonic=lambda: now)
    now = 1e6
    assert wakes.take(1000) == MOST_AT_ONCE
