"""Tests of what a client sees while a batch runs and at its end; this file acts as the workers through `jobs`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from sqlalchemy.orm import Session

from jobs.batches import sweeps
from jobs.batches.finalisation import finalise_batch
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, leasing
from jobs.chunks.recording import LineResult
from jobs.database import sessions
from jobs.lines.output_lines import error_line, output_line
from jobs.partitions import drop_partition
from jobs.storage import Storage

MODEL = "org/tiny"
LEASE = timedelta(seconds=60)


def validate(deployment: Any, batch_id: str) -> None:
    settings = deployment.settings
    validate_batch(sessions(deployment.engine), Storage(settings.storage_url), batch_id, settings=settings)


class Worker:
    """Claims the only chunk of a batch and answers its lines: even ones successfully, odd ones with an error."""

    def __init__(self, deployment: Any, batch_id: str) -> None:
        self.deployment, self.batch_id = deployment, batch_id
        validate(deployment, batch_id)
        with self._transaction() as session:
            claim = claiming.claim_next(session, model=MODEL, worker_id="worker", lease=LEASE)
        assert claim is not None
        assert claim.batch_id == batch_id
        self.claim, self.flush_no = claim, 0

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        with Session(self.deployment.engine) as session, session.begin():
            yield session

    def answer(self, *line_nos: int) -> None:
        self.flush_no += 1
        with self._transaction() as session:
            results = [self._result(line_no) for line_no in line_nos]
            leasing.flush(session, self.claim, results, flush_no=self.flush_no, lease=LEASE)

    def _result(self, line_no: int) -> LineResult:
        custom_id = f"line-{line_no}"
        if line_no % 2:
            line = error_line(self.batch_id, line_no, custom_id, code="context_length_exceeded", message="too long")
            return LineResult(line_no=line_no, line=line, status_code=None)
        line = output_line(self.batch_id, line_no, custom_id, status_code=200, body={"object": "chat.completion"})
        return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=5, output_tokens=2)

    def finish(self) -> None:
        with self._transaction() as session:
            leasing.complete(session, self.claim)
            sweeps.finish_ready(session)
        settings = self.deployment.settings
        finalise_batch(
            sessions(self.deployment.engine), Storage(settings.storage_url), self.batch_id, settings=settings
        )


@pytest.fixture
def batch_id(client: OpenAI, input_lines: Callable[..., bytes]) -> str:
    file = client.files.create(file=("in.jsonl", input_lines(4)), purpose="batch")
    wanted = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return client.batches.create(input_file_id=file.id, **wanted).id  # type: ignore[arg-type]


def read_results(client: OpenAI, batch_id: str, **query: int) -> httpx.Response:
    return client.get(f"/batches/{batch_id}/results", cast_to=httpx.Response, options={"params": query})


def line_ids(answer: httpx.Response) -> list[str]:
    return [json.loads(line)["custom_id"] for line in answer.text.splitlines()]


def test_finished_lines_are_readable_while_the_batch_runs(client: OpenAI, deployment: Any, batch_id: str) -> None:
    answer = read_results(client, batch_id)
    assert (answer.text, answer.headers["x-next-after"], answer.headers["x-batch-status"]) == ("", "0", "validating")

    worker = Worker(deployment, batch_id)
    worker.answer(2, 1)
    answer = read_results(client, batch_id)
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert sorted(line_ids(answer)) == ["line-1", "line-2"]
    assert (answer.headers["x-has-more"], answer.headers["x-batch-status"]) == ("false", "in_progress")

    worker.answer(0, 3)
    answer = read_results(client, batch_id, after=int(answer.headers["x-next-after"]), limit=1)
    seen = line_ids(answer)
    assert answer.headers["x-has-more"] == "true"
    worker.finish()
    answer = read_results(client, batch_id, after=int(answer.headers["x-next-after"]))
    assert sorted(seen + line_ids(answer)) == ["line-0", "line-3"]
    assert (answer.headers["x-has-more"], answer.headers["x-batch-status"]) == ("false", "completed")


def test_results_that_are_kept_no_longer_are_gone_and_the_answer_names_the_files(
    client: OpenAI, deployment: Any, batch_id: str
) -> None:
    worker = Worker(deployment, batch_id)
    worker.answer(0, 1, 2, 3)
    worker.finish()
    with Session(deployment.engine) as session, session.begin():
        # Directly: the service itself keeps a day with a batch of another test that still runs.
        created = client.batches.retrieve(batch_id).created_at
        drop_partition(session, datetime.fromtimestamp(created, UTC).date())
    with pytest.raises(openai.APIStatusError) as caught:
        read_results(client, batch_id)
    assert (caught.value.status_code, caught.value.code) == (410, "results_expired")
    batch = client.batches.retrieve(batch_id)
    assert str(batch.output_file_id) in caught.value.message
    assert str(batch.error_file_id) in caught.value.message


def test_an_output_that_was_deleted_is_in_the_results_no_longer(client: OpenAI, deployment: Any, batch_id: str) -> None:
    worker = Worker(deployment, batch_id)
    worker.answer(0, 1, 2, 3)
    worker.finish()
    batch = client.batches.retrieve(batch_id)
    for file_id in (batch.output_file_id, batch.input_file_id):
        client.files.delete(str(file_id))
    with pytest.raises(openai.APIStatusError) as caught:
        read_results(client, batch_id)
    assert (caught.value.status_code, caught.value.code) == (410, "results_deleted")
    assert "deleted by 'key_" in caught.value.message
    assert client.batches.retrieve(batch_id).to_dict() == batch.to_dict() | {"name": None}, "that of its input is gone"
    assert client.files.content(str(batch.error_file_id)).text.count("\n") == 2


def test_a_deleted_batch_is_gone_with_its_files_and_their_objects(
    client: OpenAI, deployment: Any, new_client: Callable[..., OpenAI], *, batch_id: str
) -> None:
    def delete(by: OpenAI) -> dict[str, Any]:
        return by.delete(f"/batches/{batch_id}", cast_to=dict[str, Any])

    with pytest.raises(openai.ConflictError) as refused:
        delete(client)
    assert refused.value.code == "batch_not_deletable"
    worker = Worker(deployment, batch_id)
    worker.answer(0, 1, 2, 3)
    worker.finish()
    batch = client.batches.retrieve(batch_id)
    with pytest.raises(openai.NotFoundError):
        delete(new_client())
    before = deployment.object_names()
    assert delete(client) == {"id": batch_id, "object": "batch", "deleted": True}
    calls: list[Callable[[], Any]] = [
        lambda: client.batches.retrieve(batch_id),
        lambda: read_results(client, batch_id),
        lambda: client.files.content(str(batch.output_file_id)),
        lambda: delete(client),
    ]
    for call in calls:
        with pytest.raises(openai.NotFoundError):
            call()
    assert [found.id for found in client.batches.list().data] == []
    assert client.files.retrieve(batch.input_file_id), "other batches may read it"
    deadline = time.monotonic() + 60
    while len(before - deployment.object_names()) != 3:  # they are deleted after the answer, with the line index
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_completed_batch_has_counts_usage_and_files_that_agree(
    client: OpenAI, deployment: Any, batch_id: str
) -> None:
    worker = Worker(deployment, batch_id)
    running = client.batches.retrieve(batch_id)
    assert (running.status, running.model) == ("in_progress", MODEL)
    worker.answer(0, 1, 2, 3)
    worker.finish()

    batch = client.batches.retrieve(batch_id)
    assert batch.status == "completed"
    assert batch.completed_at is not None
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 4, "completed": 2, "failed": 2, "truncated": 0}
    assert batch.usage is not None
    assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (10, 4, 14)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    output = client.files.content(batch.output_file_id).text
    assert [json.loads(line)["custom_id"] for line in output.splitlines()] == ["line-0", "line-2"]
    errors = client.files.content(batch.error_file_id).text
    assert [json.loads(line)["error"]["code"] for line in errors.splitlines()] == ["context_length_exceeded"] * 2
    file = client.files.retrieve(batch.output_file_id)
    assert (file.purpose, file.bytes) == ("batch_output", len(output.encode()))
    assert [found.id for found in client.files.list(purpose="batch_output", order="asc")] == [
        batch.output_file_id,
        batch.error_file_id,
    ]

    with pytest.raises(openai.ConflictError) as caught:
        client.batches.cancel(batch_id)
    assert caught.value.code == "batch_not_cancellable"


def test_a_malformed_file_fails_the_batch_with_every_bad_line(client: OpenAI, deployment: Any) -> None:
    file = client.files.create(file=("in.jsonl", b'{"custom_id": 1}\n\nnot json\n'), purpose="batch")
    wanted = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = client.batches.create(input_file_id=file.id, **wanted)  # type: ignore[arg-type]
    validate(deployment, made.id)
    batch = client.batches.retrieve(made.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert {error.line for error in batch.errors.data} == {1, 3}
    assert all(error.code and error.message for error in batch.errors.data)


def test_a_tenant_never_sees_the_results_of_another(
    new_client: Callable[..., OpenAI], deployment: Any, batch_id: str
) -> None:
    Worker(deployment, batch_id).answer(0)
    with pytest.raises(openai.NotFoundError):
        read_results(new_client(), batch_id)


@pytest.mark.parametrize(("name", "value"), [("after", -1), ("limit", 0), ("limit", 10_001), ("page", 1)])
def test_a_wrong_results_query_is_refused_by_name(client: OpenAI, batch_id: str, name: str, value: int) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        read_results(client, batch_id, **{name: value})
    assert caught.value.param == name
