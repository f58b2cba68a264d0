"""Tests of retries of a batch's failed lines: which lines, from which file, and every refusal."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from sqlalchemy import text

from jobs.states import AskedPriority
from tests.api.worker import run, validate

Submit = Callable[..., Batch]


@pytest.fixture
def submit(client: OpenAI, input_lines: Callable[..., bytes]) -> Submit:
    """Upload lines, by default four valid ones, and make a batch of them."""

    def upload_and_create(content: bytes | None = None, **options: Any) -> Batch:
        file = client.files.create(file=("in.jsonl", content or input_lines(4)), purpose="batch")
        wanted: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
        return client.batches.create(input_file_id=file.id, **wanted)

    return upload_and_create


def retry(client: OpenAI, batch_id: str, *, headers: dict[str, str] | None = None, **body: str) -> Batch:
    options: Any = {"headers": headers or {}}
    return client.post(f"/batches/{batch_id}/retry", cast_to=Batch, body=body or None, options=options)


def refusal(client: OpenAI, batch_id: str) -> tuple[int, str | None, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        retry(client, batch_id)
    return caught.value.status_code, caught.value.code, caught.value.message


def custom_ids(client: OpenAI, file_id: str | None) -> Sequence[str]:
    return [json.loads(line)["custom_id"] for line in client.files.content(str(file_id)).text.splitlines()]


def test_the_failed_lines_run_again_as_a_batch_that_says_what_it_retries(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    first = submit(metadata={"team": "search"}, completion_window="2h", extra_body={"priority": "bulk"})
    run(deployment, first.id, failed=(1, 3))
    again = retry(client, first.id)
    assert again.model_extra is not None
    assert (again.model_extra["retry_of"], again.model_extra["priority"]) == (first.id, "bulk")
    assert (again.status, again.metadata, again.completion_window) == ("validating", {"team": "search"}, "2h")
    assert custom_ids(client, again.input_file_id) == ["line-1", "line-3"]
    lines = client.files.content(first.input_file_id).text.splitlines()
    assert client.files.content(again.input_file_id).text.splitlines() == [lines[1], lines[3]]
    assert (client.batches.retrieve(first.id).model_extra or {})["retry_of"] is None

    run(deployment, again.id, failed=(1,))
    ended = client.batches.retrieve(again.id)
    counts = ended.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (2, 1, 1)
    once_more = retry(client, again.id)
    assert custom_ids(client, once_more.input_file_id) == ["line-3"]


def test_a_retry_may_have_another_window_and_class(client: OpenAI, deployment: Any, submit: Submit) -> None:
    first = submit()
    run(deployment, first.id, failed=(0,))
    again = retry(client, first.id, completion_window="30m", priority="urgent")
    assert again.completion_window == "30m"
    assert (again.model_extra or {})["priority"] == "urgent"
    with pytest.raises(openai.BadRequestError) as caught:
        retry(client, first.id, completion_window="soon")
    assert caught.value.param == "completion_window"


def test_a_class_above_the_tenants_right_is_refused_and_leaves_no_object(
    new_client: Callable[..., OpenAI], deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    client = new_client(best_priority=AskedPriority.NORMAL)
    file = client.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    run(deployment, batch.id, failed=(0,))
    objects = deployment.object_names()
    with pytest.raises(openai.PermissionDeniedError):
        retry(client, batch.id, priority="urgent")
    assert deployment.object_names() == objects


def test_lines_of_one_custom_id_are_told_apart_and_refused_ones_are_left_out(
    client: OpenAI, deployment: Any, submit: Submit, input_lines: Callable[..., bytes]
) -> None:
    good = input_lines(3).splitlines()
    content = b"\n".join([good[0], good[0], b"no json", b"", good[1], good[2]])
    batch = submit(content, extra_body={"invalid_lines": "skip"})
    run(deployment, batch.id, failed=(4,))
    assert custom_ids(client, retry(client, batch.id).input_file_id) == ["line-1"]


def test_a_custom_id_that_was_allowed_once_does_not_keep_its_line_from_being_retried(
    client: OpenAI, deployment: Any, submit: Submit, input_lines: Callable[..., bytes]
) -> None:
    content = input_lines(2).replace(b"line-1", b"line-1" * 300)
    batch = submit(content)
    before = replace(deployment, settings=deployment.settings.model_copy(update={"max_custom_id_characters": 2000}))
    run(before, batch.id, failed=(1,))
    again = retry(client, batch.id)
    run(deployment, again.id)
    assert custom_ids(client, client.batches.retrieve(again.id).output_file_id) == ["line-1" * 300]


def test_a_retry_that_is_sent_again_makes_one_batch_and_one_file(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    first = submit()
    run(deployment, first.id, failed=(2,))
    once = retry(client, first.id, headers={"idempotency-key": "once"})
    objects = deployment.object_names()
    assert retry(client, first.id, headers={"idempotency-key": "once"}).id == once.id
    lost = retry(client, first.id)
    assert lost.id != once.id, "a second one that is wanted"
    assert retry(client, first.id, headers={"x-stainless-retry-count": "1"}).id == lost.id
    assert len(deployment.object_names() - objects) == 1
    with pytest.raises(openai.ConflictError) as caught:
        retry(client, first.id, priority="bulk", headers={"idempotency-key": "once"})
    assert caught.value.code == "idempotency_key_reused"


def test_cancelled_lines_are_retried_too(client: OpenAI, deployment: Any, submit: Submit) -> None:
    batch = submit()
    validate(deployment, batch.id)
    client.batches.cancel(batch.id)
    run(deployment, batch.id)
    assert client.batches.retrieve(batch.id).status == "cancelled"
    assert len(custom_ids(client, retry(client, batch.id).input_file_id)) == 4


def test_a_batch_that_runs_or_has_nothing_to_retry_is_refused_with_the_reason(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    running = submit()
    status, code, message = refusal(client, running.id)
    assert (status, code) == (409, "batch_not_ended")
    assert "'validating'" in message

    run(deployment, running.id)
    status, code, message = refusal(client, running.id)
    assert (status, code) == (409, "nothing_to_retry")
    assert "all 4 are completed" in message

    bad = submit(b"no json")
    validate(deployment, bad.id)
    assert refusal(client, bad.id)[1] == "nothing_to_retry"

    empty = submit(b"\n\n")
    client.batches.cancel(empty.id)
    run(deployment, empty.id)
    assert "has no known lines" in refusal(client, empty.id)[2]

    objects = deployment.object_names()
    refused = submit(b"no json", extra_body={"invalid_lines": "skip"})
    validate(deployment, refused.id)
    run(deployment, refused.id)
    status, code, message = refusal(client, refused.id)
    assert (status, code) == (409, "nothing_to_retry")
    assert "content" in message
    assert len(deployment.object_names() - objects) == 3, "its input, its error file and the index of its lines"


def test_a_batch_whose_files_are_gone_is_refused_by_the_name_of_the_file(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    batch = submit()
    run(deployment, batch.id, failed=(0,))
    client.files.delete(batch.input_file_id)
    status, code, message = refusal(client, batch.id)
    assert (status, code) == (410, "input_file_deleted")
    assert batch.input_file_id in message

    batch = submit()
    run(deployment, batch.id, failed=(0,))
    error_file_id = client.batches.retrieve(batch.id).error_file_id
    client.files.delete(str(error_file_id))
    assert refusal(client, batch.id)[:2] == (410, "error_file_deleted")


def test_another_tenants_batch_is_not_found(
    client: OpenAI, new_client: Callable[..., OpenAI], deployment: Any, submit: Submit
) -> None:
    batch = submit()
    run(deployment, batch.id, failed=(0,))
    assert refusal(new_client(), batch.id)[0] == 404


def test_an_input_that_the_store_has_lost_is_gone(client: OpenAI, deployment: Any, submit: Submit) -> None:
    batch = submit()
    run(deployment, batch.id, failed=(0,))
    with deployment.engine.begin() as connection:
        query = text("SELECT object_key FROM file WHERE id = :id")
        key = connection.scalar(query, {"id": batch.input_file_id})
    (deployment.objects / key).unlink()
    assert refusal(client, batch.id)[:2] == (410, "file_lost")
