"""What two looks at finished lines say of the workers' speed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.forecasts.rates import Look, Rate, measured, tokens_of_a_line

FULL = Rate(tokens_per_second=100.0, is_saturated=True)
LOOK = Look(seconds=10.0, tokens=2000, num_workers=1, is_saturated=True, is_warm=True, token_ratio=0.5)


def after(before: Rate, look: Look) -> float | None:
    return measured(before, look).tokens_per_second


def test_the_first_steady_look_knows_the_speed_of_one_worker() -> None:
    assert after(Rate(is_saturated=True), LOOK) == 200.0
    assert after(Rate(is_saturated=True), replace(LOOK, num_workers=4)) == 50.0
    assert measured(FULL, LOOK).token_ratio == 0.5


def test_a_steady_look_moves_the_rate_towards_what_was_measured() -> None:
    rate = after(FULL, LOOK)
    assert rate is not None
    assert 100 < rate < 200
    slower = after(FULL, replace(LOOK, tokens=500))
    assert slower is not None
    assert 50 < slower < 100


@pytest.mark.parametrize(
    ("before", "look"),
    [
        (FULL, replace(LOOK, is_warm=False)),
        (FULL, replace(LOOK, tokens=0)),
        (FULL, replace(LOOK, num_workers=0)),
        (FULL, replace(LOOK, seconds=0.0)),
        (FULL, replace(LOOK, is_saturated=False)),
        (replace(FULL, is_saturated=False), LOOK),
    ],
)
def test_the_time_in_which_a_queue_comes_or_goes_says_nothing(before: Rate, look: Look) -> None:
    assert after(before, look) == 100.0
    assert after(replace(before, tokens_per_second=None), look) is None


def test_workers_that_could_have_done_more_are_not_taken_for_slow() -> None:
    before, look = replace(FULL, is_saturated=False), replace(LOOK, is_saturated=False)
    assert after(before, replace(look, tokens=100)) == 100.0
    faster = after(before, look)
    assert faster is not None
    assert faster > 100


def test_a_line_is_as_long_as_estimated_until_lines_of_its_batch_have_ended() -> None:
    def expected(num_finished: int, used: float) -> float:
        return tokens_of_a_line(estimated=100, token_ratio=0.5, num_finished=num_finished, used=used)

    assert expected(0, 0) == 50
    assert expected(32, 32 * 10) == pytest.approx(30)
    assert expected(10_000, 10_000 * 10) == pytest.approx(10, rel=0.02)
