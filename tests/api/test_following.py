"""Tests of `after` in the API: which batches it accepts, and how waiting and failing batches appear to their owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from sqlalchemy.orm import Session

from jobs.batches import following
from tests.api.worker import run

Submit = Callable[..., Batch]


@pytest.fixture
def submit(client: OpenAI, input_lines: Callable[..., bytes]) -> Submit:
    def upload_and_create(after: str | None = None, **headers: str) -> Batch:
        file = client.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_body={} if after is None else {"after": after},
            extra_headers=headers,
        )

    return upload_and_create


def told(client: OpenAI, batch_id: str) -> dict[str, Any]:
    return client.batches.retrieve(batch_id).model_extra or {}


def test_a_batch_waits_for_the_earlier_one_and_says_so(client: OpenAI, deployment: Any, submit: Submit) -> None:
    first = submit()
    second = submit(first.id)
    assert told(client, second.id)["after"] == first.id
    assert str(told(client, second.id)["waits_for"]).startswith(f"Starts once batch '{first.id}' is completed")
    run(deployment, first.id)
    assert told(client, second.id)["waits_for"] is None
    run(deployment, second.id)
    assert client.batches.retrieve(second.id).status == "completed"


def test_a_batch_after_one_that_is_cancelled_fails_and_later_ones_are_refused(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    first = submit()
    second = submit(first.id)
    client.batches.cancel(first.id)
    with Session(deployment.engine) as session, session.begin():
        following.fail_followers(session)
    failed = client.batches.retrieve(second.id)
    assert failed.status == "failed"
    assert failed.errors is not None
    assert [error.code for error in failed.errors.data or []] == ["earlier_batch_failed"]
    with pytest.raises(openai.ConflictError) as caught:
        submit(first.id)
    assert (caught.value.code, caught.value.param) == ("earlier_batch_failed", "after")


def test_another_tenants_batch_cannot_be_waited_for(
    client: OpenAI, new_client: Callable[..., OpenAI], submit: Submit
) -> None:
    batch, other = submit(), new_client()
    file = other.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    for earlier in (batch.id, "batch_none"):
        with pytest.raises(openai.NotFoundError) as caught:
            other.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                extra_body={"after": earlier},
            )
        assert caught.value.param == "after"


def test_another_after_is_another_request(client: OpenAI, submit: Submit) -> None:
    first = submit()
    file_id = first.input_file_id
    made = [
        client.batches.create(
            input_file_id=file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_body=body,
            extra_headers={"x-stainless-retry-count": "1"},
        ).id
        for body in ({}, {"after": first.id}, {"after": first.id})
    ]
    assert made[0] == first.id
    assert made[0] != made[1] == made[2]
