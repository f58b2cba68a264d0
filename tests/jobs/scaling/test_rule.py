"""Tests of the rule: the fewest workers that meet every deadline, within an operator's settings."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import InputError
from jobs.scaling.limits import Limits
from jobs.scaling.rule import HELD_SECONDS, Due, Peak, decisive, needed_workers, wanted_workers, with_peak

LIMITS = Limits(max_workers=20, startup_seconds=100)


def needed(*dues: tuple[float, float], limits: Limits = LIMITS, rate: float | None = 10.0, live: int = 0) -> int:
    kept = decisive((Due(at=at, tokens=tokens) for at, tokens in dues), now=0)
    return needed_workers(kept, limits, rate=rate, live=live, now=0)


def test_without_work_the_warm_pool_stays() -> None:
    assert needed() == 0
    assert needed(limits=Limits(max_workers=20, min_workers=3)) == 3


def test_any_work_wants_one_worker_and_an_unknown_rate_no_more() -> None:
    assert needed((10_000, 1)) == 1
    assert needed((200, 1e9), rate=None) == 1


@pytest.mark.parametrize(("tokens", "live", "number"), [(8_000, 0, 1), (8_010, 0, 2), (9_000, 1, 1), (9_010, 1, 2)])
def test_new_workers_begin_after_their_start_up_and_all_end_one_before_the_deadline(
    tokens: float, live: int, number: int
) -> None:
    assert needed((1_000, tokens), live=live) == number


def test_the_most_demanding_deadline_decides() -> None:
    assert needed((1_000, 8_000), (2_000, 80_000), (90_000, 100_000)) == 5


def test_a_deadline_that_new_workers_miss_wants_enough_for_one_more_start_up() -> None:
    assert needed((150, 4_500)) == 5
    assert needed((-5, 4_500)) == 5
    assert needed((150, 4_500), live=6) == 6


def test_a_deadline_that_running_workers_just_miss_stops_none_of_them() -> None:
    assert needed((100, 1_000), live=2) == 2
    assert needed((99.9, 1_000), live=2) == 2
    assert needed((-5, 1_000), live=7) == 7


@pytest.mark.parametrize("live", [0, 3])
def test_the_number_does_not_jump_while_a_deadline_comes_closer(live: int) -> None:
    """5,000 tokens at 10 a second, a start-up of 100 s: without a bound the time that new workers have falls to 0."""
    wide = Limits(max_workers=10_000, startup_seconds=100)
    numbers = [needed((seconds, 5_000), live=live, limits=wide) for seconds in range(600, 0, -1)]
    assert max(numbers) == 5
    assert all(abs(after - before) <= 1 for before, after in pairwise(numbers))


def test_no_more_workers_than_allowed_by_number_and_by_money() -> None:
    assert needed((400, 1e6)) == 20
    money = Limits(max_workers=20, startup_seconds=100, worker_hour_picos=3, max_hour_picos=20)
    assert needed((400, 1e6), limits=money) == 6


def test_a_smaller_number_waits_for_five_minutes() -> None:
    peaks: list[Peak] = []
    answers = []
    for now, number in [(0, 2), (30, 5), (60, 3), (90, 1), (330, 1), (331, 1), (360, 1), (390, 1)]:
        peaks = with_peak(peaks, number, now=now)
        answers.append(wanted_workers(number, peaks, LIMITS, now=now))
    assert HELD_SECONDS == 300
    assert answers == [2, 5, 5, 5, 3, 3, 1, 1]


def test_a_lower_limit_holds_at_once() -> None:
    peaks = [Peak(at=0, num_workers=15)]
    assert wanted_workers(1, peaks, Limits(max_workers=4), now=10) == 4


work = st.lists(st.tuples(st.floats(1, 1e5), st.floats(0, 1e6)), min_size=1, max_size=12)


@given(work=work, live=st.integers(0, 5), rate=st.floats(1, 1e3))
def test_the_deadlines_that_are_kept_decide_as_all_do(work: list[tuple[float, float]], live: int, rate: float) -> None:
    dues = [Due(at=at, tokens=tokens) for at, tokens in work]
    all_of_them = needed_workers(dues, LIMITS, rate=rate, live=live, now=0)
    kept = decisive(dues, now=0)
    assert needed_workers(kept, LIMITS, rate=rate, live=live, now=0) >= all_of_them
    assert {due.tokens for due in kept} <= {due.tokens for due in dues}
    assert [due.tokens for due in kept] == sorted({due.tokens for due in kept})


def test_ten_thousand_deadlines_of_a_day_are_some_hundreds_at_nearly_the_same_number() -> None:
    dues = [Due(at=600 + number * 8.0, tokens=1_000.0 * number) for number in range(10_000)]
    kept = decisive(dues, now=0)
    assert len(kept) < 1_200
    wide = Limits(max_workers=10_000, startup_seconds=1)
    all_of_them = needed_workers(dues, wide, rate=0.1, live=0, now=0)
    assert all_of_them <= needed_workers(kept, wide, rate=0.1, live=0, now=0) <= all_of_them * 1.006


@pytest.mark.parametrize(
    "values",
    [
        {"max_workers": 0},
        {"max_workers": 2, "min_workers": 3},
        {"max_workers": 2, "startup_seconds": 0.5},
        {"max_workers": 2, "startup_seconds": float("nan")},
        {"max_workers": 2, "expected_rate": float("nan")},
        {"max_workers": 2, "worker_hour_picos": 1},
        {"max_workers": 2, "worker_hour_picos": 5, "max_hour_picos": 4},
    ],
)
def test_settings_that_exclude_each_other_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(InputError):
        Limits(**values)  # type: ignore[arg-type]
