"""Tests of creates that are sent again, by the client or by a user: one batch, or a refusal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.api.fixtures import Submit


class LosesFirstAnswer(httpx.HTTPTransport):
    """Sends every request; the answer to the first create is lost on its way back."""

    def __init__(self) -> None:
        super().__init__()
        self.num_creates = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if request.method == "POST" and request.url.path == "/v1/batches":
            self.num_creates += 1
            if self.num_creates == 1:
                response.close()
                raise httpx.ReadError("connection reset")
        return response


def test_a_create_whose_first_answer_is_lost_makes_one_batch(deployment: Any, submit: Submit) -> None:
    transport = LosesFirstAnswer()
    http_client: Any = httpx.Client(transport=transport)  # the client declares an equal type of another package
    with OpenAI(
        base_url=f"{deployment.url}/v1",
        api_key=deployment.new_key(),
        max_retries=2,
        http_client=http_client,
    ) as client:
        batch = submit(client)
        assert transport.num_creates == 2
        assert [found.id for found in client.batches.list()] == [batch.id]

        deliberate = client.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        assert deliberate.id != batch.id


def test_creates_at_the_same_time_with_one_idempotency_key_make_one_batch(
    client: OpenAI, input_lines: Callable[..., bytes]
) -> None:
    file = client.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")
    start = threading.Barrier(8)

    def create(_: int) -> str:
        start.wait()
        return client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_headers={"idempotency-key": "once"},
        ).id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(create, range(8)))) == 1
    with pytest.raises(openai.ConflictError) as caught:
        client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="1h",  # type: ignore[arg-type]  # the client knows one window
            extra_headers={"idempotency-key": "once"},
        )
    assert caught.value.code == "idempotency_key_reused"


def test_a_file_that_is_uploaded_again_is_the_same_request_where_its_digest_is_given(
    client: OpenAI, submit: Submit
) -> None:
    key = {"idempotency-key": "of one content"}
    first = submit(client, extra_headers=key, extra_body={"input_sha256": "a" * 64})
    assert submit(client, extra_headers=key, extra_body={"input_sha256": "a" * 64}).id == first.id
    for others in ({"input_sha256": "b" * 64}, {}, {"input_sha256": "a" * 64, "priority": "bulk"}):
        with pytest.raises(openai.ConflictError) as caught:
            submit(client, extra_headers=key, extra_body=others)
        assert caught.value.code == "idempotency_key_reused"


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({}, {"input_sha256": "a" * 64}),
        ({"idempotency-key": "k"}, {"input_sha256": "A" * 64}),
        ({"idempotency-key": "k"}, {"input_sha256": "a" * 63}),
        ({"idempotency-key": "k"}, {"input_sha256": "a" * 64, "input_file_id": None, "requests": [{"body": {}}]}),
    ],
)
def test_a_digest_that_stands_for_nothing_is_refused(
    client: OpenAI, submit: Submit, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        submit(client, extra_headers=headers, extra_body=fields)
    assert caught.value.param == "input_sha256"
