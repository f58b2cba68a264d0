"""Tests of reports on a real database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from features.pipelines.tables import Run, RunStep, Schedule
from features.reports.drift import Kind
from features.reports.reading import read_report
from features.reports.report import DayStatus, Report, changed_steps
from features.reports.texts import STATUS_WORDS
from jobs.errors import NotFoundError
from jobs.tables import Batch
from tests.features.reports.fixtures import DEFINITION, Days, stored

DAY = date(2026, 11, 20)
NIGHT = datetime(2026, 11, 20, 1, 30, tzinfo=UTC)


def read(days: Days, day: date | None = DAY) -> Report:
    return read_report(days.session, days.pipeline.tenant_id, "nightly", day)


def test_a_day_has_its_end_its_rows_and_its_cost_beside_the_day_before(days: Days) -> None:
    days.run(NIGHT - timedelta(days=1), cost=70)
    run = days.run(NIGHT, cost=5, statistics=stored(rows=500, failed=17), failed_lines=15)
    days.run(NIGHT + timedelta(days=1), cost=700)
    report = read(days)
    assert (report.status, report.reason) == (DayStatus.SUCCEEDED, None)
    assert report.ended_at == NIGHT + timedelta(minutes=10)
    assert (report.num_rows, report.num_failed) == (500, 17)
    assert (report.used_tokens, report.cost_picos, report.cost_before_picos) == (5, 5_000, 70_000)
    [failed] = report.failed_steps
    assert (failed.run_id, failed.step, failed.num_failed, failed.num_retryable) == (run.id, "fields", 17, 15)
    assert (failed.codes, len(failed.failed_rows)) == ({"length": 17}, 17)


def test_a_day_is_that_of_the_schedules_time_zone(days: Days, make_schedule: Callable[..., Schedule]) -> None:
    make_schedule("30 0 * * *", time_zone="Asia/Tokyo")
    days.run(datetime(2026, 11, 19, 15, 30, tzinfo=UTC))
    assert (read(days).zone, len(read(days).runs)) == ("Asia/Tokyo", 1)
    assert read(days, date(2026, 11, 19)).status is DayStatus.NO_RUN


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ([], DayStatus.NO_RUN),
        (["failed", "succeeded"], DayStatus.SUCCEEDED),
        (["succeeded", "failed"], DayStatus.FAILED),
        (["succeeded", "skipped"], DayStatus.SUCCEEDED),
        (["skipped"], DayStatus.SKIPPED),
        (["failed", "running"], DayStatus.IN_PROGRESS),
        (["queued", "cancelled"], DayStatus.IN_PROGRESS),
    ],
)
def test_a_day_has_the_state_of_its_last_run_that_ran(days: Days, states: list[str], status: DayStatus) -> None:
    for hour, state in enumerate(states):
        days.run(NIGHT + timedelta(hours=hour), state=state)
    report = read(days)
    assert report.status is status
    assert (report.ended_at is None) is (status in (DayStatus.NO_RUN, DayStatus.IN_PROGRESS))


def test_a_days_reason_is_that_of_the_run_which_decides_its_state(days: Days) -> None:
    days.run(NIGHT, state="failed", reason="the store was away")
    days.run(NIGHT + timedelta(hours=1))
    days.run(NIGHT + timedelta(hours=2), state="skipped", reason="another was under way")
    assert (read(days).status, read(days).reason) == (DayStatus.SUCCEEDED, None)
    days.run(NIGHT + timedelta(hours=3), state="queued", reason="waits for its store")
    days.run(NIGHT + timedelta(hours=4), state="failed", reason="it has no rows")
    assert (read(days).status, read(days).reason) == (DayStatus.IN_PROGRESS, "waits for its store")


def test_of_more_runs_than_are_read_the_last_count(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("features.reports.reading._MOST_RUNS", 2)
    for hour in range(4):
        days.run(NIGHT + timedelta(hours=hour), cost=10**hour, state="failed" if hour == 0 else "succeeded")
    report = read(days)
    assert [run.scheduled_for for run in report.runs] == [NIGHT + timedelta(hours=hour) for hour in (2, 3)]
    assert report.used_tokens == 1100


@pytest.mark.parametrize("bound", ["_MOST_STEPS", "_MOST_STATISTICS_BYTES"])
def test_of_more_statistics_than_are_read_the_last_count(
    days: Days, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    days.quiet(NIGHT)
    for hour in range(4):
        days.run(NIGHT + timedelta(hours=hour), statistics=stored(nulls=300 if hour == 3 else 25))
    monkeypatch.setattr(f"features.reports.reading.{bound}", 1)
    assert [drift.value for drift in read(days).drifts] == [pytest.approx(0.3)]


def test_only_two_definitions_and_no_runs_with_theirs_are_read(days: Days, statements: list[tuple[str, Any]]) -> None:
    days.quiet(NIGHT)
    for hour in range(3):
        days.run(NIGHT + timedelta(hours=hour), definition=DEFINITION | {"name": f"n{hour}"})
    days.session.expunge_all()
    statements.clear()
    read(days)
    wide = [sql for sql, _ in statements if "run.definition" in sql.split("FROM")[0]]
    assert len(wide) == 2
    assert not [sql for sql in wide if "LIMIT" not in sql and "run.id = " not in sql]
    held = [one for one in days.session.identity_map.values() if isinstance(one, Run | RunStep | Batch)]
    assert held == []


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE batch SET deleted_at = now()",
        "UPDATE file SET deleted_at = now() WHERE id IN (SELECT error_file_id FROM batch)",
        "UPDATE file SET expires_at = now() WHERE id IN (SELECT input_file_id FROM batch)",
    ],
)
def test_lines_whose_batch_or_files_are_gone_cannot_be_retried(days: Days, change: str) -> None:
    days.run(NIGHT, statistics=stored(failed=17), failed_lines=15)
    assert [step.num_retryable for step in read(days).failed_steps] == [15]
    days.session.execute(text(change))
    assert [step.num_retryable for step in read(days).failed_steps] == [0]


def test_every_status_has_a_word() -> None:
    assert set(STATUS_WORDS) == {status.value for status in DayStatus}


def test_a_drift_is_found_beside_the_last_seven_days_on_which_a_run_succeeded(days: Days) -> None:
    days.quiet(NIGHT - timedelta(days=3), nights=9)
    days.run(NIGHT - timedelta(days=2), state="failed", statistics=stored(nulls=900))
    days.run(NIGHT - timedelta(days=1), kind="backfill", statistics=stored(nulls=900))
    days.run(NIGHT, statistics=stored(nulls=25))
    quiet = read(days)
    assert (quiet.num_nights, len(quiet.measures), quiet.drifts) == (7, 3, [])
    days.run(NIGHT + timedelta(hours=1), statistics=stored(nulls=700))
    [drift] = read(days).drifts
    assert (drift.kind, drift.field) == (Kind.NULL, "vendor")
    assert drift.value == pytest.approx(0.3625)
    assert drift.usual == pytest.approx(0.024)


def test_a_night_of_many_runs_counts_once(days: Days) -> None:
    for hour in range(20):
        days.run(NIGHT - timedelta(days=1) + timedelta(hours=hour), statistics=stored())
    days.run(NIGHT)
    assert (read(days).num_nights, read(days).measures) == (1, [])


def test_a_changed_step_is_named(days: Days) -> None:
    days.quiet(NIGHT)
    days.run(NIGHT, definition={"steps": [DEFINITION["steps"][0] | {"prompt": "other"}, {"name": "new"}]})
    assert read(days).changed_steps == ["fields", "new"]
    assert changed_steps(DEFINITION, DEFINITION) == changed_steps(None, DEFINITION) == []


def test_the_next_run_ends_as_the_last_ones_did(days: Days, make_schedule: Callable[..., Schedule]) -> None:
    schedule = make_schedule("30 1 * * *")
    for night in range(4):
        days.run(NIGHT - timedelta(days=night), schedule_id=schedule.id, minutes=10 + night)
    early = read(days).next_run
    assert early is not None
    assert (early.at, early.end.expected_at) == (schedule.next_at, None)
    days.run(NIGHT - timedelta(days=5), schedule_id=schedule.id, minutes=60)
    known = read(days).next_run
    assert known is not None
    ends = (known.end.earliest_at, known.end.expected_at, known.end.latest_at)
    assert ends == tuple(known.at + timedelta(minutes=minutes) for minutes in (10, 12, 60))


def test_there_is_no_next_run_without_a_schedule(days: Days) -> None:
    assert read(days, None).next_run is None


def test_another_tenants_pipeline_has_no_report(days: Days) -> None:
    with pytest.raises(NotFoundError):
        read_report(days.session, "tenant_other", days.pipeline.id)


def test_the_day_by_default_is_the_last_one_whose_runs_were_due(
    days: Days, make_schedule: Callable[..., Schedule], session: Session
) -> None:
    now = session.scalars(select(func.now())).one()
    make_schedule("0 0 1 1 *", at=now)
    assert read(days, None).day == now.date() - timedelta(days=1), "it has no run"
    days.run(now)
    assert read(days, None).day == now.date()
    make_schedule("* * * * *", at=now)
    assert read(days, None).day == now.date() - timedelta(days=1) or (now.hour, now.minute) >= (23, 58)


def test_what_a_report_reads_is_bounded(days: Days, statements: list[tuple[str, Any]]) -> None:
    days.quiet(NIGHT, nights=30)
    days.run(NIGHT)
    statements.clear()
    read(days)
    assert len(statements) <= 40
