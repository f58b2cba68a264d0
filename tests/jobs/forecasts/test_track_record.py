"""Tests of intervals for the ends of batches, from the errors of earlier forecasts of their model."""

from __future__ import annotations

import random

import pytest

from jobs.forecasts.track_record import Phase, TrackRecord
from jobs.states import Priority

KIND = (Phase.QUEUE, Priority.NORMAL)


def record_of(ratios: list[float]) -> TrackRecord:
    record = TrackRecord()
    for ratio in ratios:
        record = record.after(KIND, forecast_seconds=100.0, actual_seconds=100.0 * ratio)
    return record


def test_without_a_record_an_end_lies_in_a_wide_interval() -> None:
    for phase in Phase:
        factors = TrackRecord().factors((phase, Priority.BULK))
        assert 0 < factors.earliest < factors.expected < factors.latest


def test_what_always_came_late_is_expected_later() -> None:
    factors = record_of([1.5] * 60).factors(KIND)
    assert factors.expected == pytest.approx(1.5, rel=0.01)
    assert factors.earliest == pytest.approx(1.5, rel=0.01)
    assert factors.latest == pytest.approx(1.5, rel=0.01)
    assert record_of([1.5] * 60).factors((Phase.LAST, None)) == TrackRecord().factors((Phase.LAST, None)), (
        "one kind says nothing of another"
    )


def test_eight_of_ten_ends_like_the_earlier_ones_lie_in_the_interval() -> None:
    generator = random.Random(1)
    ratios = [generator.lognormvariate(0.2, 0.4) for _ in range(2000)]
    factors = record_of(ratios[:500]).factors(KIND)
    held = sum(factors.earliest <= ratio <= factors.latest for ratio in ratios[500:])
    assert 0.78 < held / 1500 < 0.92


def test_old_errors_give_way_to_new_ones() -> None:
    assert record_of([10.0] * 500 + [1.0] * 150).factors(KIND).latest == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("forecast", "actual"), [(0.0, 5.0), (5.0, 0.0), (5.0, -1.0)])
def test_what_has_no_length_teaches_nothing(forecast: float, actual: float) -> None:
    record = TrackRecord().after(KIND, forecast_seconds=forecast, actual_seconds=actual)
    assert record == TrackRecord()
