"""The report of a pipeline for a day, as values, and what follows from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Any

from features.pipelines.states import OPEN_RUN_STATES, RunState
from features.reports.drift import LEAST_NIGHTS, Measure
from flows.ends import FlowEnd

_OPEN = frozenset(state.value for state in OPEN_RUN_STATES)


class DayStatus(StrEnum):
    """What became of the runs of a day."""

    NO_RUN = "no_run"
    IN_PROGRESS = "in_progress"  # at least one has not ended
    SUCCEEDED = "succeeded"  # this and the next ones: the last one
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRun:
    """A run of the day."""

    run_id: str
    state: str
    reason: str | None
    scheduled_for: datetime
    ended_at: datetime | None
    num_rows: int
    """That its first step read."""
    num_failed: int
    """Of all its steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedStep:
    """The rows of a step without an answer."""

    run_id: str
    step: str
    num_rows: int
    num_failed: int
    codes: Mapping[str, int]
    """Failed rows by the code of their error; empty before the step is done."""
    failed_rows: Sequence[str]
    """Ids of the first ones."""
    rows_file_id: str | None
    failed_rows_file_id: str | None
    """The rows without an answer."""
    batch_id: str | None
    num_retryable: int
    """Failed lines of the batch, once it has ended: `tokenmill batch retry` runs them again, as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRun:
    """The next run of the pipeline's schedules."""

    schedule: str
    at: datetime
    local: datetime
    end: FlowEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A pipeline's day."""

    pipeline_id: str
    pipeline: str
    day: date
    zone: str
    runs: Sequence[DayRun]
    """In the order of their times."""
    used_tokens: int
    cost_picos: int
    cost_before_picos: int
    """Of the day before."""
    failed_steps: Sequence[FailedStep]
    measures: Sequence[Measure]
    num_nights: int
    """Earlier nights that were compared."""
    changed_steps: Sequence[str]
    """Steps that are not what they were in the last of those nights."""
    end: FlowEnd
    """When the day's run in progress is expected to end; unknown without one."""
    next_run: NextRun | None
    drifts: Sequence[Measure] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "drifts", [one for one in self.measures if one.has_drifted])

    @property
    def status(self) -> DayStatus:
        run = self._deciding
        if run is None:
            return DayStatus.NO_RUN
        return DayStatus.IN_PROGRESS if run.state in _OPEN else DayStatus(run.state)

    @property
    def reason(self) -> str | None:
        """Return why the run that decides the status failed, was skipped or cancelled, or waits."""
        return None if self._deciding is None else self._deciding.reason

    @property
    def _deciding(self) -> DayRun | None:
        """Return the run that decides the status: the last open one, else the last one."""
        # A run that was skipped in favour of another says nothing about the day.
        ran = [run for run in self.runs if run.state != RunState.SKIPPED] or self.runs
        return next((run for run in reversed(ran) if run.state in _OPEN), ran[-1] if ran else None)

    @property
    def ended_at(self) -> datetime | None:
        """Return when the last run ended; None while one has not."""
        ends = [run.ended_at for run in self.runs]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None

    @property
    def num_rows(self) -> int:
        return sum(run.num_rows for run in self.runs)

    @property
    def num_failed(self) -> int:
        return sum(run.num_failed for run in self.runs)


def changed_steps(tonight: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> list[str]:
    """Return the names of the steps of a definition that are new, or differ from an earlier one."""
    if tonight is None or before is None:
        return []
    earlier = {step["name"]: step for step in before["steps"]}
    return [step["name"] for step in tonight["steps"] if step != earlier.get(step["name"])]


def usual_end(at: datetime, durations: Sequence[timedelta]) -> FlowEnd:
    """Return when a run of a schedule ends if it takes as long as the last ones: their median, and their range.

    The durations count from the times for which the runs were due. Unknown after fewer than five runs.
    """
    if len(durations) < LEAST_NIGHTS:
        return FlowEnd()
    usual = timedelta(seconds=median(each.total_seconds() for each in durations))
    return FlowEnd(expected_at=at + usual, earliest_at=at + min(durations), latest_at=at + max(durations))
