from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session, sessionmaker

from features.webhooks import events
from features.webhooks.events import emit
from features.webhooks.states import DeliveryState
from features.webhooks.tables import WebhookDelivery, WebhookEndpoint
from jobs.accounts import tenants
from jobs.batches import deletion, lifecycle
from jobs.chunks import leasing
from jobs.states import BatchState, EventType
from jobs.storage import Storage
from jobs.tables import Tenant
from tests.features.webhooks.builders import add_endpoint
from tests.jobs.batches.control import finalise

Make = Callable[..., Any]


def noted(session: Session) -> list[tuple[str, str, dict[str, Any]]]:
    rows = session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.event_type, WebhookDelivery.endpoint_id))
    return [(row.endpoint_id, row.event_type, row.event_data) for row in rows]


def test_each_endpoint_that_asked_for_a_type_has_the_event_once_under_the_same_id(
    session: Session, tenant: Tenant
) -> None:
    first = add_endpoint(session, tenant.id)
    second = add_endpoint(session, tenant.id, EventType.BATCH_FAILED, EventType.BATCH_COMPLETED)
    add_endpoint(session, tenant.id, EventType.BATCH_EXPIRED)
    disabled = add_endpoint(session, tenant.id)
    disabled.disabled_at = disabled.created_at
    add_endpoint(session, tenants.create_tenant(session, "other").id)
    event_id = emit(session, tenant.id, EventType.BATCH_FAILED, {"id": "batch_1"})
    session.commit()
    assert noted(session) == [(owner.id, "batch.failed", {"id": "batch_1"}) for owner in (first, second)]
    assert set(session.scalars(select(WebhookDelivery.event_id))) == {event_id}


def test_an_event_is_noted_with_the_transaction_that_makes_it_true_or_not_at_all(
    session: Session, tenant: Tenant
) -> None:
    add_endpoint(session, tenant.id)
    assert emit(session, tenant.id, EventType.BATCH_FAILED, {"id": "batch_1"})
    session.rollback()
    assert noted(session) == []


def test_an_event_that_nobody_asked_for_is_not_kept(session: Session, tenant: Tenant) -> None:
    assert emit(session, tenant.id, EventType.BATCH_FAILED, {"id": "batch_1"}) is None
    assert noted(session) == []


def test_an_endpoint_that_is_being_deleted_fails_no_event(
    session: Session, maker: sessionmaker[Session], tenant: Tenant
) -> None:
    gone = add_endpoint(session, tenant.id)
    stays = add_endpoint(session, tenant.id)
    session.execute(delete(WebhookEndpoint).where(WebhookEndpoint.id == gone.id))
    begun = threading.Event()

    def note_event() -> None:
        with maker.begin() as other:
            other.connection()
            begun.set()
            emit(other, tenant.id, EventType.BATCH_FAILED, {"id": "batch_1"})

    thread = threading.Thread(target=note_event)
    thread.start()
    assert begun.wait(10)
    session.commit()
    thread.join(10)
    assert [endpoint_id for endpoint_id, _, _ in noted(session)] == [stays.id]


def test_what_is_too_much_is_not_sent_and_stands_in_the_log(
    session: Session, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_PENDING", 2)
    add_endpoint(session, tenant.id)
    for number in range(3):
        emit(session, tenant.id, EventType.BATCH_FAILED, {"id": f"batch_{number}"})
    session.commit()
    rows = session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.event_data["id"].astext)).all()
    assert [row.state for row in rows] == [DeliveryState.PENDING, DeliveryState.PENDING, DeliveryState.FAILED]
    assert (rows[2].problem, rows[2].ended_at is None) == (events.TOO_MANY, False)
    assert events.num_pending(session, tenant.id) == 2


@pytest.mark.parametrize("outcome", [BatchState.COMPLETED, BatchState.EXPIRED, BatchState.FAILED])
def test_every_end_of_a_batch_is_one_event(
    session: Session, tenant: Tenant, storage: Storage, run: Make, outcome: BatchState
) -> None:
    endpoint = add_endpoint(session, tenant.id)
    if outcome is BatchState.COMPLETED:
        batch = run(["no line"], invalid_lines="skip")  # an error line is all that it has
    else:
        batch = run(2 if outcome is BatchState.EXPIRED else 0)
    if outcome is BatchState.EXPIRED:
        lifecycle.move_batch(session, batch, BatchState.FINALIZING, outcome=outcome)
        leasing.withdraw_open(session, batch.id)
    for _ in range(2):  # and a repeated hint
        finalise(session, storage, batch.id)
    assert noted(session) == [(endpoint.id, f"batch.{outcome}", {"id": batch.id})]


def test_a_cancelled_batch_is_one_event_once_it_has_ended(
    session: Session, tenant: Tenant, storage: Storage, run: Make
) -> None:
    endpoint = add_endpoint(session, tenant.id)
    batch = run(2)
    lifecycle.cancel_batch(session, tenant.id, batch.id)
    session.commit()
    assert noted(session) == []
    finalise(session, storage, batch.id)
    assert noted(session) == [(endpoint.id, "batch.cancelled", {"id": batch.id})]


def test_a_deleted_tenant_has_no_endpoints(session: Session, tenant: Tenant) -> None:
    add_endpoint(session, tenant.id)
    emit(session, tenant.id, EventType.BATCH_FAILED, {"id": "batch_1"})
    deletion.delete_tenant(session, tenant, by="operator")
    session.commit()
    assert noted(session) == []
    assert session.scalars(select(WebhookEndpoint)).all() == []
