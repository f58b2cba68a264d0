"""What two looks at the workers' counters say of their speed."""

from __future__ import annotations

import pytest

from jobs.forecasts.rates import Rate, measured, tokens_of_a_line


def look(before: Rate, tokens: int, *, seconds: float = 10.0, busy: bool = True, full: bool = True) -> Rate:
    return measured(
        before, {"w": tokens}, seconds=seconds, is_busy=busy, is_saturated=full, token_ratio=before.token_ratio
    )


FULL = Rate(tokens_per_second=100.0, counters={"w": 1000}, is_saturated=True)


def test_the_first_look_knows_no_speed_and_the_second_one_does() -> None:
    first = look(Rate(), 500)
    assert first.tokens_per_second is None
    assert look(first, 1500).tokens_per_second == 100.0


def test_idle_time_says_nothing() -> None:
    assert look(FULL, 1000, busy=False).tokens_per_second == 100.0
    assert look(FULL, 1001, busy=False).tokens_per_second == 100.0


def test_what_waits_for_a_free_worker_moves_the_rate_towards_what_was_measured() -> None:
    after = look(FULL, 3000).tokens_per_second
    assert after is not None
    assert 100 < after < 200


def test_workers_that_could_have_done_more_are_not_taken_for_slow() -> None:
    assert look(FULL, 1100, full=False).tokens_per_second == 100.0
    faster = look(FULL, 3000, full=False).tokens_per_second
    assert faster is not None
    assert faster > 100


def test_an_engine_that_was_restarted_and_a_worker_that_came_do_not_count() -> None:
    assert look(FULL, 10).tokens_per_second == 100.0
    new = measured(FULL, {"v": 9}, seconds=10.0, is_busy=True, is_saturated=True, token_ratio=1.0)
    assert (new.tokens_per_second, new.counters) == (100.0, {"v": 9})


def test_a_rate_is_one_workers() -> None:
    before = Rate(counters={"v": 0, "w": 0}, is_saturated=True)
    both = measured(before, {"v": 100, "w": 300}, seconds=1.0, is_busy=True, is_saturated=True, token_ratio=1.0)
    assert both.tokens_per_second == 200.0


def test_a_line_is_as_long_as_estimated_until_lines_of_its_batch_have_ended() -> None:
    def expected(num_finished: int, used: float) -> float:
        return tokens_of_a_line(estimated=100, token_ratio=0.5, num_finished=num_finished, used=used)

    assert expected(0, 0) == 50
    assert expected(32, 32 * 10) == pytest.approx(30)
    assert expected(10_000, 10_000 * 10) == pytest.approx(10, rel=0.02)
