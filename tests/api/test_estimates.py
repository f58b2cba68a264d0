"""Tests of a batch's estimate before its submission, for a file and for requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
from openai import OpenAI
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.accounts.keys import authenticate
from jobs.accounts.window_budgets import NewBudget, set_budget
from jobs.batches import estimating
from jobs.chunks import fleet
from jobs.states import BudgetUnit, BudgetWindow
from tests.database_roles import as_superuser_do

MODEL = "org/priced"


@pytest.fixture(scope="module", autouse=True)
def priced(deployment: Any) -> Iterator[None]:
    """A model with prices that tests of other modules do not use."""
    with Session(deployment.engine) as session, session.begin():
        served_models.add_model(session, MODEL, "/models/p", input_price_picos=1_000_000, output_price_picos=3_000_000)
    yield
    with Session(deployment.engine) as session, session.begin():
        session.execute(text("DELETE FROM model WHERE name = :name"), {"name": MODEL})


@pytest.fixture
def worker(deployment: Any) -> Iterator[None]:
    """A live worker of the model that generates 50 tokens/s, and lines that use half of their estimates."""
    with Session(deployment.engine) as session, session.begin():
        fleet.register(session, worker_id="priced", model=MODEL, max_chunks=1, max_model_len=64)
        session.execute(
            text("""
                INSERT INTO serving_rate (model, tokens_per_second, token_ratio, counters, is_saturated, measured_at)
                VALUES (:model, 50, 0.5, CAST(:counters AS jsonb), TRUE, now())
            """),
            {"model": MODEL, "counters": json.dumps({"evidence_seconds": 120, "evidence_lines": 1e9})},
        )
    yield
    with Session(deployment.engine) as session:
        fleet.stop(session, "priced")
        as_superuser_do(session, "DELETE FROM serving_rate")


def estimate(client: OpenAI, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/estimates", cast_to=dict[str, Any], body=body)
    return answer


def test_an_estimates_end_is_told_no_earlier_than_it_is_forecast(
    client: OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_at = datetime(2030, 1, 1, 12, 0, 0, 1, tzinfo=UTC)

    def outcome(*given: Any, **options: Any) -> estimating.Outcome:
        return replace(known(*given, **options), ends_at=ends_at)

    known = estimating.outcome
    monkeypatch.setattr(estimating, "outcome", outcome)
    requests = [{"body": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}}]
    assert estimate(client, requests=requests)["eta"] == int(ends_at.timestamp()) + 1


def test_an_estimate_tells_the_thoughts_of_a_line_as_the_tenants_last_batches_had_them(
    client: OpenAI, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    requests = [{"body": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}}]
    assert estimate(client, requests=requests)["reasoning_tokens_per_line"] is None
    file = client.files.create(file=("in.jsonl", input_lines(1, model=MODEL)), purpose="batch")
    changes = [(MODEL, 100, 4), (MODEL, 500, 8), (MODEL, 0, 1000), ("other", 9000, 1)]
    for model, reasoning_tokens, num_computed in changes:
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        values = {"model": model, "tokens": reasoning_tokens, "lines": num_computed, "id": batch.id}
        changed = "model = :model, reasoning_tokens = :tokens, num_computed = :lines"
        with Session(deployment.engine) as session, session.begin():
            session.execute(text(f"UPDATE batch SET {changed} WHERE id = :id"), values)
    assert estimate(client, requests=requests)["reasoning_tokens_per_line"] == 50


def test_a_file_is_estimated_and_its_bad_lines_are_listed(
    client: OpenAI, deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    content = input_lines(100, model=MODEL) + b"no json\n"
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    objects = deployment.object_names()
    found = estimate(client, input_file_id=file.id)
    assert (found["object"], found["model"], found["requests"]) == ("estimate", MODEL, 101)
    assert (found["checked_lines"], found["invalid_lines"]) == (101, 1)
    assert [error["code"] for error in found["errors"]["data"]] == ["invalid_json_line"]
    # 8 tokens of a prompt, 8 of a message, 2 of "hello" for each line; the invalid one by its bytes, and 1,024 by
    # default.
    assert (found["input_tokens"], found["output_tokens"]) == (100 * 18 + 2, 100 * 8 + 1024)
    assert found["cost_micros"] == found["input_tokens"] + 3 * found["output_tokens"]
    assert "±40 %" in found["tokens_basis"]
    assert (found["worker_seconds"], found["eta"]) == (None, None)
    assert found["basis"] == "No running worker serves the model 'org/priced'."
    assert (found["available_tokens"], found["fits_budget"]) == (None, True)
    assert client.batches.list().data == []
    assert deployment.object_names() == objects


def test_the_end_is_behind_what_is_there(
    client: OpenAI, deployment: Any, input_lines: Callable[..., bytes], worker: None
) -> None:
    requests = [json.loads(line) for line in input_lines(100, model=MODEL).splitlines()]
    alone = estimate(client, requests=requests)
    assert alone["input_tokens"] + alone["output_tokens"] == 2600
    assert alone["worker_seconds"] == pytest.approx(2600 * 0.5 / 50)
    assert "0 tokens would be served before its end and 1,300 of its own, by 1 worker at 50 tokens/s" in alone["basis"]
    assert "50% of what was estimated" in alone["basis"]


def test_the_line_in_which_a_large_file_is_cut_is_not_checked(
    client: OpenAI, input_lines: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = input_lines(5, model=MODEL)
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    size = len(content) // 5
    monkeypatch.setattr(estimating, "CHECKED_BYTES", 3 * size + size // 2)
    found = estimate(client, input_file_id=file.id)
    assert (found["requests"], found["checked_lines"], found["invalid_lines"]) == (5, 3, 0)
    monkeypatch.setattr(estimating, "CHECKED_BYTES", len(content.rstrip()))
    file = client.files.create(file=("in.jsonl", content.rstrip()), purpose="batch")
    assert estimate(client, input_file_id=file.id)["checked_lines"] == 5, "a whole file needs no last line end"


def test_a_line_that_no_workers_context_has_room_for_is_a_bad_line(client: OpenAI, worker: None) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 64}
    found = estimate(client, requests=[{"body": body}, {"body": body | {"max_tokens": 63}}])
    assert (found["checked_lines"], found["invalid_lines"]) == (2, 1)
    assert [error["code"] for error in found["errors"]["data"]] == ["context_length_exceeded"]


@pytest.mark.parametrize("unit", ["tokens", "money"])
def test_a_budget_in_all_that_would_refuse_the_submit_is_no_fit(
    client: OpenAI, deployment: Any, input_lines: Callable[..., bytes], unit: str
) -> None:
    requests = [json.loads(line) for line in input_lines(10).splitlines()]
    assert estimate(client, requests=requests)["fits_budget"]
    limits = {BudgetWindow.DAY: 10, BudgetWindow.TOTAL: 10 if unit == "tokens" else 0}
    for window, limit in limits.items():
        with Session(deployment.engine) as session, session.begin():
            tenant_id = authenticate(session, client.api_key).owner().id
            set_budget(session, tenant_id, NewBudget(unit=BudgetUnit(unit), window=window, limit=limit))
        assert estimate(client, requests=requests)["fits_budget"] == (window is BudgetWindow.DAY)


@pytest.mark.parametrize("rate", [1e-12, 0.0])
def test_an_end_beyond_all_calendars_is_not_told(
    client: OpenAI, deployment: Any, input_lines: Callable[..., bytes], worker: None, rate: float
) -> None:
    with deployment.engine.begin() as connection:
        connection.execute(text("UPDATE serving_rate SET tokens_per_second = :rate"), {"rate": rate})
    found = estimate(client, requests=[json.loads(line) for line in input_lines(1, model=MODEL).splitlines()])
    assert found["eta"] is None
    assert "more than ten years" in found["basis"]


def test_what_the_budget_has_no_room_for_is_told_and_not_refused(
    new_client: Callable[..., OpenAI], input_lines: Callable[..., bytes]
) -> None:
    client = new_client(limit_tokens=100)
    requests = [json.loads(line) for line in input_lines(10).splitlines()]
    found = estimate(client, requests=requests, priority="bulk", metadata={"a": "b"})
    assert (found["available_tokens"], found["fits_budget"]) == (100, False)


def test_an_input_without_a_known_model_has_no_price_and_no_end(client: OpenAI) -> None:
    found = estimate(client, requests=[{"body": {"model": "nobody's", "messages": []}}])
    assert (found["model"], found["cost_micros"], found["eta"]) == (None, 0, None)
    assert found["invalid_lines"] == 1
    assert "No line names a known model" in found["basis"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input_file_id"),
        ({"input_file_id": "file-none"}, "id"),
        ({"requests": [{}], "completion_window": "soon"}, "completion_window"),
        ({"requests": [{}], "colour": "red"}, "colour"),
        ({"requests": [{}], "endpoint": "/v1/nothing"}, "endpoint"),
        ({"requests": [{}], "endpoint": "/v1/documents/read"}, "endpoint"),
    ],
)
def test_what_is_no_create_call_is_refused_by_name(client: OpenAI, body: dict[str, Any], param: str) -> None:
    with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as caught:
        estimate(client, **body)
    assert caught.value.param == param


def test_another_tenants_file_is_not_found(
    client: OpenAI, new_client: Callable[..., OpenAI], input_lines: Callable[..., bytes]
) -> None:
    file = client.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")
    with pytest.raises(openai.NotFoundError):
        estimate(new_client(), input_file_id=file.id)


@pytest.mark.parametrize(
    ("lines", "more", "verdict"),
    [
        ("good", {}, "accepted"),
        ("good bad", {}, "fails"),
        ("good bad", {"invalid_lines": "skip"}, "skips_lines"),
        ("bad bad", {"invalid_lines": "skip"}, "skips_lines"),
        ("good", {"after": "batch_none"}, "refused"),
        ("good bad", {"after": "batch_none"}, "refused"),
    ],
)
def test_what_would_become_of_the_batch_is_told(
    client: OpenAI, input_lines: Callable[..., bytes], lines: str, more: dict[str, str], verdict: str
) -> None:
    good = json.loads(input_lines(1, model=MODEL))
    bad = {"body": good["body"] | {"temperature": 7}}
    requests = [{"body": good["body"]} if line == "good" else bad for line in lines.split()]
    found = estimate(client, requests=requests, **more)
    assert (found["verdict"], found["reason"] is None) == (verdict, verdict == "accepted")


def test_a_tenants_limits_refuse_before_the_create_call(
    new_client: Callable[..., OpenAI], input_lines: Callable[..., bytes]
) -> None:
    requests = [json.loads(line) for line in input_lines(10, model=MODEL).splitlines()]
    assert estimate(new_client(limit_tokens=100), requests=requests)["verdict"] == "refused"
    assert estimate(new_client(limit_tokens=10_000), requests=requests)["verdict"] == "accepted"


def test_a_file_without_a_request_fails(client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", b"\n"), purpose="batch")
    assert estimate(client, input_file_id=file.id)["verdict"] == "fails"
