"""Tests of the workers' speed as measured by snapshots of computed tokens, and of how long it is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.forecasts.rates import Look, Rate, aged, measured, tokens_of_a_line

FULL = Rate(tokens_per_second=100.0, evidence_seconds=60.0, is_saturated=True)
LOOK = Look(
    seconds=10.0,
    tokens=2000,
    num_workers=1,
    is_saturated=True,
    used_tokens=500,
    estimated_tokens=1000,
    num_lines=10,
)


def after(before: Rate, look: Look) -> float | None:
    return measured(before, look).tokens_per_second


def test_the_first_steady_look_knows_the_speed_of_one_worker() -> None:
    assert after(Rate(is_saturated=True), LOOK) == 200.0
    assert after(Rate(is_saturated=True), replace(LOOK, num_workers=4)) == 50.0


def test_a_steady_look_moves_the_rate_by_the_time_that_it_saw() -> None:
    assert after(FULL, replace(LOOK, tokens=1900)) == pytest.approx((60 * 100 + 10 * 190) / 70)
    assert after(FULL, replace(LOOK, tokens=600)) == pytest.approx((60 * 100 + 10 * 60) / 70)


@pytest.mark.parametrize("factor", [0.01, 40.0])
def test_looks_that_contradict_a_rate_replace_it_within_a_minute(factor: float) -> None:
    rate = replace(FULL, evidence_seconds=120.0)
    for _ in range(12):
        rate = measured(aged(rate, 5.0), replace(LOOK, seconds=5.0, tokens=100 * factor * 5))
    assert rate.tokens_per_second == pytest.approx(100 * factor, rel=1.0)


@pytest.mark.parametrize(
    ("before", "look"),
    [
        (FULL, replace(LOOK, tokens=0)),
        (FULL, replace(LOOK, tokens=-50)),
        (FULL, replace(LOOK, num_workers=0)),
        (FULL, replace(LOOK, seconds=0.0)),
        (FULL, replace(LOOK, is_saturated=False)),
        (replace(FULL, is_saturated=False), LOOK),
    ],
)
def test_the_time_in_which_a_queue_comes_or_goes_says_nothing(before: Rate, look: Look) -> None:
    assert after(before, look) == 100.0
    assert after(replace(before, tokens_per_second=None), look) is None


def test_lines_that_run_and_get_nowhere_are_slow() -> None:
    stalled = replace(LOOK, tokens=0, running_lines=64)
    assert after(FULL, stalled) == pytest.approx(60 * 100 / 70)
    assert after(replace(FULL, tokens_per_second=None), stalled) is None


def test_workers_that_could_have_done_more_are_not_taken_for_slow() -> None:
    before, look = replace(FULL, is_saturated=False), replace(LOOK, is_saturated=False)
    assert after(before, replace(look, tokens=100)) == 100.0
    faster = after(before, look)
    assert faster is not None
    assert faster > 100


def test_a_rate_without_new_evidence_gives_way_to_what_is_seen_now() -> None:
    """A measurement of an hour ago counts as much as two of ten seconds."""
    old = replace(FULL, evidence_seconds=120.0)
    look = replace(LOOK, tokens=1900)
    assert after(old, look) == pytest.approx((120 * 100 + 10 * 190) / 130)
    assert after(aged(old, 3600), look) == pytest.approx((1.875 * 100 + 10 * 190) / 11.875)


def test_a_rate_of_long_ago_is_forgotten() -> None:
    assert aged(replace(FULL, evidence_seconds=120.0), 3600).tokens_per_second == 100.0
    forgotten = aged(replace(FULL, evidence_seconds=120.0), 5 * 3600)
    assert forgotten.tokens_per_second is None
    assert after(replace(forgotten, is_saturated=True), LOOK) == 200.0


def test_how_much_of_their_estimates_lines_use_is_less_believed_the_older_it_is() -> None:
    """Lines of an earlier batch used a hundredth of their estimates: another batch's may use all."""
    known = measured(Rate(), replace(LOOK, used_tokens=100, estimated_tokens=10_000, num_lines=1000))
    assert known.token_ratio == pytest.approx(0.01, abs=0.01)
    assert 0.05 < aged(known, 3600).token_ratio < 0.6
    assert aged(known, 6 * 3600).token_ratio > 0.99
    assert Rate().token_ratio == 1.0


def test_lines_that_are_seen_again_count_once() -> None:
    rate = Rate()
    for _ in range(50):
        rate = measured(rate, LOOK)
    assert (rate.evidence_lines, rate.ended_ratio) == (10.0, 0.5)


def test_a_line_takes_as_long_as_engines_had_lines_for_each_that_they_did() -> None:
    """384 lines in an engine, of which 4 a second end: 96 s each, by Little's law."""
    rate = measured(Rate(), replace(LOOK, running_lines=384, done_lines=40.0))
    assert rate.seconds_of_a_line == pytest.approx(96)
    assert aged(rate, 6 * 3600).seconds_of_a_line is None


def test_a_line_is_as_long_as_estimated_until_lines_of_its_batch_have_ended() -> None:
    def expected(num_finished: int, used: float) -> float:
        return tokens_of_a_line(estimated=100, token_ratio=0.5, num_finished=num_finished, used=used)

    assert expected(0, 0) == 50
    assert expected(32, 32 * 10) == pytest.approx(30)
    assert expected(10_000, 10_000 * 10) == pytest.approx(10, rel=0.02)
