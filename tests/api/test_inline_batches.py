"""Tests of batches whose requests come with the call: the file made of them, its limits, and refusals."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from jobs.batches.inline_lines import MAX_LINES
from tests.api.worker import run, validate

BODY = {"model": "org/tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "hellö"}]}
CALL = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


def create(client: OpenAI, requests: Any, headers: dict[str, str] | None = None, **more: Any) -> Batch:
    body = {**CALL, "requests": requests, **more}
    return client.post("/batches", cast_to=Batch, body=body, options={"headers": headers or {}})


def test_requests_become_a_file_and_a_batch_of_it(client: OpenAI, deployment: Any) -> None:
    batch = create(client, [{"body": BODY}, {"custom_id": "mine", "body": BODY}], metadata={"a": "b"})
    assert (batch.status, batch.metadata) == ("validating", {"a": "b"})
    lines = [json.loads(line) for line in client.files.content(batch.input_file_id).text.splitlines()]
    assert [line["custom_id"] for line in lines] == ["request-1", "mine"]
    assert lines[0] == {"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions", "body": BODY}
    file = client.files.retrieve(batch.input_file_id)
    assert (file.purpose, file.filename) == ("batch", "requests.jsonl")
    assert file.expires_at == file.created_at + 30 * 86_400
    run(deployment, batch.id)
    ended = client.batches.retrieve(batch.id)
    assert ended.status == "completed"
    assert ended.request_counts is not None
    assert ended.request_counts.total == 2


def test_the_official_create_sends_them_as_extra_body(client: OpenAI) -> None:
    batch = client.batches.create(
        input_file_id=None,  # type: ignore[arg-type]  # null: there is none
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"requests": [{"body": BODY}]},
    )
    assert client.batches.retrieve(batch.id) == batch


def test_a_create_that_is_sent_again_makes_one_batch_and_one_file(client: OpenAI, deployment: Any) -> None:
    requests = [{"body": BODY}]
    once = create(client, requests, {"idempotency-key": "once"})
    objects = deployment.object_names()
    assert create(client, requests, {"idempotency-key": "once"}).id == once.id
    with pytest.raises(openai.ConflictError) as caught:
        create(client, [{"body": {**BODY, "max_tokens": 9}}], {"idempotency-key": "once"})
    assert caught.value.code == "idempotency_key_reused"
    assert deployment.object_names() == objects


def test_what_is_wrong_with_a_request_validation_says(client: OpenAI, deployment: Any) -> None:
    batch = create(client, [{"body": BODY}, {"custom_id": 7, "body": BODY}, {"text": "hello"}])
    validate(deployment, batch.id)
    errors = client.batches.retrieve(batch.id).errors
    assert errors is not None
    assert [error.line for error in errors.data or []] == [2, 3]


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        ({"requests": [{}] * (MAX_LINES + 1)}, 413, "requests", "too_many_tasks"),
        ({"requests": []}, 400, "requests", "invalid_value"),
        ({"requests": ["hello"]}, 400, "requests.0", "invalid_value"),
        ({"requests": [{}], "input_file_id": "file-1"}, 400, "requests", "invalid_value"),
        ({}, 400, "input_file_id", "missing_required_parameter"),
        ({"requests": [{}], "endpoint": "/v1/responses"}, 400, "endpoint", "invalid_value"),
        ({"requests": [{}, {"body": "\ud800"}]}, 400, "requests.1", "invalid_value"),
    ],
)
def test_what_is_no_batch_is_refused_and_leaves_nothing(
    http: httpx.Client, deployment: Any, *, body: dict[str, Any], status: int, param: str, code: str
) -> None:
    objects = deployment.object_names()
    answer = http.post("/v1/batches", content=json.dumps(CALL | body), headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, param, code)
    assert deployment.object_names() == objects
    assert http.get("/v1/files").json()["data"] == []


def test_not_a_number_is_no_json(http: httpx.Client) -> None:
    text = json.dumps({**CALL, "requests": [{"body": {**BODY, "temperature": float("nan")}}]})
    assert "NaN" in text
    answer = http.post("/v1/batches", content=text, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "requests.0")


def test_a_create_has_a_bound_of_its_own(http: httpx.Client) -> None:
    large = [{"body": {**BODY, "user": "x" * 100_000}}]
    assert http.post("/v1/batches", json={**CALL, "requests": large}).status_code == 200
    answer = http.post("/v1/batches", json={**CALL, "requests": large * 90})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert "8,388,608" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["batches", "estimates"])
def test_a_strangers_body_is_not_parsed(client: OpenAI, path: str) -> None:
    headers = {"authorization": "Bearer tm-nobody", "content-type": "application/json"}
    answer = httpx.post(f"{client.base_url}{path}", content=b"{" * 1000, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("content", "kind", "code"),
    [
        (b"{", "application/json", "invalid_json"),
        (b"\xff", "application/json", "invalid_json"),
        (b"[" * 100_000, "application/json", "invalid_json"),
        (b"", "application/json", "invalid_body"),
        (b"[]", "application/json", "invalid_body"),
        (b"{}", "text/plain", "invalid_body"),
        (b"{}", "application/json", "missing_required_parameter"),
    ],
)
def test_a_body_of_another_form_is_refused(client: OpenAI, content: bytes, kind: str, code: str) -> None:
    headers = {"authorization": f"Bearer {client.api_key}", "content-type": kind}
    answer = httpx.post(f"{client.base_url}batches", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
