"""Tests of batches that are refused: the code and parameter of each refusal, and that nothing is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI

from jobs.states import AskedPriority
from tests.api.fixtures import Submit


def test_a_class_above_the_tenants_right_is_refused_and_never_lowered(
    new_client: Callable[..., OpenAI], submit: Submit
) -> None:
    client = new_client(best_priority=AskedPriority.NORMAL)
    with pytest.raises(openai.PermissionDeniedError) as caught:
        submit(client, extra_body={"priority": "urgent"})
    assert (caught.value.status_code, caught.value.code, caught.value.param) == (
        403,
        "priority_not_allowed",
        "priority",
    )
    assert "priority is 'urgent' and you may ask for normal or bulk" in caught.value.message
    assert client.batches.list().data == []
    for allowed in ("normal", "bulk"):
        made = submit(client, extra_body={"priority": allowed}).model_extra
        assert made is not None
        assert made["priority"] == allowed


def test_the_class_that_nobody_asks_for_is_refused_with_those_that_are_allowed(client: OpenAI, submit: Submit) -> None:
    batch_id = submit(client).id
    for ask in (
        lambda: submit(client, extra_body={"priority": "overflow"}),
        lambda: client.post(f"/batches/{batch_id}", cast_to=object, body={"priority": "overflow"}),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            ask()
        assert (caught.value.param, caught.value.code) == ("priority", "invalid_value")
        assert "'urgent', 'normal' or 'bulk'" in caught.value.message


@pytest.mark.parametrize(
    ("options", "param", "code"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint", "invalid_value"),
        ({"completion_window": "soon"}, "completion_window", "invalid_value"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"k" * 65: "x"}}, "metadata", "invalid_value"),
        ({"metadata": {"k": "x" * 513}}, "metadata", "invalid_value"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_value"),
        ({"metadata": {"k": "a\x00b"}}, "metadata.k", "invalid_value"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
            "output_expires_after.seconds",
            "invalid_value",
        ),
        ({"extra_body": {"priority": "asap"}}, "priority", "invalid_value"),
        ({"extra_body": {"invalid_lines": "ignore"}}, "invalid_lines", "invalid_value"),
        ({"extra_body": {"uncovered_lines": "skip"}}, "uncovered_lines", "invalid_value"),
        ({"extra_body": {"engine": "vllm"}}, "engine", "invalid_value"),
        ({"extra_body": {"engine": "any", "reproducible": True}}, "engine", "invalid_value"),
        ({"extra_body": {"colour": "red"}}, "colour", "unknown_parameter"),
        ({"extra_body": {"input_file_id": "file-none"}}, "input_file_id", "not_found"),
        ({"extra_body": {"input_file_id": 7}}, "input_file_id", "invalid_value"),
    ],
)
def test_a_wrong_field_is_refused_by_name(
    client: OpenAI, submit: Submit, options: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        submit(client, **options)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert client.batches.list().data == []


def test_a_missing_field_is_refused_by_name(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/batches", cast_to=object, body={"endpoint": "/v1/completions", "completion_window": "24h"})
    assert (caught.value.param, caught.value.code) == ("input_file_id", "missing_required_parameter")


def test_broken_json_is_refused_in_the_envelope(client: OpenAI) -> None:
    for body, code in [(b"{", "invalid_json"), (b"[]", "invalid_body"), (b"", "invalid_body")]:
        with pytest.raises(openai.BadRequestError) as caught:
            client.post(
                "/batches", cast_to=object, content=body, options={"headers": {"content-type": "application/json"}}
            )
        assert caught.value.code == code


def test_a_file_of_another_purpose_is_no_input(client: OpenAI) -> None:
    file = client.files.create(file=("notes.txt", b"x"), purpose="user_data")
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert caught.value.code == "invalid_file_purpose"


@pytest.mark.parametrize(
    ("query", "param"), [({"limit": 0}, "limit"), ({"limit": 101}, "limit"), ({"after": "x"}, "after"), ({"a": 1}, "a")]
)
def test_a_wrong_list_query_is_refused_by_name(client: OpenAI, query: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.batches.list(extra_query=query)
    assert caught.value.param == param


@pytest.mark.parametrize(("header", "value"), [("idempotency-key", "x" * 256), ("x-stainless-retry-count", "many")])
def test_a_wrong_header_is_refused_by_name(client: OpenAI, submit: Submit, header: str, value: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        submit(client, extra_headers={header: value})
    assert caught.value.param == header


def test_over_budget_is_a_429_with_the_numbers_that_the_client_does_not_repeat(
    new_client: Callable[..., OpenAI], submit: Submit
) -> None:
    client = new_client(limit_tokens=10)
    with pytest.raises(openai.RateLimitError, match="10") as caught:
        submit(client.with_options(max_retries=2))
    assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
    assert client.batches.list().data == []


def test_a_limit_on_open_batches_is_a_429_that_is_not_repeated(
    deploy: Callable[..., Any], input_lines: Callable[..., bytes]
) -> None:
    deployment = deploy(tenant_open_batches=1)
    with OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.new_key()) as client:
        file = client.files.create(file=("a.jsonl", input_lines(1)), purpose="batch")
        wanted: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        first = client.batches.create(**wanted)
        with pytest.raises(openai.RateLimitError) as caught:
            client.batches.create(**wanted, metadata={"second": "yes"})
        assert caught.value.code == "open_batches_exceeded"
        assert caught.value.response.headers["x-should-retry"] == "false"
        client.batches.cancel(first.id)
        assert [batch.id for batch in client.batches.list()] == [first.id]
