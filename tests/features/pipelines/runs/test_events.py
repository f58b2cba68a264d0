"""Tests of webhooks for runs that fail, are skipped or late: once each, in the transaction that makes it true."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import lifecycle
from features.pipelines.runs.events import tell_of_late_runs
from features.pipelines.states import RunState
from features.pipelines.tables import Run, Schedule
from features.webhooks.tables import WebhookDelivery
from jobs.tables import Tenant
from tests.features.pipelines.making import make_due
from tests.features.webhooks.builders import add_endpoint

MakeSchedule = Callable[..., Schedule]

EVENING = datetime(2026, 10, 24, 18, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def endpoint(session: Session, tenant: Tenant) -> None:
    add_endpoint(session, tenant.id)


def told(session: Session) -> list[tuple[str, str]]:
    """Return the types of all events and the ids of their subjects, in order."""
    rows = session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.event_type, WebhookDelivery.created_at))
    return [(row.event_type, row.event_data["id"]) for row in rows]


def one_run(session: Session, make_schedule: MakeSchedule, **wishes: object) -> Run:
    make_schedule(at=EVENING, **wishes)
    make_due(session, now=EVENING + HOUR)
    session.commit()
    return session.scalars(select(Run)).one()


def begin(session: Session, run: Run) -> None:
    assert lifecycle.start_queued(session) == [run.id]
    session.commit()


def test_a_run_that_fails_is_one_event_and_one_that_succeeds_or_is_cancelled_none(
    session: Session, make_schedule: MakeSchedule
) -> None:
    run = one_run(session, make_schedule)
    begin(session, run)
    lifecycle.end_run(session, run, RunState.FAILED, reason="it was not to be")
    session.commit()
    about = {"id": run.id, "pipeline_id": run.pipeline_id, "schedule_id": run.schedule_id}
    assert session.scalars(select(WebhookDelivery.event_data)).all() == [about]
    lifecycle.resume_run(session, run.tenant_id, run.id)
    begin(session, run)
    lifecycle.end_run(session, run, RunState.SUCCEEDED)
    session.commit()
    assert told(session) == [("run.failed", run.id)]


def test_a_failure_that_is_not_committed_is_told_to_nobody(session: Session, make_schedule: MakeSchedule) -> None:
    run = one_run(session, make_schedule)
    begin(session, run)
    lifecycle.end_run(session, run, RunState.FAILED, reason="it was not to be")
    session.rollback()
    assert told(session) == []


def test_each_skipped_run_is_an_event_and_three_in_a_row_one_more_until_one_runs(
    session: Session, make_schedule: MakeSchedule
) -> None:
    run = one_run(session, make_schedule)
    for hours in range(2, 7):
        make_due(session, now=EVENING + hours * HOUR)
    session.commit()
    skipped = session.scalars(select(Run.id).where(Run.state == "skipped").order_by(Run.scheduled_for)).all()
    assert told(session) == [*(("run.skipped", each) for each in skipped), ("schedule.skipping", run.schedule_id)]
    assert len(skipped) == 5
    begin(session, run)
    lifecycle.end_run(session, run, RunState.SUCCEEDED)
    for hours in range(7, 11):
        make_due(session, now=EVENING + hours * HOUR)
        session.commit()
    assert [kind for kind, _ in told(session)].count("schedule.skipping") == 2, "one ran in between"


def test_runs_that_a_later_one_makes_up_for_are_no_reason_to_look(
    session: Session, make_schedule: MakeSchedule
) -> None:
    make_schedule(at=EVENING, catch_up="latest")
    make_due(session, now=EVENING + 6 * HOUR)
    session.commit()
    runs = session.scalars(select(Run).order_by(Run.scheduled_for)).all()
    assert [(run.state, run.num_missed) for run in runs] == [("skipped", 5), ("queued", 1)]
    assert told(session) == [("run.skipped", runs[0].id)]


def test_a_run_that_has_not_ended_in_time_is_late_once_whoever_looks(
    session: Session, maker: sessionmaker[Session], make_schedule: MakeSchedule
) -> None:
    run = one_run(session, make_schedule, late_after_seconds=1800)
    due = run.scheduled_for + timedelta(seconds=1800)
    assert tell_of_late_runs(session, now=due - timedelta(seconds=1)) == []
    assert tell_of_late_runs(session, now=due) == [run.id], "it waits to begin"
    with maker.begin() as other:
        assert tell_of_late_runs(other, now=due) == [], "it is another's"
    session.commit()
    with maker.begin() as other:
        assert tell_of_late_runs(other, now=due + HOUR) == []
    begin(session, run)
    lifecycle.end_run(session, run, RunState.SUCCEEDED)
    session.commit()
    assert told(session) == [("run.late", run.id)]
    assert run.late_at is not None


@pytest.mark.parametrize(
    ("after", "expected"),
    [(RunState.SUCCEEDED, ["run.late"]), (RunState.FAILED, ["run.failed", "run.late"]), (RunState.CANCELLED, [])],
)
def test_a_run_that_ends_late_before_anybody_has_looked_is_late(
    session: Session, make_schedule: MakeSchedule, after: RunState, expected: list[str]
) -> None:
    run = one_run(session, make_schedule, late_after_seconds=1)
    run.scheduled_for = datetime.now(UTC) - HOUR
    session.commit()
    begin(session, run)
    if after is RunState.CANCELLED:
        lifecycle.cancel_run(session, run.tenant_id, run.id, reason="by hand")
    lifecycle.end_run(session, run, after)
    session.commit()
    assert [kind for kind, _ in told(session)] == expected


def test_no_run_is_late_where_nobody_says_when_or_the_schedule_did_not_make_it(
    session: Session, make_schedule: MakeSchedule
) -> None:
    run = one_run(session, make_schedule)
    assert tell_of_late_runs(session, now=EVENING + 1000 * HOUR) == []
    schedule = session.scalars(select(Schedule)).one()
    schedule.late_after_seconds = 1
    run.kind = "backfill"
    session.commit()
    assert tell_of_late_runs(session, now=EVENING + 1000 * HOUR) == []
