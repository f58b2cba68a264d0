from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from jobs import metrics
from jobs.accounts import budgets, tenants
from jobs.chunks import fleet, unserved
from jobs.errors import NotFoundError
from jobs.states import ChunkState
from jobs.tables import Batch, Worker
from jobs.telemetry.meters import HistogramSample, Sample

Make = Callable[..., Any]


def register(session: Session, worker_id: str, model: str = "m", max_chunks: int = 3) -> None:
    fleet.register(session, worker_id=worker_id, model=model, max_chunks=max_chunks, max_model_len=512)
    session.commit()


def silence(session: Session, worker_id: str, seconds: float) -> None:
    heard = datetime.now(UTC) - timedelta(seconds=seconds)
    session.execute(update(Worker).where(Worker.id == worker_id).values(heartbeat_at=heard))
    session.commit()


@pytest.fixture
def batch(make_batch: Make) -> Batch:
    batch = make_batch(state="in_progress")
    assert isinstance(batch, Batch)
    return batch


def test_a_worker_is_live_until_it_falls_silent_or_stops(session: Session) -> None:
    for worker_id in ("alive", "silent", "stopped"):
        register(session, worker_id)
    silence(session, "silent", 16)
    fleet.stop(session, "stopped")
    session.commit()
    assert [worker.id for worker in fleet.live_workers(session)] == ["alive"]
    fleet.heartbeat(session, "silent", engine_stats={"num_running": 2})
    session.commit()
    assert [worker.id for worker in fleet.live_workers(session, model="m")] == ["alive", "silent"]
    assert session.get_one(Worker, "silent", populate_existing=True).engine_stats == {"num_running": 2}


def test_a_heartbeat_without_news_keeps_the_last_stats(session: Session) -> None:
    register(session, "w")
    fleet.heartbeat(session, "w", engine_stats={"num_running": 2})
    fleet.heartbeat(session, "w")
    assert fleet.live_workers(session)[0].engine_stats == {"num_running": 2}


def test_a_draining_worker_learns_it_from_its_heartbeat_and_is_sent_no_hints(session: Session) -> None:
    register(session, "w")
    worker, free = fleet.find_worker(session, "w"), fleet.hint_allowance(session, "m")
    assert fleet.heartbeat(session, "w") == fleet.Beat(is_known=True, is_draining=False)
    fleet.set_draining(session, worker, is_draining=True)
    assert fleet.heartbeat(session, "w") == fleet.Beat(is_known=True, is_draining=True)
    assert (free > 0, fleet.hint_allowance(session, "m")) == (True, 0)
    fleet.set_draining(session, worker, is_draining=False)
    assert (fleet.heartbeat(session, "w").is_draining, fleet.hint_allowance(session, "m")) == (False, free)
    assert fleet.heartbeat(session, "nobody") == fleet.Beat(is_known=False, is_draining=False)
    with pytest.raises(NotFoundError, match="no worker 'nobody'"):
        fleet.find_worker(session, "nobody")


def test_a_worker_that_starts_again_under_its_id_is_live_again(session: Session) -> None:
    register(session, "w", model="old")
    fleet.stop(session, "w")
    session.commit()
    register(session, "w", model="new", max_chunks=7)
    assert [(worker.model, worker.max_chunks) for worker in fleet.live_workers(session)] == [("new", 7)]


def test_models_without_a_live_worker_are_not_served(session: Session) -> None:
    register(session, "a", model="m")
    register(session, "b", model="m")
    register(session, "c", model="gone")
    silence(session, "c", 60)
    assert fleet.live_models(session) == ["m"]


def test_a_batch_in_progress_waits_for_a_live_worker_of_its_model(session: Session, make_batch: Make) -> None:
    batch = make_batch(state="in_progress", model="org/m")
    others = [make_batch(state="completed", model="org/m"), make_batch()]
    register(session, "other", model="other")
    lacks = unserved.waits_for(session, [batch, *others])
    assert list(lacks) == [batch.id]
    assert "`tokenmill worker --model org/m`" in lacks[batch.id]
    register(session, "m", model="org/m")
    assert unserved.waits_for(session, [batch, *others]) == {}


def test_a_batch_whose_workers_are_all_drained_waits_for_one_that_is_resumed(
    session: Session, make_batch: Make, make_chunk: Make
) -> None:
    waiting, held = (make_batch(state="in_progress", model="m") for _ in range(2))
    make_chunk(held, state="leased")
    for worker_id in ("v", "w"):
        register(session, worker_id)
        assert unserved.waits_for(session, [waiting, held]) == {}
        fleet.set_draining(session, fleet.find_worker(session, worker_id), is_draining=True)
    lacks = unserved.waits_for(session, [waiting, held])
    assert list(lacks) == [waiting.id], "what they have they finish"
    assert "`tokenmill workers resume`" in lacks[waiting.id]
    fleet.set_draining(session, fleet.find_worker(session, "v"), is_draining=False)
    assert unserved.waits_for(session, [waiting, held]) == {}


def test_the_allowance_is_the_free_slots_without_unanswered_hints(
    session: Session, batch: Batch, make_chunk: Make
) -> None:
    assert fleet.hint_allowance(session, "m") == 0
    register(session, "a", max_chunks=3)
    register(session, "b", max_chunks=2)
    assert fleet.hint_allowance(session, "m") == 5
    for worker_id in ("a", "a", "b"):
        make_chunk(batch, state=ChunkState.LEASED, worker_id=worker_id)
    make_chunk(batch, hinted_at=datetime.now(UTC))
    make_chunk(batch)
    assert fleet.hint_allowance(session, "m") == 1
    assert fleet.hint_allowance(session, "other") == 0


def test_what_a_worker_runs_above_its_slots_takes_nothing_from_an_idle_one(
    session: Session, batch: Batch, make_chunk: Make
) -> None:
    register(session, "full", max_chunks=1)
    register(session, "idle", max_chunks=2)
    for _ in range(3):
        make_chunk(batch, state=ChunkState.LEASED, worker_id="full")
    assert fleet.hint_allowance(session, "m") == 2


def test_what_a_dead_worker_holds_takes_nothing_from_its_successor(
    session: Session, batch: Batch, make_chunk: Make
) -> None:
    register(session, "dead")
    silence(session, "dead", 60)
    make_chunk(batch, state=ChunkState.LEASED, worker_id="dead")
    register(session, "successor", max_chunks=3)
    assert fleet.hint_allowance(session, "m") == 3


def test_a_lost_hint_does_not_use_up_the_allowance_for_ever(session: Session, batch: Batch, make_chunk: Make) -> None:
    register(session, "a", max_chunks=2)
    make_chunk(batch, hinted_at=datetime.now(UTC) - timedelta(seconds=11))
    assert fleet.hint_allowance(session, "m") == 2
    assert fleet.hint_allowance(session, "m", again_seconds=20) == 1


def test_the_allowance_is_never_negative(session: Session, batch: Batch, make_chunk: Make) -> None:
    register(session, "a", max_chunks=1)
    for _ in range(4):
        make_chunk(batch, hinted_at=datetime.now(UTC))
    assert fleet.hint_allowance(session, "m") == 0


def test_metrics_show_queue_budgets_and_fleet(
    session: Session, batch: Batch, make_batch: Make, make_chunk: Make
) -> None:
    make_batch(state="completed")
    for name in ("one", "two"):
        budgets.reserve(session, tenants.create_tenant(session, name).id, 20)
    make_chunk(batch)
    make_chunk(batch, priority="urgent", state=ChunkState.LEASED)
    make_chunk(batch, state=ChunkState.DONE)
    register(session, "a")
    register(session, "b", max_chunks=2)
    for worker_id in ("a", "b"):
        stats = {"num_requests_running": 4, "steps_seconds": {"bounds": [1.0], "counts": [3, 2], "sum": 9.5}}
        fleet.heartbeat(session, worker_id, engine_stats=stats)
    samples = metrics.read_samples(session)
    found = {(s.meter.name, *sorted(s.labels.items())): s.value for s in samples if isinstance(s, Sample)}
    histograms = {s.labels["worker"]: s for s in samples if isinstance(s, HistogramSample)}
    model, ready = ("model", "m"), ("state", "ready")
    assert found["tokenmill_batches", ("state", "in_progress")] == 1
    assert found["tokenmill_batches", ("state", "validating")] == 0
    assert found["tokenmill_chunks", model, ("priority", "normal"), ready] == 1
    assert found["tokenmill_chunk_lines", model, ("priority", "urgent"), ("state", "leased")] == 3
    assert found["tokenmill_chunk_tokens", model, ("priority", "normal"), ready] == 50
    assert found["tokenmill_tokens_reserved",] == 40
    assert not any("one" in str(name) for name in found), "nobody's name is shown without a key"
    assert found["tokenmill_workers", model] == 2
    assert found["tokenmill_worker_slots", model] == 5
    assert found["tokenmill_engine_num_requests_running", model, ("worker", "b")] == 4
    assert histograms["a"].counts == [3, 2]
    assert ("tokenmill_batches", ("state", "completed")) not in found
