"""Runs as API objects with their steps, in a few queries for a page of them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from features.pipelines import steps
from features.pipelines.schemas.pipelines import RunObject
from features.pipelines.tables import Run
from flows.nodes import batches_of
from jobs.database import clock


def run_object(session: Session, run: Run) -> RunObject:
    """Return a run as an API object."""
    return run_objects(session, [run])[0]


def run_objects(session: Session, runs: Sequence[Run]) -> list[RunObject]:
    ids = [run.id for run in runs]
    begun, used = steps.steps_of_each(session, ids), steps.used_by_each(session, ids)
    open_steps = [step for run in runs if run.ended_at is None for step in begun[run.id]]
    batches, now = batches_of(session, open_steps), clock(session)
    ends = {run.id: steps.expected_end(run, begun[run.id], batches, now=now) for run in runs}
    return [RunObject.of(run, begun[run.id], used[run.id], end=ends[run.id]) for run in runs]
