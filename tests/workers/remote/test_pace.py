"""Tests of the number of requests at once."""

from __future__ import annotations

from workers.remote.calls.pace import Pace


def answer(pace: Pace, *, now: float, took: float = 1.0, is_full: bool = True) -> None:
    pace.note_answer(began_at=now - took, now=now, prompt_tokens=0, completion_tokens=2, is_full=is_full)


def test_a_full_and_quick_server_is_asked_for_more_up_to_the_most() -> None:
    pace = Pace(start=2, most=4)
    for now in range(100):
        answer(pace, now=float(now))
    assert pace.limit == 4


def test_seats_that_stay_free_add_none() -> None:
    pace = Pace(start=2, most=64)
    for now in range(100):
        answer(pace, now=float(now), is_full=False)
    assert pace.limit == 2


def test_a_busy_server_is_asked_for_less_once_for_all_that_were_under_way() -> None:
    pace = Pace(start=100, most=100)
    for began_at in range(1, 50):
        pace.note_busy(began_at=float(began_at), now=60.0)
    assert pace.limit == 70
    pace.note_busy(began_at=61.0, now=62.0)
    assert pace.limit == 49


def test_it_never_falls_below_one() -> None:
    pace = Pace(start=2, most=8)
    for now in range(1, 50):
        pace.note_busy(began_at=float(now), now=float(now))
    assert pace.limit == 1


def test_a_server_that_becomes_slow_for_its_tokens_is_asked_for_less_but_not_for_nearly_nothing() -> None:
    pace = Pace(start=40, most=40)
    answer(pace, now=1.0, took=0.1)
    for now in range(2, 200):
        answer(pace, now=float(now), took=0.9)
    assert pace.limit == 10


def test_a_long_answer_is_not_a_slow_one() -> None:
    pace = Pace(start=40, most=40)
    answer(pace, now=1.0, took=0.1)
    pace.note_answer(began_at=2.0, now=12.0, prompt_tokens=16_000, completion_tokens=1000, is_full=True)
    assert pace.limit == 40
