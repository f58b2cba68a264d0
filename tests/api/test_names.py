"""Tests of names of batches: given, shown, changed and searched, and gone once their batch is deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.tables.base import Base
from tests.api.worker import run, validate

Submit = Callable[..., Batch]
NAME = "Nightly 7 · données"


@pytest.fixture
def submit(client: OpenAI, input_lines: Callable[..., bytes]) -> Submit:
    def upload_and_create(filename: str = "in.jsonl", **wishes: Any) -> Batch:
        file = client.files.create(file=(filename, input_lines(1)), purpose="batch")
        wanted: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        return client.batches.create(input_file_id=file.id, **wanted, extra_body=wishes)

    return upload_and_create


def name_of(batch: Batch) -> Any:
    return (batch.model_extra or {})["name"]


def change(client: OpenAI, batch_id: str, **body: Any) -> Batch:
    return client.post(f"/batches/{batch_id}", cast_to=Batch, body=body)


def listed(client: OpenAI, **query: Any) -> list[str]:
    return [batch.id for batch in client.batches.list(extra_query=query)]


def test_a_batch_has_its_own_name_or_that_of_its_file(client: OpenAI, submit: Submit) -> None:
    named, unnamed = submit(name=NAME), submit("papers.jsonl")
    assert [name_of(batch) for batch in client.batches.list()] == ["papers.jsonl", NAME]
    assert name_of(client.batches.retrieve(unnamed.id)) == "papers.jsonl"
    assert name_of(change(client, named.id, name=NAME + "!")) == NAME + "!"


def test_a_batch_that_has_ended_can_be_renamed_and_not_be_given_another_class(
    client: OpenAI, deployment: Any, submit: Submit
) -> None:
    batch = submit(name=NAME)
    validate(deployment, batch.id)
    run(deployment, batch.id)
    assert name_of(change(client, batch.id, name="done")) == "done"
    with pytest.raises(openai.ConflictError):
        change(client, batch.id, name="urgent now", priority="urgent")
    assert name_of(client.batches.retrieve(batch.id)) == "done", "a refused change leaves everything as it is"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, "bell \x07", 7])
def test_a_name_that_no_list_can_show_is_refused(client: OpenAI, submit: Submit, name: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        submit(name=name)
    assert caught.value.param == "name"
    batch = submit()
    with pytest.raises(openai.BadRequestError) as caught:
        change(client, batch.id, name=name)
    assert caught.value.param == "name"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"name": "NIGHTLY"}, ["a"]),
        ({"name": "papers.j"}, ["b"]),
        ({"name": "%"}, []),
        ({"status": "failed,cancelled"}, ["b"]),
        ({"status": "failed", "name": "nightly"}, []),
        ({"metadata": "team=search"}, ["a"]),
        ({"metadata": "team=se"}, []),
        ({"created_from": 1767225600, "created_before": 1767312000}, ["b"]),
        ({"cost_from": "0.5"}, ["b"]),
        ({"cost_below": "0.5"}, ["a"]),
    ],
)
def test_a_list_has_the_batches_that_meet_all_that_is_asked_for(
    client: OpenAI, deployment: Any, submit: Submit, query: dict[str, Any], found: list[str]
) -> None:
    ids = {
        "a": submit(name=NAME, metadata={"team": "search", "env": "prod"}).id,
        "b": submit("papers.jsonl").id,
    }
    with Session(deployment.engine) as session, session.begin():
        changes = "state = 'failed', created_at = '2026-01-01 12:00+0', cost_picos = 500000000000"
        session.execute(text(f"UPDATE batch SET {changes} WHERE id = :id"), {"id": ids["b"]})
    assert listed(client, **query) == [ids[name] for name in found]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"status": "failed,gone"}, "status"),
        ({"metadata": "team"}, "metadata"),
        ({"cost_from": "much"}, "cost_from"),
        ({"created_from": "yesterday"}, "created_from"),
    ],
)
def test_a_wrong_filter_is_refused_by_name(client: OpenAI, query: dict[str, str], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        listed(client, **query)
    assert caught.value.param == param


def test_another_name_is_another_request(client: OpenAI, input_lines: Callable[..., bytes]) -> None:
    file = client.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")

    def create(**wishes: str) -> str:
        wanted: Any = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        headers = {"Idempotency-Key": "one"}
        return client.batches.create(input_file_id=file.id, **wanted, extra_body=wishes, extra_headers=headers).id

    assert create(name=NAME) == create(name=NAME)
    with pytest.raises(openai.ConflictError):
        create()


def test_no_table_has_the_name_of_a_deleted_batch(client: OpenAI, deployment: Any, submit: Submit) -> None:
    forgotten = "to be forgotten"
    batch = submit(name=forgotten, metadata={"secret": forgotten})
    validate(deployment, batch.id)
    run(deployment, batch.id)
    client.delete(f"/batches/{batch.id}", cast_to=object)
    with Session(deployment.engine) as session:
        rows = {
            name: session.scalars(text(f"SELECT to_jsonb(one)::text FROM {name} AS one")).all()
            for name in Base.metadata.tables
        }
    assert any(batch.id in row for row in rows["batch"]), "the row stays, for the ledger"
    assert [row for found in rows.values() for row in found if forgotten in row] == []
