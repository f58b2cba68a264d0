"""Tests that the conditions of an open page are in its layout: when it changes, the page is loaded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from api.dashboard import formats
from api.dashboard.pages import models, overview
from features.pipelines.pages import pipelines
from jobs.overview.fleet import WorkersCounted, WorkerSeen
from jobs.overview.reviewing import OpenReviews
from jobs.overview.scheduled import NextRun

SCHEDULE = NextRun(
    schedule_id="sched_a",
    name="nightly",
    pipeline="receipts",
    pipeline_id="pipe_a",
    cron="0 3 * * *",
    time_zone="UTC",
    next_at=None,
    paused_at=None,
    pause_reason=None,
    num_failures=0,
    num_skipped=0,
    last_run_id=None,
    last_state=None,
    last_reason=None,
    last_at=None,
)
NOW = datetime(2026, 11, 23, tzinfo=UTC)
WORKER = WorkerSeen(
    worker_id="worker_a",
    model="demo",
    hostname="host",
    pid=1,
    is_live=True,
    is_draining=False,
    out_reason=None,
    started_at=NOW,
    heartbeat_at=NOW,
    num_leased=0,
    num_slots=1,
    num_running=0,
    num_waiting=0,
    cache_use=0.0,
    prefix_hits=None,
    max_model_len=100,
    engine="tokenmill",
    engine_version=None,
    is_outside=False,
    may_serve=(),
    left_out={},
)


def test_a_worker_that_is_lost_changes_the_layout() -> None:
    """It can no longer be drained."""
    counted = WorkersCounted(num_live=1, num_lost=0)
    lost = replace(WORKER, is_live=False)
    assert models._look_of(counted, [WORKER], 1).layout != models._look_of(counted, [lost], 1).layout


def test_what_a_lost_worker_did_last_is_not_shown_as_if_it_went_on() -> None:
    told = replace(WORKER, num_running=111, num_waiting=236, cache_use=0.06)
    counted = WorkersCounted(num_live=1, num_lost=0)
    names = ("0.running", "0.waiting", "0.cache")
    live, lost = (models._look_of(counted, [replace(told, is_live=is_live)], 1).values for is_live in (True, False))
    assert [live[name] for name in names] == ["111", "236", "6 %"]
    assert [lost[name] for name in names] == [formats.NOTHING] * 3


@pytest.mark.parametrize(("num_lost", "said"), [(0, ""), (1, ", 1 worker lost"), (2, ", 2 workers lost")])
def test_the_overview_says_that_workers_are_lost_and_no_requests(num_lost: int, said: str) -> None:
    assert overview._lost(num_lost) == said


def test_a_worker_that_is_drained_changes_the_layout() -> None:
    """It can then be resumed."""
    counted = WorkersCounted(num_live=1, num_lost=0)
    drained = replace(WORKER, is_draining=True)
    assert models._look_of(counted, [WORKER], 1).layout != models._look_of(counted, [drained], 1).layout


def test_a_model_that_is_left_out_changes_the_layout_and_one_that_is_loaded_is_not_out() -> None:
    counted = WorkersCounted(num_live=1, num_lost=0)
    loading = replace(WORKER, may_serve=("demo", "b"), num_slots=0, out_reason="loads the model")
    failed = replace(loading, left_out={"demo": "no weights."})
    looks = [models._look_of(counted, [worker], 1) for worker in (WORKER, loading, failed)]
    assert [look.values["0.state"] for look in looks] == [
        ("live", "good"),
        ("loading", "warn"),
        ("out: loads the model", "bad"),
    ]
    assert looks[0].layout != looks[2].layout


def test_further_workers_change_the_layout_of_every_page() -> None:
    full, more = (WorkersCounted(num_live=number, num_lost=0) for number in (100, 101))
    assert models._look_of(full, [WORKER], 2).layout != models._look_of(more, [WORKER], 2).layout


TROUBLES: list[dict[str, Any]] = [
    {"num_failures": 1},
    {"num_skipped": 1},
    {"pause_reason": "failed too often"},
    {"last_reason": "a step failed"},
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: next(iter(trouble)))
def test_trouble_of_a_schedule_changes_the_layout(trouble: dict[str, Any]) -> None:
    troubled = replace(SCHEDULE, **trouble)
    assert pipelines._look_of([SCHEDULE], []).layout != pipelines._look_of([troubled], []).layout
    assert layout_of_overview(schedules=[SCHEDULE]) != layout_of_overview(schedules=[troubled])


def test_what_is_to_be_reviewed_next_changes_the_layout() -> None:
    nothing, some = layout_of_overview(), layout_of_overview(reviewed="extr_a")
    assert len({nothing, some, layout_of_overview(reviewed="extr_b")}) == 3


def test_a_failed_batch_that_has_ended_changes_the_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines can be retried."""
    monkeypatch.setattr(overview, "places", lambda *_: {})
    batches = [
        SimpleNamespace(id="batch_a", status=status, request_counts=SimpleNamespace(failed=num_failed))
        for status, num_failed in (("in_progress", 1), ("expired", 0), ("expired", 1))
    ]
    assert len({layout_of_overview(failed=batch) for batch in batches}) == 3


def layout_of_overview(*, schedules: Sequence[NextRun] = (), reviewed: str | None = None, failed: Any = None) -> str:
    reviews = OpenReviews(num_open=0 if reviewed is None else 1, oldest_at=None, extraction_id=reviewed)
    lately = overview._Lately(
        waiting=(), at_risk=(), failed=(), seconds={}, tenants={}, shares=(), schedules=schedules, reviews=reviews
    )
    batches = [] if failed is None else [failed]
    glance = overview._Glance(classes=(), waiting=(), at_risk=(), failed=batches, fleet=(), quota=None, lately=lately)
    return glance.look().layout
