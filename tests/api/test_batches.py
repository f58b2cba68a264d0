"""Tests of batches through the official client: submit, read, list, cancel, retries, and the code of every refusal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, fleet, leasing
from jobs.chunks.recording import LineResult
from jobs.database import sessions
from jobs.forecasts import snapshot
from jobs.states import AskedPriority
from jobs.storage import Storage
from jobs.tables import Batch as BatchRow

Submit = Callable[..., Batch]


@pytest.fixture
def submit(input_lines: Callable[..., bytes]) -> Submit:
    """Return a function that uploads two lines and makes a batch of them."""

    def upload_and_create(client: OpenAI, **options: Any) -> Batch:
        file = client.files.create(file=("in.jsonl", input_lines(2)), purpose="batch")
        wanted: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
        return client.batches.create(input_file_id=file.id, **wanted)

    return upload_and_create


def test_a_batch_is_accepted_and_found_again(client: OpenAI, submit: Submit) -> None:
    batch = submit(client, metadata={"team": "search"}, completion_window="2h")
    assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", "/v1/chat/completions")
    assert batch.metadata == {"team": "search"}
    assert batch.expires_at == batch.created_at + 2 * 3600
    assert batch.request_counts is not None
    assert batch._request_id is not None
    assert client.batches.retrieve(batch.id) == batch


def test_our_extensions_ride_on_extra_body(client: OpenAI, submit: Submit) -> None:
    wishes = {"priority": "urgent", "invalid_lines": "skip", "uncovered_lines": "fail", "engine": "any"}
    batch = submit(client, extra_body=wishes)
    assert batch.model_extra is not None
    assert {name: batch.model_extra[name] for name in wishes} == wishes
    assert submit(client).model_extra == {
        **batch.model_extra,
        "priority": "normal",
        "invalid_lines": "fail",
        "uncovered_lines": "wait",
        "engine": "same",
    }
    assert submit(client, extra_body={"reproducible": True}).model_extra["reproducible"]  # type: ignore[index]


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


def test_a_batch_whose_model_no_worker_serves_says_so_until_one_does(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    batch_id = submit(client).id

    def waits_for() -> list[Any]:
        found = (client.batches.retrieve(batch_id), client.batches.list().data[0])
        return [batch.model_extra["waits_for"] for batch in found if batch.model_extra]

    assert waits_for() == [None, None]
    storage, maker = Storage(deployment.settings.storage_url), sessions(deployment.engine)
    assert validate_batch(maker, storage, batch_id, settings=deployment.settings) == "in_progress"
    (reason, same) = waits_for()
    assert reason == same
    assert reason.startswith("No running worker serves the model 'org/tiny'.")
    with Session(deployment.engine) as session, session.begin():
        fleet.register(session, worker_id="w", model="org/tiny", max_chunks=1, max_model_len=64)
    assert waits_for() == [None, None]
    with Session(deployment.engine) as session, session.begin():
        session.execute(text("UPDATE batch SET waits_for_tokens = 700 WHERE id = :id"), {"id": batch_id})
        budgets.set_limit(session, session.get_one(BatchRow, batch_id).tenant_id, 600)
    (reason, same) = waits_for()
    assert reason == same
    assert reason.startswith("waiting_budget: the batch continues when there is room for 700 tokens, and ")
    with Session(deployment.engine) as session, session.begin():
        budgets.set_limit(session, session.get_one(BatchRow, batch_id).tenant_id, None)
    client.batches.cancel(batch_id)  # its chunk would be the next to be claimed in later tests


def test_the_client_pages_through_all_batches_newest_first(client: OpenAI, submit: Submit) -> None:
    made = [submit(client).id for _ in range(5)]
    first_page = client.batches.list(limit=2)
    assert (first_page.has_more, len(first_page.data)) == (True, 2)
    assert [batch.id for batch in first_page] == made[::-1]
    assert client.batches.list(after=made[0]).data == []


def test_a_cancelled_batch_is_cancelling_and_cancelling_again_is_no_error(client: OpenAI, submit: Submit) -> None:
    batch = submit(client)
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    assert cancelled.cancelling_at is not None
    assert client.batches.cancel(batch.id).status == "cancelling"


def test_a_tenant_never_sees_the_batches_of_another(
    client: OpenAI, new_client: Callable[..., OpenAI], submit: Submit
) -> None:
    batch, other = submit(client), new_client()
    for call in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            call(batch.id)
    assert other.batches.list().data == []
    with pytest.raises(openai.NotFoundError) as caught:
        other.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert caught.value.param == "input_file_id"
    assert client.batches.retrieve(batch.id).status == "validating"


def test_an_input_in_use_cannot_be_deleted_and_the_client_does_not_insist(client: OpenAI, submit: Submit) -> None:
    batch = submit(client)
    with pytest.raises(openai.ConflictError) as caught:
        client.with_options(max_retries=2).files.delete(batch.input_file_id)
    assert caught.value.code == "file_in_use"
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"


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


def test_over_budget_is_a_429_with_the_numbers_that_the_client_does_not_repeat(
    new_client: Callable[..., OpenAI], submit: Submit
) -> None:
    client = new_client(limit_tokens=10)
    with pytest.raises(openai.RateLimitError, match="10") as caught:
        submit(client.with_options(max_retries=2))
    assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
    assert caught.value.response.request.headers["x-stainless-retry-count"] == "0"
    assert client.batches.list().data == []


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


@pytest.mark.parametrize(("header", "value"), [("idempotency-key", "x" * 256), ("x-stainless-retry-count", "many")])
def test_a_wrong_header_is_refused_by_name(client: OpenAI, submit: Submit, header: str, value: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        submit(client, extra_headers={header: value})
    assert caught.value.param == header


def test_batches_of_many_clients_at_once_are_all_accepted(client: OpenAI, submit: Submit) -> None:
    """More concurrent requests than connections in the pool and threads of the server: none may starve another."""
    file_id = submit(client).input_file_id

    def create(number: int) -> str:
        metadata = {"number": str(number)}
        return client.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", metadata=metadata
        ).id

    with ThreadPoolExecutor(64) as pool:
        assert len(set(pool.map(create, range(128)))) == 128


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


def test_a_list_of_many_batches_costs_a_few_queries_and_says_when_each_ends(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    storage, maker = Storage(deployment.settings.storage_url), sessions(deployment.engine)
    batch_ids = [submit(client).id for _ in range(4)]
    for batch_id in batch_ids:
        validate_batch(maker, storage, batch_id, settings=deployment.settings)
    with maker.begin() as session:
        fleet.register(session, worker_id="w", model="org/tiny", max_chunks=1, max_model_len=64)
    lease = timedelta(hours=1)
    with maker.begin() as session:
        claimed = claiming.claim_next(session, model="org/tiny", worker_id="w", lease=lease)
        snapshot.take(session)
    assert claimed is not None
    with maker.begin() as session:
        session.execute(text("UPDATE serving_rate SET measured_at = measured_at - interval '10 seconds'"))
        answers = [
            LineResult(line_no=number, line=b"{}", status_code=200, input_tokens=400, output_tokens=100)
            for number in range(2)
        ]
        leasing.flush(session, claimed, answers, flush_no=1, lease=lease)
        snapshot.take(session)
        assert claiming.claim_next(session, model="org/tiny", worker_id="w", lease=lease) is not None
        snapshot.take(session)
    num_queries: list[int] = []

    def count_query(*_: object) -> None:
        num_queries[-1] += 1

    event.listen(Engine, "before_cursor_execute", count_query)
    try:
        pages = []
        for limit in (1, 4):
            num_queries.append(0)
            pages.append(client.batches.list(limit=limit).data)
    finally:
        event.remove(Engine, "before_cursor_execute", count_query)
    assert num_queries[0] == num_queries[1] <= 6
    told = [batch.model_extra for batch in pages[1]]
    assert [batch["position"] for batch in told if batch] == [3, 2, 0, 0]
    assert all(batch and batch["eta"] for batch in told)
    assert told[0] is not None
    assert " tokens of class normal; your share is all of 1 worker at " in told[0]["waits_for"]
    for batch_id in batch_ids:
        client.batches.cancel(batch_id)
    with maker.begin() as session:
        fleet.stop(session, "w")
        session.execute(text("UPDATE chunk SET state = 'withdrawn' WHERE state = 'leased'"))
