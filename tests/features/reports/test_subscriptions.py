"""Tests of subscriptions: who may get mails, and when reports are due, each once for its day."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines import definitions
from features.pipelines.tables import Pipeline, Schedule
from features.reports import mails, subscriptions, tenant_end
from features.reports.days import next_time
from features.reports.states import MailState
from features.reports.subscriptions import Wish, set_subscription
from features.reports.tables import DueReport, ReportSubscription
from features.webhooks.endpoints import EndpointChange, create_endpoint
from features.webhooks.tables import WebhookDelivery
from jobs.batches.deletion import delete_tenant
from jobs.errors import InputError, NotFoundError
from jobs.ids import new_id
from jobs.states import EventType
from jobs.tables import Tenant
from tests.all_settings import Settings
from tests.features.reports.fixtures import Days

ANNA = "anna@example.com"
ALLOWED = {"mail_server": "127.0.0.1:25", "mail_from": "mill@example.com", "mail_domains": "example.com, Example.org"}
SETTINGS = Settings(**ALLOWED)  # type: ignore[arg-type]


def subscribe(session: Session, pipeline: Pipeline, **fields: Any) -> ReportSubscription:
    made = set_subscription(session, pipeline.tenant_id, pipeline.name, Wish(**fields), SETTINGS)
    session.commit()
    return made


def make_due(session: Session) -> list[DueReport]:
    """Let the time of all subscriptions come, and return the reports that are made."""
    session.execute(text("UPDATE report_subscription SET next_at = now() - interval '1 minute'"))
    session.commit()
    known = set(session.scalars(select(DueReport.id)))
    subscriptions.make_due(session, SETTINGS)
    session.commit()
    session.expire_all()
    return [one for one in session.scalars(select(DueReport)) if one.id not in known]


@pytest.mark.parametrize(
    "address",
    [
        "anna@example.net",
        "anna@mail.example.com",
        "anna@example.com.evil.net",
        "anna@evil.net@example.com",
        "anna@example.com\nBcc: eve@evil.net",
        "Anna <anna@example.com>",
        "anna@example.com,eve@evil.net",
        "=?utf-8?q?x=40evil.net=2C?=@example.com",
        "eve%evil.net@example.com",
        "evil.net!eve@example.com",
        "anna",
        "@example.com",
        "",
    ],
)
def test_only_addresses_in_domains_that_the_operator_allows_get_mails(
    session: Session, pipeline: Pipeline, address: str
) -> None:
    with pytest.raises(InputError) as refused:
        subscribe(session, pipeline, mail_to=[ANNA, address])
    assert refused.value.param == "mail_to"
    subscribe(session, pipeline, mail_to=[ANNA, "bob@EXAMPLE.ORG"])


@pytest.mark.parametrize("missing", ["mail_server", "mail_from", "mail_domains"])
def test_mails_are_off_without_a_server_a_sender_or_domains(session: Session, pipeline: Pipeline, missing: str) -> None:
    settings = Settings(**ALLOWED | {missing: ""})  # type: ignore[arg-type]
    with pytest.raises(InputError) as refused:
        set_subscription(session, pipeline.tenant_id, pipeline.id, Wish(mail_to=[ANNA]), settings)
    assert refused.value.code == "mail_domain_not_allowed"
    set_subscription(session, pipeline.tenant_id, pipeline.id, Wish(), settings)


@pytest.mark.parametrize(
    "values",
    [
        {"mail_server": "smtp"},
        {"mail_server": "a:0"},
        {"mail_password": "plain"},
        {"mail_from": "Mill <m@example.com>"},
        {"mail_from": "mill"},
    ],
)
def test_wrong_settings_of_mails_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Settings(**values)


@pytest.mark.parametrize("at", ["7:00", "24:00", "07:60", "07:00:00", "", "٠٧:٠٠"])
def test_a_time_that_is_none_is_refused(session: Session, pipeline: Pipeline, at: str) -> None:
    with pytest.raises(InputError) as refused:
        subscribe(session, pipeline, at=at)
    assert refused.value.param == "at"


@pytest.mark.parametrize(
    ("now", "minutes", "due"),
    [
        ("2026-11-28T05:00", 420, "2026-11-28T06:00"),
        ("2026-11-28T06:00", 420, "2026-11-29T06:00"),
        ("2026-03-28T12:00", 150, "2026-03-29T01:30"),  # 02:30, which clocks skip: 03:30
        ("2026-10-24T12:00", 150, "2026-10-25T00:30"),  # the first 02:30
    ],
)
def test_a_report_is_due_at_a_local_time(now: str, minutes: int, due: str) -> None:
    moment, expected = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in (now, due))
    assert next_time(moment, ZoneInfo("Europe/Berlin"), minutes=minutes) == expected


def test_a_day_has_one_report_whatever_is_subscribed_and_however_often_it_is_due(
    session: Session, pipeline: Pipeline, maker: sessionmaker[Session]
) -> None:
    subscribe(session, pipeline, mail_to=[ANNA])
    [due] = make_due(session)
    assert (due.state, due.mail_to, due.pipeline_id) == (MailState.PENDING, [ANNA], pipeline.id)
    assert make_due(session) == []
    subscriptions.delete_subscription(session, pipeline.tenant_id, pipeline.id)
    session.commit()
    assert subscriptions.last_due(session, pipeline.id) is None, "it waited, and is not sent"
    subscribe(session, pipeline, at="23:59")
    [silent] = make_due(session)
    assert (silent.state, silent.ended_at is not None) == (MailState.NONE, True)
    assert session.get_one(ReportSubscription, pipeline.id).next_at > session.scalars(select(func.now())).one()
    with maker() as other:
        assert not subscriptions.is_any_due(other)


def test_two_workers_make_a_report_once(session: Session, pipeline: Pipeline, maker: sessionmaker[Session]) -> None:
    subscribe(session, pipeline, mail_to=[ANNA])
    session.execute(text("UPDATE report_subscription SET next_at = now() - interval '1 minute'"))
    session.commit()
    assert subscriptions.make_due(session, SETTINGS) == 1
    with maker.begin() as other:
        assert subscriptions.make_due(other, SETTINGS) == 0
    session.commit()


def test_an_event_tells_of_a_report_once_and_reaches_only_those_who_want_it(
    session: Session, pipeline: Pipeline
) -> None:
    for number, event in enumerate((EventType.REPORT_READY, EventType.RUN_FAILED)):
        wish = EndpointChange(name=f"n{number}", url="https://example.com/hook", event_types=(event,))
        create_endpoint(session, pipeline.tenant_id, wish, SETTINGS)
    subscribe(session, pipeline)
    [due] = make_due(session)
    assert make_due(session) == []
    [delivery] = session.scalars(select(WebhookDelivery))
    assert delivery.event_type == "report.ready"
    data = delivery.event_data
    assert (data["id"], data["pipeline_id"], data["day"]) == (due.id, pipeline.id, due.day.isoformat())
    assert (data["status"], data["failed"], data["drifts"]) == ("no_run", 0, 0)
    assert data["text"].startswith(f"nightly {due.day}: no run\n")


def test_an_event_tells_no_reason_of_a_run_which_may_quote_an_answer(session: Session, days: Days) -> None:
    pipeline = days.pipeline
    wish = EndpointChange(name="hook", url="https://example.com/hook", event_types=(EventType.REPORT_READY,))
    create_endpoint(session, pipeline.tenant_id, wish, SETTINGS)
    subscribe(session, pipeline)
    days.run(_yesterday(session), state="failed", reason="The first: row-1: 'private words' (invalid_type)")
    make_due(session)
    [delivery] = session.scalars(select(WebhookDelivery))
    assert (delivery.event_data["status"], "private words" in str(delivery.event_data)) == ("failed", False)


def _yesterday(session: Session) -> datetime:
    """Return noon of the day before, in UTC."""
    now = session.scalars(select(func.now())).one().astimezone(UTC)
    return now.replace(hour=12, minute=0, second=0, microsecond=0) - timedelta(days=1)


def test_a_subscription_that_fails_is_due_again_later_and_delays_no_other(session: Session, pipeline: Pipeline) -> None:
    other = Pipeline(id=new_id("pipeline"), tenant_id=pipeline.tenant_id, name="other", definition=pipeline.definition)
    session.add(other)
    session.flush()
    schedule = Schedule(id=new_id("schedule"), tenant_id=other.tenant_id, pipeline_id=other.id, name="broken")
    schedule.cron, schedule.time_zone, schedule.catch_up, schedule.catch_up_seconds = "0 0 * * *", "UTC", "none", 0
    session.add(schedule)
    for one in (pipeline, other):
        subscribe(session, one)
    schedule.time_zone = "Atlantis/Capital"
    [due] = make_due(session)
    assert due.pipeline_id == pipeline.id
    now = session.scalars(select(func.now())).one()
    assert session.get_one(ReportSubscription, other.id).next_at > now


def test_the_day_is_the_one_whose_runs_were_due(
    session: Session, days: Days, make_schedule: Callable[..., Schedule]
) -> None:
    now = session.scalars(select(func.now())).one()
    make_schedule("0 0 1 1 *", at=now)
    subscribe(session, days.pipeline)
    days.run(_yesterday(session))
    [evening] = make_due(session)
    assert evening.day == now.date() - timedelta(days=1), "today has no run"
    days.run(now)
    [due] = make_due(session)
    assert due.day == now.date()


def test_the_day_before_has_its_report_if_its_runs_had_none(
    session: Session, days: Days, make_schedule: Callable[..., Schedule]
) -> None:
    now = session.scalars(select(func.now())).one()
    make_schedule("0 0 1 1 *", at=now)
    subscribe(session, days.pipeline)
    days.run(_yesterday(session))
    days.run(now)
    [due] = make_due(session)
    assert due.day == now.date(), "the run of the day before was before the subscription"
    session.execute(text("DELETE FROM due_report"))
    session.execute(text("UPDATE report_subscription SET created_at = now() - interval '9 days'"))
    both = make_due(session)
    assert sorted(due.day for due in both) == [now.date() - timedelta(days=1), now.date()]
    assert make_due(session) == []


def test_a_tenant_has_so_many_mails_a_day(
    session: Session, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("features.reports.subscriptions.MOST_MAILS", 2, raising=False)
    others = [
        Pipeline(id=new_id("pipeline"), tenant_id=pipeline.tenant_id, name=f"p{n}", definition=pipeline.definition)
        for n in range(3)
    ]
    session.add_all(others)
    session.flush()
    for one in others:
        subscribe(session, one, mail_to=[ANNA])
    made = make_due(session)
    assert sorted(due.state for due in made) == ["failed", "pending", "pending"]
    session.execute(text("UPDATE due_report SET created_at = now() - interval '25 hours'"))
    subscribe(session, pipeline, mail_to=[ANNA])
    assert [due.state for due in make_due(session)] == ["pending"]


def test_a_deleted_pipeline_and_a_disabled_tenant_have_no_reports(session: Session, pipeline: Pipeline) -> None:
    subscribe(session, pipeline, mail_to=[ANNA])
    session.execute(text("UPDATE tenant SET disabled_at = now()"))
    session.commit()
    assert make_due(session) == []
    assert session.scalars(select(ReportSubscription)).one().next_at is not None
    definitions.delete_pipeline(session, pipeline.tenant_id, pipeline.id)
    assert make_due(session) == []
    assert session.scalars(select(ReportSubscription)).all() == []


def test_what_a_deleted_pipeline_or_tenant_had_goes(
    session: Session, pipeline: Pipeline, maker: sessionmaker[Session]
) -> None:
    subscribe(session, pipeline, mail_to=[ANNA])
    make_due(session)
    assert mails.forget(maker) == 0
    with maker.begin() as other:
        definitions.delete_pipeline(other, pipeline.tenant_id, pipeline.id)
    assert mails.forget(maker) == 2
    assert mails.forget(maker) == 0


def test_a_tenant_that_ends_takes_its_reports_with_it(session: Session, pipeline: Pipeline) -> None:
    subscribe(session, pipeline, mail_to=[ANNA])
    make_due(session)
    tenant_end.delete_all_of(session, "tenant_other")
    assert len(session.scalars(select(DueReport)).all()) == 1
    delete_tenant(session, session.get_one(Tenant, pipeline.tenant_id), by="the operator")
    session.commit()
    for table in (DueReport, ReportSubscription):
        assert session.scalars(select(table)).all() == []


def test_an_old_report_is_forgotten(session: Session, pipeline: Pipeline, maker: sessionmaker[Session]) -> None:
    subscribe(session, pipeline)
    make_due(session)
    session.execute(text("UPDATE due_report SET ended_at = now() - interval '91 days'"))
    session.commit()
    assert mails.forget(maker) == 1


def test_a_changed_subscription_holds_for_mails_that_wait(session: Session, pipeline: Pipeline) -> None:
    subscribe(session, pipeline, mail_to=[ANNA], include_rows=True)
    [due] = make_due(session)
    subscribe(session, pipeline, mail_to=["bob@example.com"])
    session.refresh(due)
    assert (due.state, due.mail_to, due.include_rows) == (MailState.PENDING, ["bob@example.com"], False)
    subscribe(session, pipeline)
    session.refresh(due)
    assert (due.state, due.mail_to, due.ended_at is not None) == (MailState.NONE, [], True)


def test_a_mail_that_waits_for_its_disabled_tenant_is_forgotten_in_the_end(
    session: Session, pipeline: Pipeline, maker: sessionmaker[Session]
) -> None:
    subscribe(session, pipeline, mail_to=[ANNA])
    make_due(session)
    session.execute(text("UPDATE due_report SET created_at = now() - interval '89 days'"))
    session.commit()
    assert mails.forget(maker) == 0
    session.execute(text("UPDATE due_report SET created_at = now() - interval '91 days'"))
    session.commit()
    assert mails.forget(maker) == 1


def test_a_subscription_is_its_tenants(session: Session, pipeline: Pipeline) -> None:
    subscribe(session, pipeline)
    with pytest.raises(NotFoundError):
        subscriptions.get_subscription(session, "tenant_other", pipeline.id)
    with pytest.raises(NotFoundError):
        set_subscription(session, "tenant_other", pipeline.id, Wish(), SETTINGS)
    subscriptions.delete_subscription(session, pipeline.tenant_id, pipeline.id)
    with pytest.raises(NotFoundError):
        subscriptions.delete_subscription(session, pipeline.tenant_id, pipeline.id)
    assert timedelta(0) < mails.LEASE < mails.TRIED_FOR
