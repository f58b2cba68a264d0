"""Meters of runs and schedules, which are counted with the queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from features.pipelines.states import OPEN_RUN_STATES
from jobs.hooks import QueueCount
from jobs.telemetry.meters import Sample, gauge

RUNS = gauge("runs", "Runs of pipelines that have not ended.", "state")
FAILING_SCHEDULES = gauge(
    "failing_schedules",
    "Schedules whose last run failed.",
    alert="`tokenmill_failing_schedules > 0`: `tokenmill runs list` says which, and why",
)

QUEUE = (RUNS, FAILING_SCHEDULES)


def _runs(counts: Mapping[str, int]) -> Iterator[Sample]:
    for state in OPEN_RUN_STATES:
        yield Sample(meter=RUNS, labels={"state": state.value}, value=counts.get(state.value, 0))


def _failing_schedules(num_failing: int) -> Iterator[Sample]:
    yield Sample(meter=FAILING_SCHEDULES, value=num_failing)


OPEN_RUNS = QueueCount(
    name="runs",
    query="""
        SELECT coalesce(jsonb_object_agg(state, num), '{}') FROM (
            SELECT state, count(*) AS num FROM flow WHERE recipe = 'run' AND ended_at IS NULL GROUP BY state
        ) AS open_runs
    """,
    samples=_runs,
)
FAILED_SCHEDULES = QueueCount(
    name="failing_schedules",
    query="SELECT count(*) FROM schedule WHERE num_failures > 0",
    samples=_failing_schedules,
)
