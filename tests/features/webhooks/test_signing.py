from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from features.webhooks.payloads import signed_event
from features.webhooks.signing import hint_of, new_secret, signed_headers
from features.webhooks.states import PayloadFormat


def test_a_signature_is_that_of_the_specification() -> None:
    # By openssl: printf 'evt_1.1674087231.{"test": 2432232314}' | openssl dgst -sha256 -hmac key -binary | base64
    secret = "whsec_" + base64.b64encode(b"a key of twenty-four byt").decode()
    headers = signed_headers("evt_1", 1674087231, b'{"test": 2432232314}', signing_secrets=[secret])
    assert headers == {
        "webhook-id": "evt_1",
        "webhook-timestamp": "1674087231",
        "webhook-signature": "v1,sQ/WkZziDFc3ZObSj6htkZpWM+qReWi++Btz8LPpol4=",
    }


def test_a_secret_has_256_random_bits_and_a_hint_that_tells_them_not() -> None:
    secret = new_secret()
    assert secret.startswith("whsec_")
    assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    assert secret != new_secret()
    assert hint_of(secret) == f"whsec_…{secret[-4:]}"


def test_the_official_client_accepts_an_event_by_either_of_two_secrets_and_by_no_other() -> None:
    now = int(time.time())
    secrets = [new_secret(), new_secret()]
    event = signed_event(
        "evt_1", "batch.completed", {"id": "batch_1"}, event_at=now - 90, sent_at=now, signing_secrets=secrets
    )
    client = OpenAI(api_key="none")
    for secret in secrets:
        unwrapped = client.webhooks.unwrap(event.body, event.headers, secret=secret)
        assert unwrapped.type == "batch.completed"
        assert (unwrapped.id, unwrapped.object, unwrapped.created_at, unwrapped.data.id) == (
            "evt_1", "event", now - 90, "batch_1",
        )  # fmt: skip
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(event.body, event.headers, secret=new_secret())
    with pytest.raises(InvalidWebhookSignatureError):
        client.webhooks.unwrap(event.body.replace(b"batch_1", b"batch_2"), event.headers, secret=secrets[0])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (
            {"id": "run_1", "pipeline_id": "pipeline_1", "schedule_id": None},
            "run.failed: id run_1, pipeline_id pipeline_1",
        ),
        ({"id": "report_1", "text": "nightly: 2 & 3\n<!channel>"}, "nightly: 2 &amp; 3\n&lt;!channel&gt;"),
    ],
)
def test_a_chat_gets_a_text_that_calls_nobody(data: dict[str, Any], text: str) -> None:
    times = {"event_at": 1, "sent_at": 2}
    event = signed_event(
        "evt_1", "run.failed", data, **times, signing_secrets=[new_secret()], payload_format=PayloadFormat.SLACK
    )
    assert json.loads(event.body) == {"text": text}
