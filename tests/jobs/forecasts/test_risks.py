from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.webhooks.tables import WebhookDelivery
from jobs.forecasts import risks, snapshot
from jobs.states import BatchState
from jobs.tables import Batch, Forecast, Tenant
from tests.features.webhooks.builders import add_endpoint

Make = Callable[..., Any]


@pytest.fixture
def make_running(session: Session, make_batch: Make) -> Make:
    """Make a batch in progress whose window of 8 h began some hours ago, with a forecast in seconds from now."""

    def make(*, hours_ago: float = 1, seconds: float | None = None, **columns: Any) -> Batch:
        began = datetime.now(UTC) - timedelta(hours=hours_ago)
        window = {"created_at": began, "expires_at": began + timedelta(hours=8)}
        batch: Batch = make_batch(**{"state": BatchState.IN_PROGRESS, "model": "m"} | window | columns)
        if seconds is not None:
            session.add(Forecast(batch_id=batch.id, position=0, seconds=seconds))
        session.commit()
        return batch

    return make


def events(session: Session) -> list[dict[str, Any]]:
    rows = session.scalars(select(WebhookDelivery).where(WebhookDelivery.event_type == "batch.at_risk"))
    return [row.event_data for row in rows]


def test_a_batch_that_is_to_end_late_is_told_of_once(session: Session, tenant: Tenant, make_running: Make) -> None:
    add_endpoint(session, tenant.id)
    late = make_running(seconds=7 * 3600 + 600)
    make_running(seconds=6 * 3600)
    assert risks.warn(session) == [late.id]
    session.commit()
    (event,) = events(session)
    assert (event["id"], event["expires_at"]) == (late.id, int(late.expires_at.timestamp()))
    assert 0 < event["eta"] - event["expires_at"] < 700
    session.execute(text("UPDATE forecast SET seconds = 1"))
    assert risks.warn(session) == []
    session.execute(text("UPDATE forecast SET seconds = 1e9 WHERE batch_id = :id"), {"id": late.id})
    assert risks.warn(session) == []
    session.commit()
    assert len(events(session)) == 1


def test_where_nobody_knows_the_end_three_quarters_of_the_window_are_waited_for(
    session: Session, tenant: Tenant, make_running: Make
) -> None:
    add_endpoint(session, tenant.id)
    make_running(hours_ago=5.9)
    waiting = make_running(hours_ago=6.1)
    unread = make_running(hours_ago=6.1, state=BatchState.VALIDATING)
    make_running(hours_ago=6.1, state=BatchState.FINALIZING)
    make_running(hours_ago=8.1)  # expired: it is about to be ended
    assert sorted(risks.warn(session)) == sorted([waiting.id, unread.id])
    assert [event["eta"] for event in events(session)] == [None, None]


def test_a_batch_that_never_seems_to_end_has_no_eta(session: Session, tenant: Tenant, make_running: Make) -> None:
    add_endpoint(session, tenant.id)
    make_running(seconds=1e300)
    assert len(risks.warn(session)) == 1
    assert events(session)[0]["eta"] is None


def test_a_batch_that_is_locked_is_for_the_next_look(
    session: Session, maker: sessionmaker[Session], make_running: Make
) -> None:
    batch = make_running(seconds=1e9)
    with maker() as other:
        other.execute(text("SELECT FROM batch WHERE id = :id FOR UPDATE"), {"id": batch.id})
        assert risks.warn(session) == []
    assert risks.warn(session) == [batch.id]


def test_every_look_of_the_forecasts_looks_for_risks(session: Session, make_running: Make) -> None:
    batch = make_running(hours_ago=7)
    snapshot.take(session)
    session.commit()
    session.refresh(batch)
    assert batch.at_risk_at is not None
