"""Tests of rates and concurrency limits, over a real Valkey and without one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from api.admission.rate_limits import RateLimiter, Wanted
from jobs.accounts.limits import NAMES, Limits

ONE = Wanted(requests=1)


def limits(**given: int) -> Limits:
    return Limits(**dict.fromkeys(NAMES, 10**12) | given)


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Any], valkey_url: str) -> Any:
    return deploy(
        redis_url=valkey_url, tenant_requests_per_minute=120, tenant_tokens_per_minute=6000, tenant_downloads=1,
        tenant_uploads=1,
    )  # fmt: skip


def client_of(deployment: Any, *, max_retries: int) -> OpenAI:
    return OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.new_key(), max_retries=max_retries)


def test_too_many_requests_are_429_with_a_time_that_lets_the_next_one_pass(deployment: Any) -> None:
    with client_of(deployment, max_retries=0) as client:
        first = client.models.with_raw_response.list()
        assert first.headers["x-ratelimit-limit-requests"] == "120"
        assert first.headers["x-ratelimit-remaining-requests"] == "19"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        with pytest.raises(openai.RateLimitError) as caught:
            deque((client.models.list() for _ in range(1000)), maxlen=0)
    headers = caught.value.response.headers
    assert caught.value.code == "rate_limit_exceeded"
    assert "120 requests a minute" in caught.value.message
    assert (headers["x-should-retry"], headers["retry-after"]) == ("true", "1")
    assert 0 < int(headers["retry-after-ms"]) <= 500
    assert headers["x-ratelimit-remaining-requests"] == "0"


def test_the_official_client_waits_and_gets_through(deployment: Any) -> None:
    with client_of(deployment, max_retries=5) as client, client_of(deployment, max_retries=0) as other:
        for _ in range(25):
            client.models.list()
        other.models.list()


def test_tokens_beyond_a_minutes_are_paid_back_before_the_next_batch(
    deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    with client_of(deployment, max_retries=0) as client:
        file = client.files.create(file=("a.jsonl", input_lines(500)), purpose="batch")
        wanted: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        client.batches.create(**wanted)
        with pytest.raises(openai.RateLimitError) as caught:
            client.batches.create(**wanted, metadata={"second": "yes"})
        assert "6,000 tokens a minute" in caught.value.message
        assert caught.value.response.headers["x-should-retry"] == "true"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert len(client.batches.list().data) == 1


def test_a_repeated_create_is_answered_in_debt_and_charged_once(
    deployment: Any, input_lines: Callable[..., bytes]
) -> None:
    with client_of(deployment, max_retries=0) as client:
        file = client.files.create(file=("a.jsonl", input_lines(500)), purpose="batch")
        wanted: Any = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        keyed = wanted | {"metadata": {"second": "yes"}, "extra_headers": {"Idempotency-Key": "a"}}
        client.batches.create(**wanted)
        with pytest.raises(openai.RateLimitError) as before:
            client.batches.create(**keyed)
        repeated = client.batches.create(**wanted, extra_headers={"x-stainless-retry-count": "1"})
        assert [batch.id for batch in client.batches.list().data] == [repeated.id]
        with pytest.raises(openai.RateLimitError) as after:
            client.batches.create(**keyed)
    waits = [int(caught.value.response.headers["retry-after"]) for caught in (before, after)]
    assert waits[1] <= waits[0]


def test_downloads_at_once_are_bounded_and_end_with_their_reader(deployment: Any) -> None:
    with client_of(deployment, max_retries=0) as client:
        file = client.files.create(file=("a.bin", bytes(20_000_000)), purpose="user_data")
        url, key = httpx.URL(deployment.url), client.api_key
        with closing(socket.create_connection((url.host, url.port), timeout=120)) as reader:
            reader.sendall(
                f"GET /v1/files/{file.id}/content HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\r\n".encode()
            )
            assert reader.recv(10).startswith(b"HTTP/1.1")
            with pytest.raises(openai.RateLimitError) as caught:
                client.files.content(file.id)
            assert caught.value.code == "downloads_exceeded"
            assert "1 downloads at once here and 1 are allowed" in caught.value.message
            with pytest.raises(openai.RateLimitError, match="1 downloads at once"):
                client.get("/batches/batch_0/results", cast_to=httpx.Response)
        with client.with_options(max_retries=10) as patient:
            assert len(patient.files.content(file.id).content) == 20_000_000


def test_a_broker_that_refuses_or_hangs_leaves_local_buckets_and_costs_one_wait_a_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 100.0

    async def ask(redis_url: str) -> int:
        nonlocal now
        limiter = RateLimiter(redis_url, monotonic=lambda: now)
        given = limits(requests_per_minute=60, bytes_per_minute=600)
        passes = [(await limiter.spend("tenant", given, ONE)).passes for _ in range(12)]
        assert passes == [True] * 10 + [False] * 2
        assert (await limiter.spend("other", given, ONE)).passes
        now += 60.0
        assert (await limiter.spend("tenant", given, ONE)).requests == 9
        assert (await limiter.spend("tenant", given, Wanted(requests=1, bytes=900))).bytes == -300
        assert not (refused := await limiter.spend("tenant", given, Wanted(requests=1, bytes=1))).passes
        assert refused.seconds_to_bytes == pytest.approx(30.1)
        assert (await limiter.spend("tenant", given, ONE)).passes, "what has no body waits for no bytes"
        await limiter.close()
        return len([record for record in caplog.records if "rates are of one process" in record.message])

    with caplog.at_level(logging.WARNING), socket.create_server(("127.0.0.1", 0)) as hanging:
        assert asyncio.run(ask("redis://127.0.0.1:1/0")) == 2
        assert asyncio.run(ask(f"redis://127.0.0.1:{hanging.getsockname()[1]}/0")) == 4


def test_the_broker_and_a_process_count_alike(valkey_url: str) -> None:
    async def counted(redis_url: str) -> list[tuple[bool, int, int, int]]:
        limiter = RateLimiter(redis_url, monotonic=lambda: 100.0)
        given = limits(requests_per_minute=12, tokens_per_minute=50, bytes_per_minute=10)
        spent = [(1, 0, 0), (0, 70, 0), (1, 0, 30), (1, 0, 1), (0, 0, 5), (1, 0, 0), (1, 0, 0)]
        found = [
            await limiter.spend("alike", given, Wanted(requests=requests, tokens=tokens, bytes=num_bytes))
            for requests, tokens, num_bytes in spent
        ]
        await limiter.close()
        return [(each.passes, round(each.requests), round(each.tokens), round(each.bytes)) for each in found]

    local = asyncio.run(counted("redis://127.0.0.1:1/0"))
    assert [passes for passes, *_ in local] == [True, True, True, False, True, False, False]
    assert local[-1] == (False, 0, -20, -25)
    assert asyncio.run(counted(valkey_url))[:5] == local[:5]


def test_a_bucket_is_shared_and_a_tenants_own(valkey_url: str) -> None:
    async def passed(tenant: str, number: int) -> int:
        limiter = RateLimiter(valkey_url)
        found = [await limiter.spend(tenant, limits(requests_per_minute=6), ONE) for _ in range(number)]
        await limiter.close()
        return sum(rates.passes for rates in found)

    with ThreadPoolExecutor() as executor:
        at_once = list(executor.map(lambda _: asyncio.run(passed("shared", 5)), range(4)))
    assert sum(at_once) <= 2, "one, and another where ten seconds have gone by"
    assert asyncio.run(passed("other", 1)) == 1
