"""Tests of the study of the number of workers at a small size."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from lab.autoscaling import policies
from lab.autoscaling.command import main
from lab.autoscaling.keda import Trigger
from lab.autoscaling.load import WORKER_TOKENS, LoadBatch, make_batches
from lab.autoscaling.week import Simulation, Week


def batch(at: float, hours: float, *, worker_hours: float, tenant: int = 0) -> LoadBatch:
    tokens = worker_hours * 3600 * WORKER_TOKENS
    return LoadBatch(
        at=at,
        deadline=at + hours * 3600,
        tenant=tenant,
        tokens=tokens,
        estimated_tokens=tokens,
        num_lines=round(tokens / 500),
    )


def run(*batches: LoadBatch, number: int | None = None) -> Week:
    policy = policies.by_deadlines(max_workers=40) if number is None else policies.fixed(number)
    return Simulation(batches, seed=0, spot_seconds=math.inf).run(policy)


@pytest.fixture(autouse=True)
def a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.autoscaling.week.WEEK_SECONDS", 86_400.0)


def test_the_rule_meets_deadlines_of_tenants_that_share_and_stops_all_workers() -> None:
    week = run(batch(0, 20, worker_hours=40, tenant=1), batch(3600, 1, worker_hours=3), batch(7200, 1, worker_hours=3))
    assert week.num_met == week.num_batches
    assert max(number for _, number in week.workers) > 6
    assert week.workers[-1][1] == 0
    assert 46 * 3600 < week.gpu_seconds < 1.2 * 46 * 3600


def test_too_few_workers_miss_deadlines() -> None:
    assert run(batch(0, 2, worker_hours=8), batch(0, 8, worker_hours=1, tenant=1), number=2).num_met == 1


def test_a_lost_worker_is_replaced() -> None:
    week = Simulation([batch(0, 20, worker_hours=30)], seed=1, spot_seconds=3600).run(policies.fixed(2))
    assert week.num_lost > 10
    assert week.num_met == 1


def test_loads_are_the_same_for_a_seed_and_have_the_work_of_the_mean() -> None:
    batches = make_batches([1.0, 3.0, 2.0] * 40, mean_workers=5, seed=3)
    assert batches == make_batches([1.0, 3.0, 2.0] * 40, mean_workers=5, seed=3)
    assert sum(one.tokens for one in batches) == pytest.approx(5 * WORKER_TOKENS * 120 * 600, rel=0.02)


def test_a_trigger_starts_and_stops_as_keda_does() -> None:
    trigger = Trigger(max_replicas=4, cooldown_seconds=60)
    answers = [(0, 0.0), (30, 3.0), (60, None), (90, 9.0), (120, 0.0), (140, 0.0), (150, 0.0)]
    assert [trigger.answered(value, now=now) for now, value in answers] == [0, 3, 3, 4, 1, 1, 0]


def test_a_trace_that_is_short_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.csv.gz"
    with gzip.open(trace, "wt") as out:
        out.write("service,window_start_s,rate_rps\nm,0,1\n")
    assert main(["week", "--trace", str(trace), "--services", "m"]) == 1
    assert main(["week", "--trace", str(tmp_path / "none"), "--services", "m"]) == 1
    assert capsys.readouterr().err.count("error: ") == 2
