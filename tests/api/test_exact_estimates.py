"""Tests of estimates counted by a worker of the model: requested, read, and owned."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import openai
import pytest
from openai import OpenAI
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.batches import exact_counts
from jobs.batches.exact_counts import Turn
from jobs.chunks import fleet
from tests.database_roles import as_superuser_do

MODEL = "org/counted"
PROBLEM = {"code": "context_length_exceeded", "message": "too long", "param": "body.messages", "line": 3}


@pytest.fixture(scope="module", autouse=True)
def priced(deployment: Any) -> Iterator[None]:
    """A model with prices that tests of other modules do not use."""
    with Session(deployment.engine) as session, session.begin():
        served_models.add_model(session, MODEL, "/models/p", input_price_picos=1_000_000, output_price_picos=3_000_000)
    yield
    with Session(deployment.engine) as session:
        fleet.stop(session, "counts")
        session.execute(text("DELETE FROM model WHERE name = :name"), {"name": MODEL})
        as_superuser_do(session, f"DELETE FROM serving_rate WHERE model = '{MODEL}'")


@pytest.fixture(autouse=True)
def nothing_else_is_counted(deployment: Any) -> None:
    with Session(deployment.engine) as session, session.begin():
        session.execute(text("DELETE FROM input_count"))


@pytest.fixture
def file_id(client: OpenAI, input_lines: Callable[..., bytes]) -> str:
    return client.files.create(file=("in.jsonl", input_lines(5, model=MODEL)), purpose="batch").id


def ask(client: OpenAI, **body: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/estimates", cast_to=dict[str, Any], body={"exact": True, **body})
    return answer


def look(client: OpenAI, estimate_id: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(f"/estimates/{estimate_id}", cast_to=dict[str, Any])
    return answer


def count(deployment: Any, *, num_lines: int, is_whole: bool, listed: list[dict[str, Any]]) -> None:
    """Count as a worker would, at 10 tokens per prompt and 3 per answer."""
    with Session(deployment.engine) as session, session.begin():
        claimed = exact_counts.claim(session, model=MODEL, lease=timedelta(minutes=1))
        assert claimed is not None
        turn = Turn(
            next_line=num_lines, next_byte=1, is_whole=is_whole, num_lines=num_lines, input_tokens=10 * num_lines,
            output_tokens=3 * num_lines, num_invalid=len(listed), listed=listed,
        )  # fmt: skip
        exact_counts.note_turn(session, claimed, turn, max_listed=5)


def test_an_estimate_is_by_bytes_until_a_worker_has_counted_it(client: OpenAI, deployment: Any, file_id: str) -> None:
    first = ask(client, input_file_id=file_id)
    assert (first["status"], first["counted_lines"], first["requests"]) == ("counting", 0, 5)
    assert first["input_tokens"] == 5 * 18
    assert "±40 %" in first["tokens_basis"]
    count(deployment, num_lines=2, is_whole=False, listed=[])
    half = look(client, first["id"])
    assert (half["status"], half["counted_lines"], half["input_tokens"]) == ("counting", 2, 5 * 18)
    count(deployment, num_lines=3, is_whole=True, listed=[PROBLEM])
    whole = look(client, first["id"])
    assert (whole["id"], whole["status"], whole["requests"]) == (first["id"], "counted", 5)
    assert (whole["input_tokens"], whole["output_tokens"]) == (50, 15)
    assert whole["cost_micros"] == 50 + 3 * 15
    assert (whole["checked_lines"], whole["invalid_lines"], whole["errors"]["data"]) == (5, 1, [PROBLEM])
    assert whole["tokens_basis"].startswith("Exact")
    assert whole["basis"] == f"No running worker serves the model {MODEL!r}."
    assert client.batches.list().data == []


def test_what_is_counted_is_not_corrected_by_how_far_off_estimates_by_bytes_were(
    client: OpenAI, deployment: Any, file_id: str
) -> None:
    with Session(deployment.engine) as session, session.begin():
        fleet.register(session, worker_id="counts", model=MODEL, max_chunks=1, max_model_len=64)
        session.execute(
            text("""
                INSERT INTO serving_rate (model, tokens_per_second, token_ratio, counters, is_saturated, measured_at)
                VALUES (:model, 50, 0.5, CAST(:counters AS jsonb), TRUE, now())
            """),
            {"model": MODEL, "counters": json.dumps({"evidence_seconds": 120, "evidence_lines": 1e9})},
        )
    first = ask(client, input_file_id=file_id)
    assert first["worker_seconds"] == pytest.approx((first["input_tokens"] + first["output_tokens"]) * 0.5 / 50)
    assert "lines of this model used 50% of what was estimated for them" in first["basis"]
    count(deployment, num_lines=5, is_whole=True, listed=[])
    whole = look(client, first["id"])
    assert whole["worker_seconds"] == pytest.approx(65 / 50)
    assert "65 of its own" in whole["basis"]
    assert "answers count in full, and may end before their max_tokens" in whole["basis"]


def test_an_estimate_by_bytes_has_no_id(client: OpenAI, file_id: str) -> None:
    found = ask(client, input_file_id=file_id, exact=False)
    assert (found["id"], found["status"], found["counted_lines"]) == (None, "estimated", None)


def test_what_cannot_be_counted_is_refused(client: OpenAI, file_id: str, input_lines: Callable[..., bytes]) -> None:
    with pytest.raises(openai.BadRequestError, match="Upload the requests") as inline:
        ask(client, requests=[{"body": {"model": MODEL, "messages": []}}])
    other = client.files.create(file=("in.jsonl", input_lines(1, model="nobody's")), purpose="batch")
    with pytest.raises(openai.BadRequestError) as unknown:
        ask(client, input_file_id=other.id)
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings is estimated by bytes") as pooled:
        ask(client, input_file_id=file_id, endpoint="/v1/embeddings")
    assert pooled.value.param == "exact"
    assert (inline.value.param, unknown.value.param) == ("exact", "exact")
    for _ in range(exact_counts.MAX_COUNTING):
        ask(client, input_file_id=file_id)
    with pytest.raises(openai.RateLimitError, match="are allowed"):
        ask(client, input_file_id=file_id)


def test_another_tenants_estimate_is_not_found(client: OpenAI, new_client: Callable[..., OpenAI], file_id: str) -> None:
    found = ask(client, input_file_id=file_id)
    assert look(client, found["id"])["id"] == found["id"]
    with pytest.raises(openai.NotFoundError):
        look(new_client(), found["id"])


def test_the_estimate_of_a_file_that_is_deleted_meanwhile_says_so(
    client: OpenAI, deployment: Any, file_id: str
) -> None:
    found = ask(client, input_file_id=file_id)
    client.files.delete(file_id)
    with Session(deployment.engine) as session, session.begin():
        while session.scalar(text("SELECT state FROM input_count WHERE id = :id"), {"id": found["id"]}) == "counting":
            assert exact_counts.claim(session, model=MODEL, lease=timedelta(minutes=1)) is None
    failed = look(client, found["id"])
    assert failed["status"] == "failed"
    assert "deleted" in failed["tokens_basis"]
