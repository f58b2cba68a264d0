"""Tests of drift on simulated nights: quiet weeks stay quiet, planted drifts show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from features.reports import drift
from features.reports.drift import Kind
from features.reports.statistics import FieldStatistics, Night, StepStatistics, night_of

Shares = dict[str, float]
SENTIMENTS: Shares = {"good": 0.6, "neutral": 0.3, "bad": 0.1}


class Nights:
    """A pipeline whose nights differ by chance, and by `variation`, relative to each rate, share and length."""

    def __init__(self, seed: int, *, rows: int = 500, variation: float = 0.1) -> None:
        self._random = np.random.default_rng(seed)
        self._rows, self._variation = rows, variation

    def night(
        self,
        *,
        failed: float = 0.01,
        nulls: float = 0.03,
        labels: Shares = SENTIMENTS,
        log_length: float = 4.0,
    ) -> Night:
        num_rows = max(3, int(self._rows * np.exp(self._random.normal(0, 0.3))))
        num_failed = self._number(num_rows, failed)
        answered = num_rows - num_failed
        fields = {"summary": self._text(answered, nulls, log_length), "sentiment": self._labels(answered, labels)}
        return {"fields": StepStatistics(num_rows=num_rows, num_failed=num_failed, fields=fields)}

    def _varied(self) -> float:
        return float(np.exp(self._random.normal(0, self._variation)))

    def _number(self, num_rows: int, rate: float) -> int:
        return int(self._random.binomial(num_rows, min(rate * self._varied(), 1.0)))

    def _text(self, num_rows: int, nulls: float, log_length: float) -> FieldStatistics:
        num_nulls = self._number(num_rows, nulls)
        mean = log_length + float(self._random.normal(0, self._variation / 2))
        logarithms = self._random.normal(mean, 0.5, num_rows - num_nulls)
        return FieldStatistics(
            num_values=num_rows - num_nulls,
            num_nulls=num_nulls,
            num_lengths=num_rows - num_nulls,
            log_sum=float(logarithms.sum()),
            log_squares=float((logarithms**2).sum()),
        )

    def _labels(self, num_rows: int, labels: Shares) -> FieldStatistics:
        weights = np.array([share * self._varied() for share in labels.values()])
        counts = self._random.multinomial(num_rows, weights / weights.sum())
        return FieldStatistics(
            num_values=num_rows, labels={label: int(count) for label, count in zip(labels, counts, strict=True)}
        )


def drifts(tonight: Night, before: list[Night]) -> list[tuple[Kind, str | None]]:
    return [(one.kind, one.field) for one in drift.measures(tonight, before) if one.has_drifted]


@pytest.mark.parametrize("variation", [0.0, 0.1, 0.2])
def test_at_most_one_of_200_quiet_weeks_has_a_drift(variation: float) -> None:
    num_noisy = 0
    for seed, rows in enumerate((20, 100, 500, 3000)):
        nights = Nights(seed, rows=rows, variation=variation)
        before = [nights.night(nulls=0.2) for _ in range(7)]
        for _ in range(50):
            is_noisy = False
            for _ in range(7):
                tonight = nights.night(nulls=0.2)
                is_noisy |= bool(drifts(tonight, before))
                before = [tonight, *before[:6]]
            num_noisy += is_noisy
    assert num_noisy <= 1


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ({"failed": 0.2}, (Kind.FAILED, None)),
        ({"nulls": 0.25}, (Kind.NULL, "summary")),
        ({"labels": {"good": 0.0, "neutral": 0.3, "bad": 0.7}}, (Kind.LABELS, "sentiment")),
        ({"labels": SENTIMENTS | {"unheard of": 2.0}}, (Kind.LABELS, "sentiment")),
        ({"log_length": 3.0}, (Kind.LENGTH, "summary")),
        ({"log_length": 5.0}, (Kind.LENGTH, "summary")),
    ],
)
def test_a_planted_drift_is_found_and_nothing_else(planted: Any, found: tuple[Kind, str | None]) -> None:
    for seed in range(20):
        nights = Nights(seed, rows=1000, variation=0.05)
        before = [nights.night() for _ in range(7)]
        assert drifts(nights.night(**planted), before) == [found]


def test_one_odd_night_does_not_hide_a_drift() -> None:
    nights = Nights(1, variation=0.05)
    before = [nights.night(nulls=0.5), *(nights.night() for _ in range(6))]
    assert drifts(nights.night(nulls=0.4), before) == [(Kind.NULL, "summary")]


def constant(rows: int = 1000, *, nulls: int = 0, labels: dict[str, int] | None = None) -> Night:
    lengths = {"num_lengths": rows - nulls, "log_sum": 3.0 * (rows - nulls), "log_squares": 9.0 * (rows - nulls)}
    if labels is not None:
        lengths = {}
    one = FieldStatistics(num_values=rows - nulls, num_nulls=nulls, labels=labels, **lengths)  # type: ignore[arg-type]
    return {"s": StepStatistics(num_rows=rows, num_failed=0, fields={"c": one})}


def failing(*, rows: int, failed: int) -> Night:
    return {"s": StepStatistics(num_rows=rows, num_failed=failed)}


@pytest.mark.parametrize("rows", [3, 200])
def test_a_night_in_which_every_row_failed_is_a_drift_however_much_nights_differ(rows: int) -> None:
    before = [failing(rows=rows, failed=rows * percent // 100) for percent in (0, 34, 0, 40, 0, 0, 0)]
    assert drifts(failing(rows=rows, failed=rows), before) == [(Kind.FAILED, None)]


def test_a_night_of_one_row_which_failed_is_no_drift() -> None:
    assert drifts(failing(rows=1, failed=1), [failing(rows=1, failed=0)] * 7) == []
    assert drifts(failing(rows=200, failed=200), [failing(rows=200, failed=200)] * 7) == []


@pytest.mark.parametrize(("num_nights", "num_measures"), [(0, 0), (4, 0), (5, 3), (7, 3), (9, 3)])
def test_a_night_is_compared_with_five_to_seven_nights(num_nights: int, num_measures: int) -> None:
    assert len(drift.measures(constant(), [constant()] * num_nights)) == num_measures


@pytest.mark.parametrize(
    "change",
    [lambda night: {}, lambda night: {"s": StepStatistics(num_rows=0, num_failed=0)}, lambda night: {"t": night["s"]}],
)
def test_a_step_without_rows_on_either_side_is_left_out(change: Callable[[Night], Night]) -> None:
    assert drift.measures(change(constant()), [constant()] * 7) == []
    assert drift.measures(constant(), [change(constant())] * 7) == []


def test_a_difference_below_the_floor_is_no_drift_however_many_rows_there_are() -> None:
    rows = 10_000_000
    before = [constant(rows)] * 7
    assert drifts(constant(rows, nulls=rows // 60), before) == []
    assert drifts(constant(rows, nulls=rows // 40), before) == [(Kind.NULL, "c")]


def test_labels_that_moved_most_are_first() -> None:
    before = [constant(labels={"a": 800, "b": 150, "c": 50})] * 7
    [*_, moved] = drift.measures(constant(labels={"a": 300, "b": 660, "d": 40}), before)
    assert moved.kind is Kind.LABELS
    assert moved.value == pytest.approx(0.55)
    assert [(one.label, one.share, one.usual) for one in moved.labels] == [
        ("b", 0.66, 0.15),
        ("a", 0.3, 0.8),
        ("c", 0.0, 0.05),
        ("d", 0.04, 0.0),
    ]


def test_the_runs_of_a_night_are_added_up() -> None:
    one = constant(10, nulls=1)["s"]
    other = StepStatistics(num_rows=5, num_failed=2, codes={"length": 2}, fields={})
    night = night_of([("s", one), ("s", one), ("t", other), ("t", other)])
    assert (night["s"].num_rows, night["s"].fields["c"].num_nulls) == (20, 2)
    assert night["s"].fields["c"].log_length == pytest.approx(3.0)
    assert (night["t"].num_failed, night["t"].codes) == (4, {"length": 4})
