"""Tests of webhooks sent by a control worker: a real Postgres, a real HTTP server, and workers that are killed."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.webhooks import deliveries
from features.webhooks.endpoints import EndpointChange, create_endpoint
from features.webhooks.events import emit
from features.webhooks.meters import CONTROL
from features.webhooks.states import DeliveryState
from features.webhooks.work import MAX_OF_A_TENANT, WebhookSender
from jobs.accounts.tenants import create_tenant
from jobs.states import EventType
from jobs.tables import Tenant
from jobs.telemetry.meters import Meters
from tests.all_settings import Settings
from tests.webhook_receiver import LOCAL, Receiver, receiving

ROOT = Path(__file__).resolve().parents[4]
SETTINGS = Settings(webhook_networks=LOCAL, claim_alone_seconds=0.05)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


class Owner:
    """A tenant with one endpoint."""

    def __init__(self, maker: sessionmaker[Session], tenant: Tenant, url: str) -> None:
        self._maker, self.tenant_id = maker, tenant.id
        wanted = EndpointChange(name="mine", url=url, event_types=tuple(EventType))
        with maker.begin() as session:
            endpoint = create_endpoint(session, tenant.id, wanted, SETTINGS)
            self.endpoint_id, self.secret = endpoint.id, endpoint.secret

    def note(self, count: int = 1) -> None:
        with self._maker.begin() as session:
            for number in range(count):
                emit(session, self.tenant_id, EventType.BATCH_COMPLETED, {"id": f"batch_{number}"})

    def log(self) -> list[tuple[str, list[int | None]]]:
        """Return state and statuses of each delivery, the newest first."""
        with self._maker() as session:
            rows = deliveries.list_deliveries(session, self.tenant_id, self.endpoint_id, limit=100).data
            attempts = deliveries.attempts_of(session, [row.id for row in rows])
            return [(row.state, [one.status_code for one in attempts[row.id]]) for row in rows]

    def wait_for(self, log: Sequence[tuple[str, Sequence[int | None]]]) -> None:
        pause = threading.Event()
        for _ in range(3000):
            if self.log() == log:
                return
            pause.wait(0.01)
        raise AssertionError(self.log())


@contextmanager
def sending(maker: sessionmaker[Session], *, meters: Meters | None = None) -> Iterator[WebhookSender]:
    sender = WebhookSender(maker, settings=SETTINGS, meters=meters)
    sender.start()
    try:
        yield sender
    finally:
        sender.stop()


def let_pass(maker: sessionmaker[Session]) -> None:
    """End every pause and every claim."""
    with maker.begin() as session:
        session.execute(text("UPDATE webhook_delivery SET due_at = now() WHERE state = 'pending'"))


def test_an_event_arrives_and_the_official_client_accepts_it(
    maker: sessionmaker[Session], tenant: Tenant, receiver: Receiver
) -> None:
    owner, meters = Owner(maker, tenant, f"{receiver.url}/hook"), Meters(CONTROL)
    with sending(maker, meters=meters):
        owner.note()
        owner.wait_for([("delivered", [200])])
    assert meters.registry.get_sample_value("tokenmill_webhook_tries_total", {"state": "delivered"}) == 1
    (request,) = receiver.received
    event = OpenAI(api_key="none").webhooks.unwrap(request.body, request.headers, secret=owner.secret)
    assert event.type == "batch.completed"
    assert (event.data.id, event.id) == ("batch_0", request.headers["webhook-id"])


def test_a_request_that_failed_is_sent_again_under_the_same_id(
    maker: sessionmaker[Session], tenant: Tenant, receiver: Receiver
) -> None:
    owner = Owner(maker, tenant, f"{receiver.url}/hook")
    receiver.answers["/hook"] = (500, {}, b"no")
    with sending(maker):
        owner.note()
        owner.wait_for([("pending", [500])])
        receiver.answers["/hook"] = (302, {"location": f"{receiver.url}/other"}, b"")
        let_pass(maker)
        owner.wait_for([("pending", [500, 302])])
        del receiver.answers["/hook"]
        let_pass(maker)
        owner.wait_for([("delivered", [500, 302, 200])])
    assert len({request.headers["webhook-id"] for request in receiver.received}) == 1
    assert len({request.body for request in receiver.received}) == 1
    assert receiver.at("/other") == []


def test_endpoints_that_hang_delay_nobody_elses_events(
    maker: sessionmaker[Session], tenant: Tenant, receiver: Receiver
) -> None:
    go_on = threading.Event()

    def hang(handler: Any) -> None:
        go_on.wait(30)
        handler.send(200, {}, b"")

    receiver.answers["/slow"] = hang
    slow = Owner(maker, tenant, f"{receiver.url}/slow")
    slow.note(3 * MAX_OF_A_TENANT)
    with maker.begin() as session:
        other = create_tenant(session, "other")
    quick = Owner(maker, other, f"{receiver.url}/quick")
    with sending(maker):
        receiver.wait_for(lambda: receiver.at_once["/slow"] == MAX_OF_A_TENANT)
        quick.note(9)
        quick.wait_for(9 * [("delivered", [200])])
        assert receiver.at_once["/slow"] == MAX_OF_A_TENANT
        go_on.set()
        slow.wait_for(3 * MAX_OF_A_TENANT * [("delivered", [200])])
    assert receiver.most_at_once["/slow"] == MAX_OF_A_TENANT


def test_a_stopped_worker_waits_for_what_is_under_way(
    maker: sessionmaker[Session], tenant: Tenant, receiver: Receiver
) -> None:
    go_on = threading.Event()

    def hang(handler: Any) -> None:
        go_on.wait(30)
        handler.send(200, {}, b"")

    receiver.answers["/hook"] = hang
    owner = Owner(maker, tenant, f"{receiver.url}/hook")
    owner.note()
    with sending(maker) as sender:
        receiver.wait_for(lambda: receiver.at_once["/hook"] == 1)
        stopper = threading.Thread(target=sender.stop)
        stopper.start()
        go_on.set()
        stopper.join(30)
        assert owner.log() == [("delivered", [200])]


KILLED = """
import os, signal, sys, threading
from jobs.database import connect, sessions
from tests.all_settings import Settings
from features.webhooks import deliveries
from features.webhooks.sending import Sender
from features.webhooks.work import WebhookSender

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

where, url, networks = sys.argv[1:]
if where == "before the request":
    Sender.post = die
if where == "before the record":
    deliveries.record = die
settings = Settings(database_url=url, webhook_networks=networks, claim_alone_seconds=0.05)
WebhookSender(sessions(connect(url)), settings=settings).start()
threading.Event().wait(60)
"""


@pytest.mark.parametrize(
    ("where", "num_before"), [("before the request", 0), ("during the request", 1), ("before the record", 1)]
)
def test_a_worker_that_is_killed_between_two_effects_loses_nothing(
    maker: sessionmaker[Session],
    tenant: Tenant,
    receiver: Receiver,
    database_url: str,
    where: str,
    num_before: int,
) -> None:
    owner = Owner(maker, tenant, f"{receiver.url}/hook")
    owner.note()
    process = subprocess.Popen([sys.executable, "-c", KILLED, where, database_url, LOCAL], cwd=ROOT)
    if where == "during the request":

        def kill(_: Any) -> None:
            process.kill()
            process.wait(120)

        receiver.answers["/hook"] = kill
    assert process.wait(120) == -9
    receiver.wait_for(lambda: len(receiver.received) == num_before and not receiver.at_once["/hook"])
    assert owner.log() == [(DeliveryState.PENDING, [])]
    receiver.answers.clear()
    with sending(maker):
        let_pass(maker)  # the claim of the dead
        owner.wait_for([("delivered", [200])])
    ids = [request.headers["webhook-id"] for request in receiver.received]
    assert len(ids) == num_before + 1
    assert len(set(ids)) == 1


def test_an_answer_is_recorded_once_postgres_is_back(
    maker: sessionmaker[Session], tenant: Tenant, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from features.webhooks import work as webhooks
    from jobs.errors import ServiceError

    real, failures = deliveries.record, [ServiceError("away"), ServiceError("away")]

    def record(*arguments: Any) -> DeliveryState | None:
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(deliveries, "record", record)
    monkeypatch.setattr(webhooks, "_RETRY_SECONDS", 0.01)
    owner = Owner(maker, tenant, f"{receiver.url}/hook")
    owner.note()
    with sending(maker):
        owner.wait_for([("delivered", [200])])
    assert len(receiver.received) == 1
