"""Tests of the middleware around every endpoint, on a small app that needs no database."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, FastAPI
from sqlalchemy.exc import OperationalError

from api.errors import install_error_handlers
from api.logs import LineBudget
from api.middleware.guard import MAX_JSON_BYTES
from api.middleware.layers import install_layers
from jobs.errors import ConflictError, ServiceError, StorageFullError
from jobs.telemetry.declared import API
from jobs.telemetry.meters import Meters


def small_app() -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)
    install_layers(app, meters := Meters(API), stall_seconds=30, operator_key="")
    app.state.registry = meters.registry

    @app.get("/fails/{how}")
    def fail(how: str) -> None:
        raise {
            "unexpectedly": RuntimeError("the password is hunter2"),
            "conflict": ConflictError("it is done already; nothing to cancel"),
            "service": ServiceError("cannot reach Postgres at secret-host:5432"),
            "full": StorageFullError("the object store file:///secret is full"),
            "database": OperationalError("SELECT secret", {}, Exception("secret-host")),
        }[how]

    @app.get("/echo")
    def hear() -> None:
        pass

    @app.post("/echo")
    def echo(body: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        return body

    return app


def ask(method: str, path: str, app: FastAPI | None = None, **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app or small_app())
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


def test_an_unexpected_error_is_a_500_that_tells_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, logger="api.middleware.unexpected_errors"):
        answer = ask("GET", "/fails/unexpectedly")
    assert answer.status_code == 500
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert answer.json()["error"]["code"] == "internal_error"
    assert "hunter2" not in answer.text
    assert "hunter2" in caplog.text
    assert answer.headers["x-request-id"] in caplog.text


@pytest.mark.parametrize("how", ["service", "database"])
def test_a_service_that_is_away_is_a_503_with_a_time_to_come_back(how: str) -> None:
    answer = ask("GET", f"/fails/{how}")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert answer.json()["error"]["code"] == "service_unavailable"
    assert "secret" not in answer.text


def test_a_store_that_is_full_is_called_so_and_named_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="api.errors"):
        answer = ask("GET", "/fails/full")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    error = answer.json()["error"]
    assert error["code"] == "storage_full"
    assert "object store is full, and nothing of this request was stored" in error["message"]
    assert "secret" not in answer.text
    assert "file:///secret is full" in caplog.text


def test_a_fact_is_not_to_be_tried_again() -> None:
    answer = ask("GET", "/fails/conflict")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert answer.json()["error"]["message"] == "it is done already; nothing to cancel"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "unknown_url"),
        ("POST", "/v1/responses", 404, "unknown_url"),
        ("DELETE", "/echo", 405, "method_not_supported"),
    ],
)
def test_an_unknown_route_answers_in_the_envelope(method: str, path: str, status: int, code: str) -> None:
    answer = ask(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == {"message", "type", "param", "code"}
    assert (answer.json()["error"]["code"], answer.json()["error"]["type"]) == (code, "invalid_request_error")
    assert path in answer.json()["error"]["message"]


def test_a_method_that_is_not_served_is_told_all_that_are() -> None:
    answer = ask("PUT", "/echo")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, POST")
    assert "Use GET, HEAD, POST." in answer.json()["error"]["message"]


def test_a_path_outside_the_schema_tells_its_methods_too() -> None:
    answer = ask("POST", "/openapi.json")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/fails/a%00b", "/fails/conflict?x=%00"])
def test_nul_characters_are_refused_at_the_door(path: str) -> None:
    answer = ask("GET", path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


def test_a_json_body_over_the_limit_is_a_413_announced_or_not() -> None:
    body = json.dumps({"x": "y" * MAX_JSON_BYTES}).encode()

    async def unannounced() -> Any:
        yield body

    headers = {"content-type": "application/json"}
    for content in (body, unannounced()):
        answer = ask("POST", "/echo", content=content, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
        assert f"{MAX_JSON_BYTES:,}" in answer.json()["error"]["message"]


def test_every_answer_has_an_id_of_its_own() -> None:
    ids = {ask("GET", path).headers["x-request-id"] for path in ("/nowhere", "/fails/conflict", "/fails/unexpectedly")}
    assert len(ids) == 3
    assert all(request_id.startswith("req_") for request_id in ids)


def test_lines_that_anybody_may_cause_are_bounded_and_counted() -> None:
    now = 100.0
    budget = LineBudget(burst=2, lines_a_second=0.5, monotonic=lambda: now)
    assert [budget.spend() for _ in range(5)] == [0, 0, None, None, None]
    now += 2.0
    assert [budget.spend() for _ in range(2)] == [3, None]
    now += 1000.0
    assert [budget.spend() for _ in range(3)] == [1, 0, None]


def test_requests_are_counted_by_route_pattern_and_status() -> None:
    app = small_app()
    for path in ("/fails/conflict", "/fails/service", "/nowhere", "/elsewhere"):
        ask("GET", path, app)

    def count(route: str, status: str) -> float | None:
        labels = {"method": "GET", "route": route, "status": status}
        value: float | None = app.state.registry.get_sample_value("tokenmill_http_requests_total", labels)
        return value

    assert count("/fails/{how}", "409") == 1
    assert count("/fails/{how}", "503") == 1
    assert count("unmatched", "404") == 2
    assert app.state.registry.get_sample_value("tokenmill_http_failures_total") == 1
