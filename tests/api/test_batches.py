"""Tests of batches through the official client: submit, read, list and cancel."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import openai
import pytest
from openai import OpenAI
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.batches.validation import validate_batch
from jobs.chunks import claiming, fleet, leasing
from jobs.chunks.recording import LineResult
from jobs.database import sessions
from jobs.forecasts import snapshot
from jobs.storage import Storage
from jobs.tables import Batch as BatchRow
from tests.api.fixtures import Submit


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
    num_queries = 0

    def count_query(*_: object) -> None:
        nonlocal num_queries
        num_queries += 1

    def list_and_count(limit: int) -> int:
        before = num_queries
        assert len(client.batches.list(limit=limit).data) == limit
        return num_queries - before

    event.listen(Engine, "before_cursor_execute", count_query)
    try:  # the fewest of some lists: the API also asks its database by itself, once a second
        assert min(list_and_count(1) for _ in range(4)) == min(list_and_count(4) for _ in range(4)) <= 6
    finally:
        event.remove(Engine, "before_cursor_execute", count_query)
    told = [batch.model_extra for batch in client.batches.list(limit=4).data]
    assert [batch["position"] for batch in told if batch] == [3, 2, 0, 0]
    assert all(batch and batch["eta"] for batch in told)
    assert told[0] is not None
    assert " tokens of class normal; your share is all of 1 worker at " in told[0]["waits_for"]
    for batch_id in batch_ids:
        client.batches.cancel(batch_id)
    with maker.begin() as session:
        fleet.stop(session, "w")
        session.execute(text("UPDATE chunk SET state = 'withdrawn' WHERE state = 'leased'"))
