"""Tests of a batch's events on a real socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from openai import OpenAI
from sqlalchemy import text
from sqlalchemy.orm import Session

from api import spending
from api.batches import events as streams
from api.batches import looks
from jobs.batches import lifecycle
from tests.api.worker import run, validate


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(looks, "HEARTBEAT_SECONDS", 0.1)


@pytest.fixture(scope="module")
def few(deploy: Callable[..., Any]) -> Any:
    """An API with two connections to Postgres for its requests."""
    return deploy(api_connections=4)


@pytest.fixture
def owner(few: Any) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{few.url}/v1", api_key=few.new_key(), max_retries=0) as client:
        yield client


@pytest.fixture
def batch_id(owner: OpenAI, input_lines: Callable[..., bytes]) -> str:
    file = owner.files.create(file=("in.jsonl", input_lines(2)), purpose="batch")
    made = owner.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    return made.id


@contextmanager
def reading(client: OpenAI, batch_id: str, *, last_event_id: str | None = None) -> Iterator[Iterator[dict[str, str]]]:
    """Yield the events of a batch as their fields; a comment is one with the field ""."""
    headers = {"authorization": f"Bearer {client.api_key}"}
    if last_event_id is not None:
        headers["last-event-id"] = last_event_id
    url = f"{client.base_url}batches/{batch_id}/events"
    with httpx.Client(timeout=120) as plain, plain.stream("GET", url, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].partition(";")[0] == "text/event-stream"
        yield _parsed(answer.iter_lines())


def _parsed(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields
            fields = {}


def next_batch(events: Iterator[dict[str, str]]) -> tuple[str, dict[str, Any]]:
    """Return the next event's id and data; comments are skipped."""
    event = next(event for event in events if "data" in event)
    assert event["event"] == "batch"
    return event["id"], json.loads(event["data"])


def test_each_change_is_one_event_and_the_end_of_the_batch_is_the_end(owner: OpenAI, few: Any, batch_id: str) -> None:
    with reading(owner, batch_id) as events:
        assert "retry" in next(events)
        _, first = next_batch(events)
        assert first == json.loads(owner.batches.with_raw_response.retrieve(batch_id).content)
        assert "" in next(events)  # a comment: nothing has changed
        validate(few, batch_id)
        _, second = next_batch(events)
        assert (first["status"], second["status"], second["request_counts"]["total"]) == (
            "validating", "in_progress", 2,
        )  # fmt: skip
        run(few, batch_id)
        seen = [(event["id"], json.loads(event["data"])) for event in events if "data" in event]
    assert len({event_id for event_id, _ in seen}) == len(seen)
    assert (seen[-1][1]["status"], seen[-1][1]["request_counts"]["completed"]) == ("completed", 2)


def test_what_was_seen_is_not_repeated(owner: OpenAI, few: Any, batch_id: str) -> None:
    with reading(owner, batch_id) as events:
        event_id, _ = next_batch(events)
    with reading(owner, batch_id, last_event_id=event_id) as events:
        assert "" in next(event for event in events if "retry" not in event)
        validate(few, batch_id)
        newer, data = next_batch(events)
        assert data["status"] == "in_progress"
    with reading(owner, batch_id, last_event_id=event_id) as events:
        assert next_batch(events) == (newer, data)


def test_who_has_seen_the_end_is_told_to_ask_no_more(owner: OpenAI, few: Any, batch_id: str) -> None:
    owner.batches.cancel(batch_id)
    run(few, batch_id)
    with reading(owner, batch_id) as events:
        (last,) = [event for event in events if "data" in event]
        assert json.loads(last["data"])["status"] == "cancelled"
    url, headers = f"{few.url}/v1/batches/{batch_id}/events", {"authorization": f"Bearer {owner.api_key}"}
    answer = httpx.get(url, headers={**headers, "last-event-id": last["id"]})
    assert (answer.status_code, answer.content) == (204, b"")
    assert httpx.get(url, headers={**headers, "last-event-id": "other"}).status_code == 200


def test_many_watchers_hold_no_connection_and_share_one_look(
    owner: OpenAI, few: Any, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[list[str]] = []
    real = lifecycle.find_batches

    def find_batches(session: Any, batch_ids: Any) -> Any:
        looked.append(list(batch_ids))
        return real(session, batch_ids)

    monkeypatch.setattr(lifecycle, "find_batches", find_batches)
    with ExitStack() as stack:
        streams = [stack.enter_context(reading(owner, batch_id)) for _ in range(12)]
        for events in streams:
            next_batch(events)
        validate(few, batch_id)  # other requests are answered meanwhile
        for events in streams:
            assert next_batch(events)[1]["status"] == "in_progress"
        assert owner.batches.retrieve(batch_id).status == "in_progress"
    assert looked
    assert all(ids == [batch_id] for ids in looked)


def test_a_tenant_reads_only_so_many_at_once(
    owner: OpenAI, few: Any, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spending, "STREAMS", 2)
    url, headers = f"{few.url}/v1/batches/{batch_id}/events", {"authorization": f"Bearer {owner.api_key}"}
    with reading(owner, batch_id) as one, reading(owner, batch_id) as two:
        next_batch(one)
        next_batch(two)
        refused = httpx.get(url, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "streams_exceeded")
    # Both readers have gone: the server notices it, and there is room again.
    for _ in range(500):
        with httpx.stream("GET", url, headers=headers, timeout=120) as answer:
            if answer.status_code == 200:
                return
    raise AssertionError("the places of readers that have gone are still taken")


def test_a_batch_that_is_deleted_before_anybody_saw_its_end_ends_its_events(
    owner: OpenAI, few: Any, batch_id: str
) -> None:
    with reading(owner, batch_id) as events:
        next_batch(events)
        with Session(few.engine) as session, session.begin():
            session.execute(text("UPDATE batch SET deleted_at = now() WHERE id = :id"), {"id": batch_id})
        assert [event for event in events if "data" in event] == []


def test_a_strangers_batch_is_not_there(few: Any, batch_id: str) -> None:
    url = f"{few.url}/v1/batches/{batch_id}/events"
    assert httpx.get(url, headers={"authorization": f"Bearer {few.new_key()}"}).status_code == 404
    assert httpx.get(url).status_code == 401


def test_events_end_now_and_then_so_that_a_revoked_key_reads_no_more(
    owner: OpenAI, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_SECONDS", 0.3)
    with reading(owner, batch_id) as events:
        (seen,) = [event["id"] for event in events if "data" in event]  # it ends, and the batch has not
    with reading(owner, batch_id, last_event_id=seen) as events:
        assert [event for event in events if "data" in event] == []
