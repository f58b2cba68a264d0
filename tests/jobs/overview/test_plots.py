"""Tests of points of plots: each ledger entry counts once, points are bounded, and tenants see only their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from jobs.chunks.fleet import heartbeat, register
from jobs.overview import plots, spending
from jobs.overview.plots import KEPT, Range, Series
from jobs.tables import Batch, Ledger, PlotPoint, QueueCount

Spend = Callable[..., None]


@pytest.fixture
def spend(session: Session, make_batch: Callable[..., Batch]) -> Spend:
    """Return a function that bills tokens to the tenant of one batch."""
    plots.take(session)  # the ledger counts from the first snapshot on
    batch, numbers = make_batch(), iter(range(1000))

    def bill(tokens: int, *, ago: timedelta = timedelta(0), model: str = "m") -> None:
        billed = {
            "num_results": 1,
            "input_tokens": tokens,
            "cached_tokens": 0,
            "output_tokens": 1,
            "cost_picos": tokens,
            "input_price_picos": 1,
            "output_price_picos": 0,
            "num_truncated": 0,
            "priority": "normal",
        }
        keys = {
            "chunk_id": 1,
            "fence": 1,
            "flush_no": next(numbers),
            "batch_id": batch.id,
            "tenant_id": batch.tenant_id,
        }
        session.add(Ledger(model=model, created_at=datetime.now(UTC) - ago, **keys, **billed))
        session.flush()

    return bill


def total(session: Session, asked: Range, *, tenant_id: str | None = None) -> float:
    plot = plots.read(session, Series.INPUT_TOKENS, asked, tenant_id=tenant_id)
    return sum(value or 0.0 for line in plot.lines.values() for value in line)


def test_each_entry_counts_once_however_often_one_looks(session: Session, spend: Spend) -> None:
    spend(30)
    plots.take(session)
    spend(12)
    plots.take(session)
    plots.take(session)
    assert total(session, Range.HOUR) == total(session, Range.DAY) == total(session, Range.MONTH) == 42


def test_lines_are_models_and_moments_are_evenly_apart(session: Session, spend: Spend) -> None:
    spend(1, ago=timedelta(minutes=30), model="a")
    spend(2, model="b")
    plots.take(session)
    plot = plots.read(session, Series.INPUT_TOKENS, Range.HOUR, tenant_id=None)
    assert list(plot.lines) == ["a", "b"]
    assert {later - earlier for earlier, later in zip(plot.at, plot.at[1:], strict=False)} == {60}
    assert (len(plot.at), plot.lines["b"][-1]) in {(60, 2.0), (60, 0.0)}  # a minute may have begun meanwhile
    assert sum(value or 0.0 for value in plot.lines["a"]) == 1


def test_a_tenant_sees_its_own(session: Session, spend: Spend, tenant: Any) -> None:
    spend(7)
    plots.take(session)
    assert total(session, Range.DAY, tenant_id=tenant.id) == 7
    assert total(session, Range.DAY, tenant_id="tenant_other") == 0


def test_the_sum_over_tenants_is_kept_beside_what_each_used(session: Session, spend: Spend, tenant: Any) -> None:
    spend(7, model="a")
    spend(8, model="b", ago=timedelta(days=2))
    plots.take(session)
    assert total(session, Range.MONTH) == total(session, Range.MONTH, tenant_id=tenant.id) == 15
    [used] = spending.by_tenant(session)
    assert (used.name, used.input_tokens, used.output_tokens, used.cost_picos) == (tenant.name, 15, 2, 15)


def test_old_points_are_forgotten(session: Session, spend: Spend) -> None:
    spend(5, ago=KEPT[plots.MINUTE] + timedelta(minutes=2))
    plots.take(session)
    left = session.scalars(select(PlotPoint.seconds).where(PlotPoint.name == Series.INPUT_TOKENS)).all()
    assert sorted(left) == [plots.HOUR, plots.DAY]
    assert total(session, Range.MONTH) == 5


def test_a_look_adds_up_a_bounded_part(session: Session, spend: Spend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "_ENTRIES_A_LOOK", 2)
    for _ in range(5):
        spend(1)
    seen = []
    for _ in range(4):
        plots.take(session)
        seen.append(total(session, Range.DAY))
    assert seen == [2, 4, 5, 5]


def test_what_runs_is_the_last_look_of_its_minute(session: Session) -> None:
    register(session, worker_id="w", model="m", max_chunks=2, max_model_len=100)
    for running in (3, 5):
        heartbeat(session, "w", engine_stats={"num_requests_running": running, "kv_cache_usage_perc": 0.25})
        plots.take(session)
    plot = plots.read(session, Series.RUNNING_REQUESTS, Range.HOUR, tenant_id=None)
    assert {value for value in plot.lines["m"] if value is not None} <= {3.0, 5.0}
    assert next(value for value in reversed(plot.lines["m"]) if value is not None) == 5
    cache = plots.read(session, Series.CACHE_USE, Range.MONTH, tenant_id=None)
    assert [value for value in cache.lines["m"] if value is not None] == [0.25]
    assert session.scalar(select(func.count()).select_from(PlotPoint).where(PlotPoint.tenant_id != "")) == 0


def test_a_class_that_waits_no_more_is_at_zero_and_no_gap(session: Session) -> None:
    def waiting(chunks: list[dict[str, Any]]) -> None:
        session.merge(QueueCount(id=1, counted_at=datetime.now(UTC), numbers={"chunks": chunks}))
        session.flush()
        plots.take(session)

    def drawn() -> dict[str, float | None]:
        plot = plots.read(session, Series.QUEUED_LINES, Range.HOUR, tenant_id=None)
        return {
            label: next(value for value in reversed(line) if value is not None) for label, line in plot.lines.items()
        }

    waiting([{"priority": "bulk", "num_lines": 9}, {"priority": "bulk", "num_lines": 3}])
    assert drawn() == {"bulk": 12}
    session.execute(update(PlotPoint).values(at=PlotPoint.at - timedelta(minutes=2)))
    waiting([{"priority": "normal", "num_lines": 5}])
    assert drawn() == {"bulk": 0, "normal": 5}
