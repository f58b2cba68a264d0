"""Tests of each worker's own speed, and of forecasts for workers of different engines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.chunks.fleet import RunningLines
from jobs.engines.engine import ServingEngine
from jobs.forecasts import snapshot
from jobs.forecasts.speeds import WorkerCount, as_workers, measure
from jobs.lines.needs import NOTHING, Need
from jobs.tables import Batch, Worker


def run_at(rate: float, *, looks: int, is_saturated: bool = True, start: Any = None) -> Any:
    """Measure a worker every five seconds, as it computes at a rate; return what is left of it."""
    state, tokens, now = start, 0 if start is None else start["num_tokens"], 0.0 if start is None else start["at"]
    for _ in range(looks):
        now, tokens = now + 5, tokens + int(5 * rate)
        seen = WorkerCount(id="w", num_tokens=tokens, running_lines=8, before=state)
        state = measure(seen, now=now, is_saturated=is_saturated).state
    return state


def test_a_worker_is_measured_while_chunks_wait() -> None:
    assert run_at(100, looks=1)["tokens_per_second"] is None
    assert run_at(100, looks=10)["tokens_per_second"] == pytest.approx(100)
    assert run_at(400, looks=60, start=run_at(100, looks=10))["tokens_per_second"] == pytest.approx(400, rel=0.1)


def test_an_idle_worker_keeps_its_speed_for_a_while() -> None:
    state = run_at(100, looks=10)
    idle = WorkerCount(id="w", num_tokens=state["num_tokens"], running_lines=0, before=state)
    assert measure(idle, now=state["at"] + 5, is_saturated=False).tokens_per_second == pytest.approx(100)
    assert measure(idle, now=state["at"] + 36_000, is_saturated=False).tokens_per_second is None


def test_workers_count_by_their_speeds() -> None:
    assert as_workers([300.0, 100.0], average=200.0) == 2
    assert as_workers([300.0, None], average=200.0) == 2.5
    assert as_workers([300.0, None], average=None) == 2
    assert as_workers([], average=200.0) == 0


QUICK = ServingEngine(kind="vllm", version="0.32", meets=Need.N)
SLOW = ServingEngine(kind="llama.cpp", meets=NOTHING)


def start(session: Session, engine: ServingEngine, speed: float | None) -> None:
    fleet.register(session, worker_id=engine.kind, model="m", max_chunks=4, max_model_len=512, engine=engine)
    if speed is not None:
        now = session.scalar(text("SELECT extract(epoch FROM clock_timestamp())"))
        state = run_at(speed, looks=10) | {"num_tokens": 0, "at": float(now or 0)}
        session.get_one(Worker, engine.kind).speed = state
    session.commit()


@pytest.fixture
def measured(session: Session, run: Callable[..., Batch]) -> Batch:
    """A batch of a model whose average worker computes 200 tokens a second."""
    batch = run(40, engine_choice="any")
    rate = '{"evidence_seconds": 60, "recent_seconds": 30, "recent_tokens": 6000, "line_seconds": 4, "ended_lines": 4}'
    session.execute(
        text("""
            INSERT INTO serving_rate (model, tokens_per_second, token_ratio, counters, is_saturated, measured_at)
            VALUES ('m', 200, 1, CAST(:counters AS jsonb), true, now())
        """),
        {"counters": rate},
    )
    session.commit()
    return batch


def seconds_of(session: Session, batch: Batch) -> float | None:
    snapshot.take(session)
    seconds: float | None = session.scalar(text("SELECT seconds FROM forecast WHERE batch_id = :id"), {"id": batch.id})
    session.rollback()
    return seconds


def test_a_forecast_counts_each_worker_with_its_own_speed(session: Session, measured: Batch) -> None:
    start(session, QUICK, 300.0)
    start(session, SLOW, 100.0)
    both = seconds_of(session, measured)
    assert snapshot.queue_of(session, "m").tokens_per_second == pytest.approx(400, rel=0.01)
    fleet.stop(session, "vllm")
    session.commit()
    slow = seconds_of(session, measured)
    assert snapshot.queue_of(session, "m").tokens_per_second == pytest.approx(100, rel=0.01)
    assert both is not None
    assert slow is not None
    assert slow > 2 * both


def test_a_forecast_counts_only_workers_that_may_run_the_batch(session: Session, measured: Batch) -> None:
    start(session, QUICK, None)
    start(session, SLOW, None)
    both = seconds_of(session, measured)
    measured.needs = int(Need.N)
    session.commit()
    one = seconds_of(session, measured)
    assert both is not None
    assert one is not None
    assert one > 1.2 * both


def test_the_tokens_of_a_worker_are_those_of_its_heartbeats(session: Session, measured: Batch) -> None:
    start(session, QUICK, None)
    for num_tokens in (0, 1000):
        fleet.heartbeat(session, "vllm", num_tokens=num_tokens, running_lines={measured.id: RunningLines(num_lines=3)})
        snapshot.take(session)
        session.commit()
    (tokens,) = session.scalars(text("SELECT CAST(speed->>'num_tokens' AS int) FROM worker"))
    assert tokens == 1000
