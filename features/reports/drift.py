"""Drift: what differs from the nights before by more than they differ from each other, and than chance. Pure.

A measure of tonight is compared with the median of the earlier nights. It has drifted beyond the sum of a floor, of
what so few rows vary by chance, and of several widths between nights. The width is the second largest distance of an
earlier night from their median, so that one odd night does not hide a drift; seven nights estimate it poorly (a normal
value is beyond four MADs of the seven before in one night of 20), hence that many widths. Tests simulate quiet weeks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from features.reports.statistics import FieldStatistics, Night, StepStatistics

MOST_NIGHTS = 7
LEAST_NIGHTS = 5
"""Earlier nights with a step's rows; with fewer nothing is compared."""
_WIDTHS = {5: 12.0, 6: 8.0, 7: 5.0}
"""By the number of nights: fewer estimate the width worse."""
_SIGMAS = 4.5
"""Of what a number of rows varies by chance."""
_NIGHT_SIGMAS = 1.0
"""Of the width between nights, this is chance; with more, too much of what else they differ by would be left out."""
_NIGHT_LABEL_SIGMAS = 0.7
"""The same for labels, where the bound is wider than chance."""
_RARE = 0.001
"""The chance that all rows of a night fail, below which that is a drift."""
_RATE_FLOOR = 0.02
_LABELS_FLOOR = 0.05
_LENGTH_FLOOR = math.log(1.2)


class Kind(StrEnum):
    """What is measured of a step."""

    FAILED = "failed_rate"  # rows without an answer, of all
    NULL = "null_rate"  # answers in which a column is null, of all
    LABELS = "labels"  # half the sum of the distances of all labels' shares: how many answers have moved, of all
    LENGTH = "length"  # the geometric mean of the characters of a text, or the items of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelShare:
    """The share of one label."""

    label: str
    share: float
    usual: float
    """The median of the earlier nights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A measure of tonight beside the earlier nights."""

    step: str
    kind: Kind
    field: str | None
    """The column of the answers; None: of whole rows."""
    value: float
    usual: float
    """The median of the earlier nights."""
    low: float
    """Where drift begins: below this, or above `high`."""
    high: float
    labels: Sequence[LabelShare] = ()
    """Those that moved most, first."""

    @property
    def has_drifted(self) -> bool:
        return not self.low <= self.value <= self.high


def measures(tonight: Night, before: Sequence[Night]) -> list[Measure]:
    """Compare a night with up to seven earlier ones; steps and columns with too few nights are left out."""
    found: list[Measure] = []
    for name, step in tonight.items():
        earlier = [night[name] for night in before[:MOST_NIGHTS] if name in night and night[name].num_rows]
        if step.num_rows and len(earlier) >= LEAST_NIGHTS:
            found += _of_step(name, step, earlier)
    return found


def _of_step(name: str, step: StepStatistics, before: Sequence[StepStatistics]) -> Iterator[Measure]:
    failed = [(one.num_failed, one.num_rows) for one in before]
    yield _rate(name, Kind.FAILED, None, (step.num_failed, step.num_rows), failed)
    for column, tonight in step.fields.items():
        earlier = [one.fields[column] for one in before if column in one.fields]
        for measured in (_nulls, _labels, _lengths):
            one = measured(name, column, tonight, earlier)
            if one is not None:
                yield one


def _nulls(step: str, column: str, tonight: FieldStatistics, before: Sequence[FieldStatistics]) -> Measure | None:
    nights = _with(before, lambda one: one.num_answers)
    if nights is None or not tonight.num_answers:
        return None
    rates = [(one.num_nulls, one.num_answers) for one in nights]
    return _rate(step, Kind.NULL, column, (tonight.num_nulls, tonight.num_answers), rates)


def _lengths(step: str, column: str, tonight: FieldStatistics, before: Sequence[FieldStatistics]) -> Measure | None:
    nights = _with(before, lambda one: one.num_lengths)
    if nights is None or not tonight.num_lengths:
        return None
    values = [one.log_length for one in nights]
    # Of the nights before, as tonight's answers may all be equally wrong.
    deviation = median(one.log_deviation for one in nights)
    chance = _SIGMAS * deviation * math.sqrt(1 / tonight.num_lengths + 1 / sum(one.num_lengths for one in nights))
    usual = median(values)
    reach = _LENGTH_FLOOR + chance + _spread(values, [deviation / math.sqrt(one.num_lengths) for one in nights])
    return Measure(
        step=step,
        kind=Kind.LENGTH,
        field=column,
        value=math.expm1(tonight.log_length),
        usual=math.expm1(usual),
        low=math.expm1(usual - reach),
        high=math.expm1(usual + reach),
    )


def _labels(step: str, column: str, tonight: FieldStatistics, before: Sequence[FieldStatistics]) -> Measure | None:
    nights = _with(before, lambda one: sum((one.labels or {}).values()))
    if nights is None or not tonight.labels:
        return None
    names = list(dict.fromkeys(name for one in (*nights, tonight) for name in one.labels or {}))
    shares = [_shares(one.labels or {}, names) for one in nights]
    usual = [median(night[number] for night in shares) for number in range(len(names))]
    own = _shares(tonight.labels, names)
    distances = [_distance(night, usual) for night in shares]
    num_answers, num_before = sum(tonight.labels.values()), sum(sum((one.labels or {}).values()) for one in nights)
    chance = _label_chance(usual, 1 / (1 / num_answers + 1 / num_before), _SIGMAS)
    night_chance = median(_label_chance(usual, sum((one.labels or {}).values()), _NIGHT_LABEL_SIGMAS) for one in nights)
    reach = _LABELS_FLOOR + chance + _widths(distances, night_chance)
    moved = sorted(zip(names, own, usual, strict=True), key=lambda each: -abs(each[1] - each[2]))
    return Measure(
        step=step,
        kind=Kind.LABELS,
        field=column,
        value=_distance(own, usual),
        usual=median(distances),
        low=0.0,
        high=reach,
        labels=[LabelShare(label=label, share=share, usual=was) for label, share, was in moved],
    )


def _with(
    before: Sequence[FieldStatistics], number: Callable[[FieldStatistics], int]
) -> Sequence[FieldStatistics] | None:
    """Return the nights that have something to compare; None if they are too few."""
    nights = [one for one in before if number(one)]
    return nights if len(nights) >= LEAST_NIGHTS else None


def _rate(
    step: str, kind: Kind, column: str | None, tonight: tuple[int, int], before: Sequence[tuple[int, int]]
) -> Measure:
    number, num_rows = tonight
    num_before = sum(rows for _, rows in before)
    rates = [part / rows for part, rows in before]
    usual = median(rates)
    # Neither 0 nor 1: that no row failed among a thousand does not mean that none can.
    likely = (usual * num_before + 1) / (num_before + 2)
    deviation = math.sqrt(likely * (1 - likely) * (1 / num_rows + 1 / num_before))
    # Bernstein's second term: a rate near 0 is skewed, so that few rows vary by more than their deviation.
    chance = _SIGMAS * deviation + _SIGMAS**2 / (3 * num_rows)
    reach = _RATE_FLOOR + chance + _spread(rates, [math.sqrt(likely * (1 - likely) / rows) for _, rows in before])
    # However much nights differ, one without any answer is none of them, unless its rows may all have failed by chance.
    is_lost_rarely = kind is Kind.FAILED and likely**num_rows < _RARE
    return Measure(
        step=step,
        kind=kind,
        field=column,
        value=number / num_rows,
        usual=usual,
        low=max(usual - reach, 0.0),
        high=min(usual + reach, 1.0 - 0.5 / num_rows if is_lost_rarely else 1.0),
    )


def _spread(values: Sequence[float], deviations: Sequence[float]) -> float:
    """Return by how much earlier nights differ from their median beyond chance, in several widths."""
    usual = median(values)
    return _widths([abs(value - usual) for value in values], _NIGHT_SIGMAS * median(deviations))


def _widths(distances: Sequence[float], chance: float) -> float:
    width = sorted(distances)[-2]
    return _WIDTHS[len(distances)] * math.sqrt(max(width**2 - chance**2, 0.0))


def _shares(labels: Mapping[str, int], names: Sequence[str]) -> list[float]:
    total = sum(labels.values())
    return [labels.get(name, 0) / total for name in names]


def _distance(shares: Sequence[float], others: Sequence[float]) -> float:
    return sum(abs(one - other) for one, other in zip(shares, others, strict=True)) / 2


def _label_chance(usual: Sequence[float], num_rows: float, sigmas: float) -> float:
    """Return by how much the labels of so many answers differ by chance: the mean, and McDiarmid's bound beyond it."""
    mean = sum(math.sqrt(2 / math.pi * share * (1 - share) / num_rows) for share in usual) / 2
    return mean + sigmas / (2 * math.sqrt(num_rows))
