"""Tests of webhook endpoints through the official client, and of our own fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from sqlalchemy.orm import Session

from features.webhooks import deliveries, endpoints
from features.webhooks.events import emit
from features.webhooks.sending import Answer
from jobs.accounts.keys import authenticate
from jobs.states import EventType
from tests.webhook_receiver import LOCAL, Receiver, receiving

URL = "https://example.com/hook"


@pytest.fixture(scope="module")
def local(deploy: Callable[..., Any]) -> Any:
    """An API that may send to this machine."""
    return deploy(webhook_networks=LOCAL)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def owner(local: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{local.url}/v1", api_key=local.new_key(), max_retries=0) as client:
        yield client


def note(deployment: Any, client: OpenAI, count: int = 1) -> None:
    with Session(deployment.engine) as session, session.begin():
        tenant_id = authenticate(session, client.api_key).owner().id
        for number in range(count):
            emit(session, tenant_id, EventType.BATCH_FAILED, {"id": f"batch_{number}"})


def log_of(client: OpenAI, endpoint_id: str, query: str = "") -> dict[str, Any]:
    return client.get(f"/webhook_endpoints/{endpoint_id}/deliveries{query}", cast_to=dict[str, Any])


def test_the_official_client_adds_lists_changes_and_deletes_endpoints(client: OpenAI) -> None:
    made = client.webhooks.create(url=URL, name="mine", event_types=["batch.failed", "batch.completed", "batch.failed"])
    assert made.signing_secret.startswith("whsec_")
    assert (made.url, made.name, made.event_types) == (URL, "mine", ["batch.completed", "batch.failed"])
    assert made.signing_secret_hint == f"whsec_…{made.signing_secret[-4:]}"
    other = client.webhooks.create(url=URL, name="other", event_types=["batch.expired"])
    assert [one.id for one in client.webhooks.list(limit=1)] == [other.id, made.id]
    changed = client.webhooks.update(made.id, url="https://example.org/", event_types=["batch.cancelled"])
    assert (changed.url, changed.name, changed.event_types) == ("https://example.org/", "mine", ["batch.cancelled"])
    assert client.webhooks.retrieve(made.id) == changed
    assert not hasattr(changed, "signing_secret")
    assert client.webhooks.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.webhooks.retrieve(made.id)
    assert client.webhooks.event_types.list().data == list(EventType)


def test_a_new_secret_is_shown_once_and_the_old_one_may_stay_for_a_day(client: OpenAI) -> None:
    made = client.webhooks.create(url=URL, name="mine", event_types=["batch.failed"])
    rotated = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    assert rotated.signing_secret not in (made.signing_secret, client.webhooks.retrieve(made.id).signing_secret_hint)
    assert rotated.id == made.id


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "http://example.com/"}, "does not begin with https://"),
        ({"url": "https://169.254.169.254/latest"}, "TOKENMILL_WEBHOOK_NETWORKS"),
        ({"url": ""}, "url"),
        ({"event_types": []}, "event_types"),
        ({"event_types": ["batch.exploded"]}, "batch.at_risk"),
        ({"name": ""}, "name"),
        ({"name": "a\x00"}, "NUL"),
    ],
)
def test_what_is_wrong_with_an_endpoint_is_said(client: OpenAI, changes: dict[str, Any], said: str) -> None:
    good: dict[str, Any] = {"url": URL, "name": "mine", "event_types": ["batch.failed"]}
    with pytest.raises(openai.BadRequestError, match=said):
        client.webhooks.create(**good | changes)
    made = client.webhooks.create(**good)
    with pytest.raises(openai.BadRequestError, match=said):
        client.webhooks.update(made.id, **changes)


def test_a_tenant_has_only_so_many_endpoints_and_sees_nobody_elses(
    new_client: Callable[..., OpenAI], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "MAX_ENDPOINTS", 2)
    mine, stranger = new_client(), new_client()
    made = [mine.webhooks.create(url=URL, name="mine", event_types=["batch.failed"]) for _ in range(2)]
    with pytest.raises(openai.RateLimitError, match="2 webhook endpoints and 2 are allowed"):
        mine.webhooks.create(url=URL, name="mine", event_types=["batch.failed"])
    assert list(stranger.webhooks.list()) == []
    for call in (stranger.webhooks.retrieve, stranger.webhooks.delete, stranger.webhooks.rotate_secret):
        with pytest.raises(openai.NotFoundError):
            call(made[0].id)
    with pytest.raises(openai.NotFoundError):
        log_of(stranger, made[0].id)


def test_the_log_tells_what_was_sent_and_sends_it_again(client: OpenAI, deployment: Any) -> None:
    made = client.webhooks.create(url=URL, name="mine", event_types=["batch.failed"])
    note(deployment, client, 3)
    with Session(deployment.engine) as session, session.begin():
        claimed = [one for one in deliveries.claim(session, limit=500, a_tenant=3, busy={}) if one.url == URL]
        mine = [one for one in claimed if one.endpoint_id == made.id]
        deliveries.record(session, mine[0], Answer(milliseconds=7, status_code=503, text="away"))
        deliveries.record(session, mine[1], Answer(milliseconds=8, status_code=204, text=""))
    page = log_of(client, made.id, "?limit=2")
    assert page["has_more"]
    rest = log_of(client, made.id, f"?limit=2&after={page['last_id']}")
    found = {one["id"]: one for one in (*page["data"], *rest["data"])}
    assert len(found) == 3
    failed, sent = found[mine[0].delivery_id], found[mine[1].delivery_id]
    assert (failed["status"], failed["attempts"][0]["status_code"], failed["attempts"][0]["answer"]) == (
        "pending", 503, "away",
    )  # fmt: skip
    assert failed["next_attempt_at"] > failed["event"]["created_at"]
    assert (sent["status"], sent["next_attempt_at"], sent["attempts"][0]["milliseconds"]) == ("delivered", None, 8)
    assert sent["event"]["type"] == "batch.failed"
    path = f"/webhook_endpoints/{made.id}/deliveries/{sent['id']}/replay"
    replayed = client.post(path, cast_to=dict[str, Any])
    assert (replayed["status"], replayed["event"]) == ("pending", sent["event"])


def test_a_disabled_endpoint_says_why_and_is_enabled_again(client: OpenAI, http: httpx.Client) -> None:
    made = client.webhooks.create(url=URL, name="mine", event_types=["batch.failed"])
    path = f"/webhook_endpoints/{made.id}"
    off = client.post(path, body={"enabled": False}, cast_to=dict[str, Any])
    assert (off["disabled_reason"], off["disabled_at"] is None) == ("disabled by its owner", False)
    on = client.post(path, body={"enabled": True}, cast_to=dict[str, Any])
    assert (on["disabled_reason"], on["disabled_at"]) == (None, None)
    with pytest.raises(openai.BadRequestError, match="nothing to change"):
        client.post(path, body={}, cast_to=dict[str, Any])


def test_a_sample_is_sent_at_once_and_signed(owner: OpenAI, receiver: Receiver) -> None:
    made = owner.webhooks.create(url=f"{receiver.url}/hook", name="mine", event_types=["batch.failed"])
    receiver.answers["/hook"] = (418, {}, b"")
    tried = owner.webhooks.test(made.id, event_type="batch.expired")
    assert (tried.status_code, tried.event_type, tried.webhook_endpoint_id) == (418, "batch.expired", made.id)
    (request,) = receiver.received
    event = owner.webhooks.unwrap(request.body, request.headers, secret=made.signing_secret)
    assert event.type == "batch.expired"
    owner.post(f"/webhook_endpoints/{made.id}/test", body={"event_type": "run.late"}, cast_to=dict[str, Any])
    sent: Any = owner.webhooks.unwrap(
        receiver.received[1].body, receiver.received[1].headers, secret=made.signing_secret
    )
    assert (sent.type, sent.data.id) == ("run.late", "run_sample")
    assert log_of(owner, made.id)["data"] == []


@pytest.mark.parametrize(("status", "success"), [(200, True), (204, True), (302, False), (404, False), (503, False)])
def test_a_sample_is_a_success_where_a_delivery_would_be(
    owner: OpenAI, receiver: Receiver, *, status: int, success: bool
) -> None:
    made = owner.webhooks.create(url=f"{receiver.url}/hook", name="mine", event_types=["batch.failed"])
    receiver.answers["/hook"] = (status, {}, b"")
    tried = owner.webhooks.test(made.id, event_type="batch.failed").model_dump()  # their type only allows True
    assert (tried["status_code"], tried["success"]) == (status, success)


def test_a_sample_that_nobody_answers_is_a_sentence(owner: OpenAI) -> None:
    made = owner.webhooks.create(url="http://127.0.0.1:1/hook", name="mine", event_types=["batch.failed"])
    with pytest.raises(openai.BadRequestError, match="gave no answer: ConnectError"):
        owner.webhooks.test(made.id, event_type="batch.failed")


def test_a_sample_goes_to_no_private_address(client: OpenAI, deployment: Any, receiver: Receiver) -> None:
    made = client.webhooks.create(url=URL, name="mine", event_types=["batch.failed"])
    with Session(deployment.engine) as session, session.begin():
        tenant_id = authenticate(session, client.api_key).owner().id
        endpoints.get_endpoint(session, tenant_id, made.id).url = f"{receiver.url}/hook"
    with pytest.raises(openai.BadRequestError, match="leads into a private network"):
        client.webhooks.test(made.id, event_type="batch.failed")
    assert receiver.received == []


def test_an_endpoint_in_the_form_of_chats_gets_a_text(owner: OpenAI, receiver: Receiver) -> None:
    fields = {"name": "chat", "event_types": ["report.ready"], "url": f"{receiver.url}/chat"}
    made = owner.webhooks.create(**fields, extra_body={"format": "slack"})  # type: ignore[arg-type]
    assert owner.webhooks.retrieve(made.id).to_dict()["format"] == "slack"
    plain = owner.webhooks.create(**fields)  # type: ignore[arg-type]
    assert plain.to_dict()["format"] == "event"
    body = {"event_type": "report.ready"}
    assert owner.post(f"/webhook_endpoints/{made.id}/test", body=body, cast_to=dict[str, Any])["success"]
    (request,) = receiver.received
    assert json.loads(request.body) == {"text": "report.ready: id report_sample"}
    with pytest.raises(openai.BadRequestError):
        owner.webhooks.create(**fields, extra_body={"format": "other"})  # type: ignore[arg-type]
