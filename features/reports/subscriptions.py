"""Subscriptions: when a pipeline's reports are due, and who gets them; makes the reports that are due."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from features.pipelines.definitions import get_pipeline
from features.pipelines.tables import Pipeline
from features.reports import days
from features.reports.addresses import domain_of, is_address
from features.reports.reading import has_run_on, latest_day, read_report, zone_of
from features.reports.report import Report
from features.reports.schemas import ReportObject
from features.reports.settings import ReportSettings
from features.reports.states import MailState
from features.reports.tables import DueReport, ReportSubscription
from features.reports.texts import whole
from jobs.database import clock
from jobs.errors import InputError, NotFoundError
from jobs.hooks import emit
from jobs.ids import new_id
from jobs.states import EventType
from jobs.tables import Tenant

log = logging.getLogger(__name__)

DEFAULT_TIME = "07:00"
MOST_RECIPIENTS = 20
MOST_MAILS = 100
"""Of a tenant within 24 hours."""
_MOST_AT_ONCE = 20
_LATER = timedelta(hours=1)
_MAX_TEXT = 3000  # characters; Slack shows 4,000
_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The values of a subscription."""

    at: str = DEFAULT_TIME
    """In the time zone of the pipeline's days."""
    mail_to: Sequence[str] = ()
    include_rows: bool = False


def set_subscription(
    session: Session, tenant_id: str, pipeline_id: str, wish: Wish, settings: ReportSettings
) -> ReportSubscription:
    """Set when the reports of a pipeline are due and who gets them, from now on, also mails that wait.

    Raise InputError or NotFoundError.
    """
    minutes = _minutes_of(wish.at)
    check_recipients(wish.mail_to, settings)
    pipeline = get_pipeline(session, tenant_id, pipeline_id)
    zone = zone_of(session, pipeline)
    values: dict[str, Any] = {
        "tenant_id": tenant_id,
        "at_minutes": minutes,
        "mail_to": list(dict.fromkeys(wish.mail_to)),
        "include_rows": wish.include_rows,
        "next_at": days.next_time(clock(session), zone, minutes=minutes),
        "updated_at": func.now(),
    }
    statement = insert(ReportSubscription).values(pipeline_id=pipeline.id, **values)
    session.execute(statement.on_conflict_do_update(index_elements=["pipeline_id"], set_=values))
    _change_waiting(session, pipeline.id, wish)
    session.expire_all()
    return get_subscription(session, tenant_id, pipeline.id)


def _change_waiting(session: Session, pipeline_id: str, wish: Wish) -> None:
    """Send mails that wait to those who are to get them now; one that is being sent stays as it is."""
    is_waiting = (DueReport.pipeline_id == pipeline_id) & (DueReport.state == MailState.PENDING.value)
    values: dict[str, Any] = {"mail_to": list(dict.fromkeys(wish.mail_to)), "include_rows": wish.include_rows}
    if not wish.mail_to:
        values |= {"state": MailState.NONE.value, "ended_at": func.now(), "claimed_by": None}
    session.execute(update(DueReport).where(is_waiting).values(values))


def get_subscription(session: Session, tenant_id: str, pipeline_id: str) -> ReportSubscription:
    """Return the subscription of a pipeline, by its id or name. Raise NotFoundError."""
    pipeline = get_pipeline(session, tenant_id, pipeline_id)
    found = session.get(ReportSubscription, pipeline.id)
    if found is None:
        raise NotFoundError(f"The pipeline {pipeline.name!r} has no report subscription.", param="pipeline_id")
    return found


def delete_subscription(session: Session, tenant_id: str, pipeline_id: str) -> str:
    """Delete the subscription of a pipeline and its mails that wait; return the pipeline's id. Raise NotFoundError."""
    found = get_subscription(session, tenant_id, pipeline_id)
    is_waiting = (DueReport.pipeline_id == found.pipeline_id) & (DueReport.state == MailState.PENDING.value)
    session.execute(delete(DueReport).where(is_waiting))
    session.execute(delete(ReportSubscription).where(ReportSubscription.pipeline_id == found.pipeline_id))
    return found.pipeline_id


def last_due(session: Session, pipeline_id: str) -> DueReport | None:
    """Return the latest report that was due, None before the first."""
    query = select(DueReport).where(DueReport.pipeline_id == pipeline_id).order_by(DueReport.day.desc()).limit(1)
    return session.scalar(query)


def check_recipients(mail_to: Sequence[str], settings: ReportSettings) -> None:
    """Raise InputError for an address that is none, or is in a domain that the operator does not allow."""
    if len(mail_to) > MOST_RECIPIENTS:
        raise _refused(f"it has {len(mail_to)} addresses and {MOST_RECIPIENTS} are allowed")
    for address in mail_to:
        if not is_address(address):
            raise _refused(f"{address[:100]!r} is no address; give one such as anna@example.com")
    refused = [address for address in mail_to if not is_allowed(address, settings)]
    if refused:
        listed = ", ".join(sorted(settings.allowed_domains)) or "none"
        raise _refused(
            f"{refused[0]!r} is in a domain that mails may not be sent to. Your operator allows: {listed} "
            "(TOKENMILL_MAIL_DOMAINS)",
            code="mail_domain_not_allowed",
        )


def is_allowed(address: str, settings: ReportSettings) -> bool:
    """Return whether the operator allows mails to an address."""
    return domain_of(address) in settings.allowed_domains


def is_any_due(session: Session) -> bool:
    """Return whether `make_due` would find a subscription: a poll at rest changes nothing."""
    return bool(session.scalar(select(select(ReportSubscription).where(_IS_DUE).exists())))


def make_due(session: Session, settings: ReportSettings) -> int:
    """Make the reports that are due, each once for its pipeline and day; return how many subscriptions were due.

    A subscription whose time has passed several times has the latest report, and that of the day before. One that
    fails is due again an hour later, and delays no other.
    """
    query = select(ReportSubscription).where(_IS_DUE).order_by(ReportSubscription.next_at).limit(_MOST_AT_ONCE)
    now = clock(session)
    due = session.scalars(query.with_for_update(skip_locked=True)).all()
    for pipeline_id in [one.pipeline_id for one in due]:
        try:
            with session.begin_nested():
                _make(session, session.get_one(ReportSubscription, pipeline_id), now, settings)
        except OperationalError:
            raise
        except Exception:
            log.exception("report failed pipeline_id=%s", pipeline_id)
            later = update(ReportSubscription).where(ReportSubscription.pipeline_id == pipeline_id)
            session.execute(later.values(next_at=now + _LATER))
    session.flush()
    return len(due)


def _make(session: Session, subscription: ReportSubscription, now: datetime, settings: ReportSettings) -> None:
    """Make the reports of a locked subscription that its days lack."""
    pipeline = session.get_one(Pipeline, subscription.pipeline_id)
    tenant = session.get_one(Tenant, subscription.tenant_id)
    if pipeline.deleted_at is not None:
        session.delete(subscription)
        return
    zone = zone_of(session, pipeline)
    subscription.next_at = days.next_time(now, zone, minutes=subscription.at_minutes)
    if tenant.disabled_at is not None:
        return
    day = latest_day(session, pipeline, now)
    # Its runs may have been due after its own report would have been, such as those of an evening before a free day.
    if has_run_on(session, pipeline, day - days.DAY, zone, since=subscription.created_at):
        _make_of_day(session, subscription, day - days.DAY, now, settings)
    _make_of_day(session, subscription, day, now, settings)


def _make_of_day(
    session: Session, subscription: ReportSubscription, day: date, now: datetime, settings: ReportSettings
) -> None:
    """Make the report of a day, unless it has one, and tell of it."""
    values = {
        "id": new_id("report"),
        "pipeline_id": subscription.pipeline_id,
        "tenant_id": subscription.tenant_id,
        "day": day,
        "mail_to": subscription.mail_to,
        "include_rows": subscription.include_rows,
    }
    once = insert(DueReport).values(values | _state_of(session, subscription, now))
    once = once.on_conflict_do_nothing(index_elements=["pipeline_id", "day"])
    report_id = session.scalar(once.returning(DueReport.id))
    if report_id is not None:
        report = read_report(session, subscription.tenant_id, subscription.pipeline_id, day)
        emit(session, subscription.tenant_id, EventType.REPORT_READY, _event(report_id, report, settings))


def _state_of(session: Session, subscription: ReportSubscription, now: datetime) -> dict[str, Any]:
    """Return the state of a new report's mail."""
    if not subscription.mail_to:
        return {"state": MailState.NONE.value, "ended_at": now}
    is_lately = (DueReport.tenant_id == subscription.tenant_id) & (DueReport.created_at > now - days.DAY)
    lately = select(func.count()).where(is_lately, DueReport.state.in_([MailState.PENDING, MailState.SENT]))
    if session.scalars(lately).one() < MOST_MAILS:
        return {"state": MailState.PENDING.value}
    problem = f"there were {MOST_MAILS} mails within 24 hours, which is the most"
    return {"state": MailState.FAILED.value, "ended_at": now, "problem": problem}


def _event(report_id: str, report: Report, settings: ReportSettings) -> dict[str, Any]:
    """Return what an event tells of a report: counts and ids, and the report as a text, for chats."""
    shown = ReportObject.of(report, currency=settings.currency).model_dump(mode="json")
    return {
        "id": report_id,
        "pipeline_id": report.pipeline_id,
        "day": shown["day"],
        "status": shown["status"],
        "failed": report.num_failed,
        "drifts": len(report.drifts),
        "text": "\n".join(whole(shown, site=settings.mail_site))[:_MAX_TEXT],
    }


def _minutes_of(at: str) -> int:
    time = _TIME.fullmatch(at)
    if time is None:
        raise InputError(f"at is {at[:20]!r}; give a time such as 07:00", param="at", code="invalid_value")
    return 60 * int(time[1]) + int(time[2])


def _refused(problem: str, *, code: str = "invalid_value") -> InputError:
    return InputError(f"mail_to: {problem}.", param="mail_to", code=code)


_IS_DUE = ReportSubscription.next_at <= func.now()
