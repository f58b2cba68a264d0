"""Tests of `/v1/usage`: usage by key, as JSON and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from openai import OpenAI
from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.accounts.keys import create_key
from jobs.accounts.secret_hashes import hash_secret
from jobs.tables import ApiKey, Batch, Ledger


@pytest.fixture
def used(deployment: Any, client: OpenAI, input_lines: Callable[..., bytes]) -> tuple[OpenAI, list[str]]:
    """A client of a tenant with two batches of two keys, each with an entry in the ledger; and the keys' ids."""
    with Session(deployment.engine) as session, session.begin():
        first = session.scalars(select(ApiKey).where(ApiKey.key_hash == hash_secret(client.api_key))).one()
        second, secret = create_key(session, first.tenant_id)
        tenant_id, key_ids = first.tenant_id, [first.id, second.id]
    for own in (client, client.with_options(api_key=secret)):
        file = own.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")
        own.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    with Session(deployment.engine) as session, session.begin():
        for number, batch in enumerate(session.scalars(select(Batch).where(Batch.tenant_id == tenant_id)), start=1):
            session.add(
                Ledger(
                    tenant_id=tenant_id, batch_id=batch.id, chunk_id=hash(batch.id), fence=1, flush_no=0, model="m",
                    num_results=number, input_tokens=10, cached_tokens=3, output_tokens=5, cost_picos=1_500_001,
                    reasoning_tokens=2,
                    worker_microseconds=2_250_000, num_truncated=number - 1, priority="normal", input_price_picos=0,
                    output_price_picos=0,
                )
            )  # fmt: skip
    return client, key_ids


def read(client: OpenAI, **query: Any) -> httpx.Response:
    return client.get("/usage", cast_to=httpx.Response, options={"params": query})


def test_usage_of_today_has_tokens_cost_and_gpu_seconds(used: tuple[OpenAI, list[str]]) -> None:
    answer = read(used[0]).json()
    today = datetime.now(UTC).date().isoformat()
    assert (answer["until"], answer["currency"], answer["has_more"]) == (today, "USD", False)
    assert answer["data"] == [
        {
            "object": "usage", "day": today, "model": None, "key_id": None, "key": None, "batch_id": None, "lines": 3,
            "truncated": 1,
            "input_tokens": 20, "cached_tokens": 6, "output_tokens": 10, "cost": "0.000003000002", "cost_micros": 3,
            "reasoning_tokens": 4,
            "gpu_seconds": 4.5, "document_steps": 0, "reading_seconds": 0.0, "reading_cost": "0.00",
        }
    ]  # fmt: skip


def test_the_key_that_submitted_a_batch_is_known(used: tuple[OpenAI, list[str]]) -> None:
    client, key_ids = used
    rows = read(client, group_by="key").json()["data"]
    assert {row["key_id"] for row in rows} == set(key_ids)
    assert client.api_key[:10] in {row["key"] for row in rows}


def test_csv_has_a_header_the_same_rows_and_its_next_page_in_a_header(used: tuple[OpenAI, list[str]]) -> None:
    client, _ = used
    whole = read(client, group_by="batch").json()["data"]
    first = read(client, group_by="batch", limit=1, format="csv")
    second = read(client, group_by="batch", limit=1, format="csv", page=first.headers["x-next-page"])
    assert "x-next-page" not in second.headers
    rows = [row for page in (first, second) for row in csv.DictReader(page.text.splitlines())]
    assert [(row["batch_id"], row["cost"], row["day"], row["currency"]) for row in rows] == [
        (row["batch_id"], row["cost"], "", "USD") for row in whole
    ]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"group_by": "week"}, "group_by"),
        ({"since": "yesterday"}, "since"),
        ({"since": "2026-02-01", "until": "2026-01-01"}, "since"),
        ({"page": "W10="}, "page"),
        ({"limit": 0}, "limit"),
        ({"format": "xml"}, "format"),
        ({"tenant": "other"}, "tenant"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(http: httpx.Client, query: dict[str, Any], param: str) -> None:
    answer = http.get("/v1/usage", params=query)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_another_tenant_sees_nothing_of_it(used: tuple[OpenAI, list[str]], http: httpx.Client) -> None:
    assert http.get("/v1/usage", params={"group_by": "batch"}).json()["data"] == []
