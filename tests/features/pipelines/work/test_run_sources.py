"""Tests of the sources of runs: files by name, and the answers of an own batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from features.pipelines import definitions, lifecycle, stores
from features.pipelines.spec import parse_definition
from features.pipelines.states import RunState
from jobs.accounts import tenants
from jobs.batches import lifecycle as batches
from jobs.errors import InputError, NotFoundError
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from tests.features.pipelines.work.run_builders import House, step

ASK = "{{ previous.json.length }} {{ custom_id }} {{ answer }} {{ previous.text }}"
MESSAGES = ["one", "three", "bad", "seven"]


def keys_of(*keys: str) -> dict[str, Any]:
    return step(source={"store": "documents", "keys": list(keys)})


def of_batch(batch_id: str) -> dict[str, Any]:
    return step(source={"batch": batch_id}, prompt=ASK)


@pytest.fixture
def batch_id(submit: Callable[..., str]) -> str:
    """A batch that is not validated."""
    return submit([line(number, message) for number, message in enumerate(MESSAGES)])


def line(number: int, message: str) -> dict[str, Any]:
    body = {"model": "demo", "messages": [{"role": "user", "content": message}], "max_tokens": 8}
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def neighbour(house: House) -> House:
    """Return another tenant's house, with its own stores."""
    with house.maker.begin() as session:
        other = tenants.create_tenant(session, "other", limit_tokens=1_000_000)
        for folder in (house.documents, house.results):
            is_writable = folder == house.results
            stores.add_store(session, other.id, folder.name, f"file://{folder}", options={}, is_writable=is_writable)
        return replace(house, tenant_id=other.id)


def test_keys_may_be_a_list_of_which_each_file_is_taken_once(house: House) -> None:
    for name in ("c", "a", "b", "d"):
        house.put(f"in/{name}.jsonl", {"text": name})
    run = house.finish(house.trigger(house.make(steps=[keys_of("in/c.jsonl", "in/a.jsonl", "in/?.jso*l")])))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)
    [rows] = house.out().values()
    assert [row["text"] for row in rows] == ["a", "b", "c", "d"]


def test_a_file_that_a_list_names_must_be_there(house: House) -> None:
    house.put("in/a.jsonl", {"text": "a"})
    run = house.finish(house.trigger(house.make(steps=[keys_of("in/a.jsonl", "in/{pipeline}.jsonl")])))
    assert run.state == RunState.FAILED
    assert (run.reason or "").startswith("There is no file 'in/p")
    assert "Put it there, or remove it from the list." in (run.reason or "")


def test_the_answers_of_a_batch_are_rows_in_the_order_of_its_lines(house: House, batch_id: str) -> None:
    house.fails = {"bad"}
    house.answer_all()
    run = house.finish(house.trigger(house.make(steps=[of_batch(batch_id)])))
    assert (run.state, run.reason) == (RunState.SUCCEEDED, None)
    [rows] = house.out().values()
    answers = ['{"length": 3}', '{"length": 5}', '{"length": 5}']
    assert [row["answer"] for row in rows] == answers
    ids = [row["custom_id"] for row in rows]
    assert ids == ["line-0", "line-1", "line-3"]
    prompts = [f"{answer[-2]} {name} {answer} {answer}" for answer, name in zip(answers, ids, strict=True)]
    assert [row["length"] for row in rows] == [len(prompt) for prompt in prompts]


def test_a_batch_that_has_not_ended_or_has_no_answers_fails_its_run(house: House, batch_id: str) -> None:
    pipeline_id = house.make(steps=[of_batch(batch_id)])
    run_id = house.trigger(pipeline_id)
    with house.maker.begin() as session:
        lifecycle.start_queued(session)
    house.runs().advance(run_id)
    assert house.run(run_id).reason == (
        f"steps.0.source.batch: batch {batch_id!r} is validating; its answers are complete once it has ended. Wait for "
        "that."
    )
    house.fails = set(MESSAGES)
    house.answer_all()
    run = house.finish(house.trigger(pipeline_id))
    assert (run.state, (run.reason or "").endswith("is completed and has no answers. Give another batch.")) == (
        RunState.FAILED,
        True,
    )


def test_a_batch_of_another_tenant_is_none_at_any_time(house: House, batch_id: str) -> None:
    house.answer_all()
    definition = parse_definition({"steps": [of_batch(batch_id)]})
    with house.maker() as session:
        definitions.check_names(session, house.tenant_id, definition)
        other = neighbour(house)
        with pytest.raises(NotFoundError) as refused:
            definitions.check_names(session, other.tenant_id, definition)
    run = other.finish(other.trigger(other.make(steps=[of_batch(batch_id)])))
    assert (run.state, run.reason) == (RunState.FAILED, refused.value.message)
    assert (refused.value.param, refused.value.message) == (
        "steps.0.source.batch",
        f"steps.0.source.batch: No batch found with id {batch_id!r}.",
    )
    pipeline_id = house.make(steps=[of_batch(batch_id)])
    with house.maker.begin() as session:
        batches.get_batch(session, house.tenant_id, batch_id).deleted_at = session.scalar(text("SELECT now()"))
    run = house.finish(house.trigger(pipeline_id))
    assert (run.state, run.reason) == (RunState.FAILED, refused.value.message)


def test_a_batch_whose_answers_are_vectors_has_no_rows(house: House, batch_id: str) -> None:
    definition = parse_definition({"steps": [of_batch(batch_id)]})
    with house.maker.begin() as session:
        batches.get_batch(session, house.tenant_id, batch_id).endpoint = EMBEDDING_ENDPOINT
        session.flush()
        with pytest.raises(InputError, match=r"is for /v1/embeddings, whose answers are not texts; rows .* another"):
            definitions.check_names(session, house.tenant_id, definition)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"batch": "x"}, "steps.0.source.batch: String should match pattern"),
        ({"batch": "batch_1", "store": "documents", "keys": "a"}, "give exactly one of store"),
        ({"batch": "batch_1", "take": "new_since_last_success"}, "a step and a batch have none"),
        ({"store": "documents", "keys": []}, "steps.0.source.keys: give a key, or a list of 1 to 100 keys"),
        ({"store": "documents", "keys": ["a", 1]}, "steps.0.source.keys: a key is a text of 1 to 1,000 characters"),
        ({"store": "documents", "keys": ["a", "a"]}, "steps.0.source.keys: it names a key twice"),
        ({"store": "documents", "keys": ["a", "../b"]}, "steps.0.source.keys: give a key below the store"),
    ],
)
def test_a_source_that_is_none_is_refused_with_its_place(house: House, source: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        house.make(steps=[step(source=source)])
    assert said in refused.value.message
