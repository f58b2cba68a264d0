"""Statistics of answers as runs keep them: read, and added up over the runs of a night. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldStatistics:
    """The values of one column of the answers."""

    num_values: int = 0
    num_nulls: int = 0
    labels: Mapping[str, int] | None = None
    """Answers by label; None if its schema does not list its values."""
    num_lengths: int = 0
    log_sum: float = 0.0
    """Of the logarithms of 1 + the characters of a text, or the items of a list."""
    log_squares: float = 0.0

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        lengths = stored.get("lengths") or {}
        return cls(
            num_values=stored["values"],
            num_nulls=stored["nulls"],
            labels=stored.get("labels"),
            num_lengths=lengths.get("values", 0),
            log_sum=lengths.get("log_sum", 0.0),
            log_squares=lengths.get("log_squares", 0.0),
        )

    @property
    def num_answers(self) -> int:
        return self.num_values + self.num_nulls

    @property
    def log_length(self) -> float:
        """The mean logarithm of a length; there must be one."""
        return self.log_sum / self.num_lengths

    @property
    def log_deviation(self) -> float:
        """The standard deviation of those logarithms."""
        return math.sqrt(max(self.log_squares / self.num_lengths - self.log_length**2, 0.0))

    def __add__(self, other: FieldStatistics) -> FieldStatistics:
        both = self.labels is not None and other.labels is not None
        return FieldStatistics(
            num_values=self.num_values + other.num_values,
            num_nulls=self.num_nulls + other.num_nulls,
            labels=Counter(self.labels) + Counter(other.labels) if both else None,
            num_lengths=self.num_lengths + other.num_lengths,
            log_sum=self.log_sum + other.log_sum,
            log_squares=self.log_squares + other.log_squares,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatistics:
    """The answers of one step, of one run or several."""

    num_rows: int
    num_failed: int
    codes: Mapping[str, int] = field(default_factory=dict)
    """Failed rows by the code of their error."""
    fields: Mapping[str, FieldStatistics] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Self:
        """Read the statistics that a run keeps (`features.pipelines.step_work.answer_statistics`)."""
        return cls(
            num_rows=stored["rows"],
            num_failed=stored["failed"],
            codes=stored["codes"],
            fields={name: FieldStatistics.of(one) for name, one in stored["fields"].items()},
        )

    def __add__(self, other: StepStatistics) -> StepStatistics:
        """Add another run's; columns that only one of them has are left out: its step was changed between them."""
        common = [name for name in self.fields if name in other.fields]
        return StepStatistics(
            num_rows=self.num_rows + other.num_rows,
            num_failed=self.num_failed + other.num_failed,
            codes=Counter(self.codes) + Counter(other.codes),
            fields={name: self.fields[name] + other.fields[name] for name in common},
        )


Night = Mapping[str, StepStatistics]
"""The statistics of the runs of a night, by step."""


def night_of(steps: Iterable[tuple[str, StepStatistics]]) -> Night:
    """Return the statistics of a night from those of each step of its runs."""
    night: dict[str, StepStatistics] = {}
    for name, one in steps:
        night[name] = night[name] + one if name in night else one
    return night
