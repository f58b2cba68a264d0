"""What an open page branches on is in its layout: where it changes, the page is asked for anew."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from api.dashboard.pages import models
from jobs.overview.fleet import WorkersCounted, WorkerSeen

NOW = datetime(2026, 11, 23, tzinfo=UTC)
WORKER = WorkerSeen(
    worker_id="worker_a",
    model="demo",
    hostname="host",
    pid=1,
    is_live=True,
    started_at=NOW,
    heartbeat_at=NOW,
    num_leased=0,
    num_slots=1,
    num_running=0,
    num_waiting=0,
    cache_use=0.0,
    prefix_hits=None,
    max_model_len=100,
)


def test_a_worker_that_is_lost_changes_the_layout() -> None:
    """It can be drained no more."""
    counted = WorkersCounted(num_live=1, num_lost=0)
    lost = replace(WORKER, is_live=False)
    assert models._look_of(counted, [WORKER], 1).layout != models._look_of(counted, [lost], 1).layout


def test_further_workers_change_the_layout_of_every_page() -> None:
    full, more = (WorkersCounted(num_live=number, num_lost=0) for number in (100, 101))
    assert models._look_of(full, [WORKER], 2).layout != models._look_of(more, [WORKER], 2).layout
