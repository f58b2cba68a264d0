"""Tests that a run's usage is found by the run, however many batches its tenant has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy.orm import Session

from features.pipelines import steps
from features.pipelines.tables import Pipeline, Run, RunStep
from jobs.ids import new_id
from jobs.tables import Batch

MakeBatch = Callable[..., Batch]


def test_what_a_run_used_is_found_by_the_run(
    session: Session, pipeline: Pipeline, make_batch: MakeBatch, statements: list[tuple[str, Any]]
) -> None:
    at = datetime.now(UTC) - timedelta(days=30)
    times = {"created_at": at, "scheduled_for": at, "interval_start": at, "interval_end": at}
    run = Run(id=new_id("run"), tenant_id=pipeline.tenant_id, pipeline_id=pipeline.id, kind="manual", **times)
    run.state, run.ended_at = "succeeded", at + timedelta(hours=1)
    session.add(run)
    session.flush()
    during = {"created_at": at + timedelta(minutes=1)}
    make_batch(run_id=run.id, input_tokens=5, **during)  # of a step that was repeated
    make_batch(input_tokens=70, **during)
    make_batch(input_tokens=700)
    of_a_step = make_batch(run_id=run.id, input_tokens=3, output_tokens=4, **during)
    session.add(RunStep(flow_id=run.id, number=0, name="fields", num_lines=1, batch_id=of_a_step.id))
    session.commit()
    session.refresh(run)
    statements.clear()
    assert steps.used(session, run)[0] == 12
    conditions = index_conditions(session, *statements[-1])
    assert "(run_id = " in conditions
    assert "created_at" not in conditions


def index_conditions(session: Session, statement: str, values: Any) -> str:
    """Return the conditions with which a statement finds its rows in an index."""
    connection = session.connection()
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
    plan = connection.exec_driver_sql(f"EXPLAIN {statement}", values).scalars().all()
    return "\n".join(line for line in plan if "Index Cond" in line)
