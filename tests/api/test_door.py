"""Tests of admission: concurrent and incomplete requests of a tenant, or of strangers, wait for their own limits."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from api import door
from api.middleware.guard import MAX_JSON_BYTES

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
HALF = "POST /v1/batches HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Any]) -> Any:
    """Without a broker: buckets are the process's own."""
    return deploy(tenant_bytes_per_minute=200_000)


@contextmanager
def client_of(deployment: Any) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=60) as client:
        yield client


def num_waiting(deployment: Any) -> int:
    with Session(deployment.engine) as session:
        return int(session.execute(text(WAITING)).scalar_one())


def begin_bodies(deployment: Any, stack: ExitStack, key: str, *, number: int, size: int) -> list[socket.socket]:
    """Send the heads of `number` requests, and a byte of each body."""
    url, sockets = httpx.URL(deployment.url), []
    for _ in range(number):
        one = stack.enter_context(socket.create_connection((url.host, url.port), timeout=60))
        one.sendall(f"{HALF.format(key)}content-length: {size}\r\n\r\n{{".encode())
        sockets.append(one)
    return sockets


def test_a_tenants_fifth_request_waits_and_another_tenants_does_not(
    deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "TURN_SECONDS", 600)
    with ThreadPoolExecutor(12) as executor, client_of(deployment) as many, client_of(deployment) as other:
        with deployment.engine.begin() as connection:
            connection.execute(text("LOCK TABLE webhook_endpoint IN ACCESS EXCLUSIVE MODE"))
            answers = [executor.submit(many.get, "/v1/webhook_endpoints") for _ in range(12)]
            deadline = time.monotonic() + 120
            while num_waiting(deployment) < door.TURNS:
                assert time.monotonic() < deadline
            assert [other.get("/v1/files").status_code for _ in range(20)] == [200] * 20
            assert num_waiting(deployment) == door.TURNS
        assert [answer.result().status_code for answer in answers] == [200] * 12


def test_downloads_hold_no_turn_however_long_they_wait(deployment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "TURN_SECONDS", 600)
    with ThreadPoolExecutor(door.TURNS) as executor, client_of(deployment) as client:
        with deployment.engine.begin() as connection:
            connection.execute(text("LOCK TABLE file IN ACCESS EXCLUSIVE MODE"))
            answers = [executor.submit(client.get, "/v1/files/file-none/content") for _ in range(door.TURNS)]
            deadline = time.monotonic() + 120
            while num_waiting(deployment) < door.TURNS:
                assert time.monotonic() < deadline
            assert client.get("/v1/webhook_endpoints", timeout=120).status_code == 200
        assert [answer.result().status_code for answer in answers] == [404] * door.TURNS


def test_a_long_request_gives_its_turn_up(deployment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "TURN_SECONDS", 0.01)
    with ThreadPoolExecutor(door.TURNS) as executor, client_of(deployment) as client:
        with deployment.engine.begin() as connection:
            connection.execute(text("LOCK TABLE webhook_endpoint IN ACCESS EXCLUSIVE MODE"))
            answers = [executor.submit(client.get, "/v1/webhook_endpoints") for _ in range(door.TURNS)]
            assert client.get("/v1/files").status_code == 200
        assert [answer.result().status_code for answer in answers] == [200] * door.TURNS


@pytest.mark.parametrize("size", [1000, 100_000], ids=["small", "large"])
def test_half_bodies_hold_no_turn_for_good(deployment: Any, size: int) -> None:
    key = deployment.new_key()
    with ExitStack() as stack:
        begin_bodies(deployment, stack, key, number=10, size=size)
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.get(f"{deployment.url}/v1/files", headers=headers, timeout=60).status_code == 200


def test_too_many_half_bodies_of_a_tenant_are_refused(deployment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODIES", 2)
    key = deployment.new_key()
    with ExitStack() as stack, client_of(deployment) as other:
        sockets = begin_bodies(deployment, stack, key, number=3, size=1000)
        answer = b""
        while b"bodies_exceeded" not in answer:
            piece = sockets[2].recv(1000)
            assert piece, answer
            answer += piece
        assert answer.startswith(b"HTTP/1.1 429")
        assert b"retry-after: 1" in answer
        assert other.post("/v1/batches", json={}).status_code == 400


@pytest.mark.parametrize("is_announced", [True, False])
def test_bytes_beyond_a_minutes_are_paid_back_before_the_next_body(deployment: Any, *, is_announced: bool) -> None:
    content = b"x" * 400_000
    given: Any = content if is_announced else iter([content[:1000], content[1000:]])
    with client_of(deployment) as client:
        assert client.post("/v1/batches", content=given).status_code == 400
        refused = client.post("/v1/batches", json={})
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(refused.headers["retry-after"]) <= 61
        assert refused.headers["x-should-retry"] == "true"
        assert client.get("/v1/files").status_code == 200
        used = {limit["name"]: limit["used"] for limit in client.get("/v1/quota").json()["limits"]}
        assert used["bytes_per_minute"] > 200_000


def test_requests_beyond_the_rate_are_refused_without_a_broker(deploy: Callable[..., Any]) -> None:
    with client_of(deploy(tenant_requests_per_minute=12)) as client:
        answers = [client.get("/v1/files") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[2].headers["x-ratelimit-remaining-requests"] == "0"


def test_strangers_wait_for_strangers_alone_and_all_are_answered(
    deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "REFUSAL_SECONDS", 0.5)
    url, strangers = httpx.URL(deployment.url), []
    with ExitStack() as stack, client_of(deployment) as client:
        for number in range(12):
            stranger = stack.enter_context(socket.create_connection((url.host, url.port), timeout=60))
            stranger.sendall(f"GET /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {number}\r\n\r\n".encode())
            strangers.append(stranger)
        assert [client.get("/v1/files").status_code for _ in range(20)] == [200] * 20
        assert [stranger.recv(12) for stranger in strangers] == [b"HTTP/1.1 401"] * 12


def test_a_body_that_nobody_may_send_is_not_read(deployment: Any) -> None:
    with ExitStack() as stack:
        (one,) = begin_bodies(deployment, stack, "tm-nobody", number=1, size=MAX_JSON_BYTES)
        assert one.recv(12) == b"HTTP/1.1 401"


def test_a_large_body_is_parsed_beside_the_process(deployment: Any) -> None:
    unknown = {f"unknown-{number}": 1 for number in range(8_000)}
    with client_of(deployment) as client:
        answer = client.post("/v1/batches", json=unknown)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unknown_parameter", "unknown-0")
    line = {"body": {"model": "org/tiny", "messages": [{"role": "user", "content": "x" * 100_000}]}}
    wanted = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "requests": [line]}
    with client_of(deployment) as client:
        batch = client.post("/v1/batches", content=json.dumps(wanted), headers={"content-type": "application/json"})
        assert batch.status_code == 200
        assert client.get(f"/v1/files/{batch.json()['input_file_id']}").json()["bytes"] > 100_000
