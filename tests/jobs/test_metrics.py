"""Tests that the queue's metrics cost only open work, not the whole history."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines.tables import Pipeline, Run
from jobs import metrics
from jobs.tables import Batch, Tenant
from jobs.telemetry.meters import Sample
from tests.database_roles import as_superuser_do


def test_open_chunks_are_counted_without_a_look_at_those_that_are_done(
    session: Session, run: Callable[..., Batch]
) -> None:
    run(1)
    session.execute(
        text("""
            INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
                byte_start, byte_end, estimated_tokens, state)
            SELECT batch_id, tenant_id, model, priority, expires_at, 0, 1, 1, 0, 1, 1, 'done'
            FROM chunk, generate_series(1, 20000)
        """)
    )
    as_superuser_do(session, "ANALYZE chunk")
    plan = session.scalar(text("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + metrics._OPEN_CHUNKS))
    assert isinstance(plan, list)
    assert plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"] < 50


def shown(session: Session) -> dict[tuple[str, ...], float]:
    samples = metrics.read_samples(session)
    return {
        (sample.meter.name, *sample.labels.values()): sample.value for sample in samples if isinstance(sample, Sample)
    }


def test_what_is_shown_is_what_was_counted_and_how_long_ago(
    session: Session, tenant: Tenant, run: Callable[..., Batch]
) -> None:
    run(9, reserved_tokens=70, priority="bulk")
    session.execute(text("UPDATE chunk SET created_at = created_at - interval '1 hour' WHERE first_line = 0"))
    session.execute(text("UPDATE chunk SET state = 'waiting' WHERE first_line = 8"))
    metrics.count_queue(session)
    run(3)
    session.execute(text("UPDATE queue_count SET counted_at = counted_at - interval '2 minutes'"))
    found = shown(session)
    assert found["tokenmill_batches", "in_progress"] == 1
    assert found["tokenmill_batches", "cancelling"] == 0
    assert found["tokenmill_chunks", "m", "bulk", "ready"] == 2
    assert found["tokenmill_chunk_lines", "m", "bulk", "ready"] == 8
    assert found["tokenmill_chunk_lines", "m", "bulk", "waiting"] == 1
    assert found["tokenmill_chunk_tokens", "m", "bulk", "waiting"] > 0
    assert 3600 <= found["tokenmill_chunk_oldest_seconds", "m", "bulk", "ready"] < 7200
    assert found["tokenmill_tokens_reserved",] == 70
    assert 120 <= found["tokenmill_queue_counted_seconds",] < 300
    assert ("tokenmill_chunks", "m", "normal", "ready") not in found


def test_whoever_asks_counts_where_nobody_else_does(session: Session, run: Callable[..., Batch]) -> None:
    run(3)
    assert shown(session)["tokenmill_batches", "in_progress"] == 1
    run(3)
    session.execute(text("UPDATE queue_count SET counted_at = counted_at - interval '1 hour'"))
    assert shown(session)["tokenmill_batches", "in_progress"] == 2


def test_an_empty_queue_has_numbers_too(session: Session) -> None:
    assert shown(session)["tokenmill_tokens_spent",] == 0


def test_open_runs_are_shown_by_state_and_schedules_whose_last_run_failed(session: Session, tenant: Tenant) -> None:
    pipeline = Pipeline(id="pipeline_1", tenant_id=tenant.id, name="nightly", definition={})
    session.add(pipeline)
    session.flush()
    now = datetime(2026, 11, 1, tzinfo=UTC)
    for number, state in enumerate(["queued", "queued", "running", "failed", "succeeded"]):
        at = now + timedelta(hours=number)
        values = {"kind": "manual", "scheduled_for": at, "interval_start": now, "interval_end": at, "state": state}
        session.add(Run(id=f"run_{number}", tenant_id=tenant.id, pipeline_id=pipeline.id, **values))
    session.flush()
    metrics.count_queue(session)
    found = shown(session)
    assert [found["tokenmill_runs", state] for state in ("queued", "running", "cancelling")] == [2, 1, 0]
    assert found["tokenmill_failing_schedules",] == 0
