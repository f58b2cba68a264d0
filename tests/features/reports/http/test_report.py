"""Tests of reports over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session

from features.pipelines import stores
from jobs.accounts.keys import authenticate
from jobs.errors import InputError
from tests.api.browser import Browser

STEP = {
    "name": "fields",
    "source": {"store": "documents", "keys": "in/*.jsonl"},
    "prompt": "Read {{ text }}",
    "model": "org/tiny",
    "parameters": {"max_tokens": 8},
    "output": {"store": "results", "keys": "{pipeline}/{date}/part-{n}.jsonl"},
}


@pytest.fixture
def http(deployment: Any, tmp_path: Path) -> Any:
    """A client of a tenant with a pipeline and a schedule in Tokyo."""
    key = deployment.new_key()
    with Session(deployment.engine) as session, session.begin():
        tenant_id = authenticate(session, key).owner().id
        for name in ("documents", "results"):
            (tmp_path / name).mkdir()
            stores.add_store(session, tenant_id, name, f"file://{tmp_path / name}", options={}, is_writable=True)
    with httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        assert client.post("/v1/pipelines", json={"name": "nightly", "steps": [STEP]}).status_code == 200
        wish = {"pipeline": "nightly", "name": "nights", "cron": "30 2 * * *", "time_zone": "Asia/Tokyo"}
        assert client.post("/v1/schedules", json=wish).status_code == 200
        yield client


def test_a_pipelines_day_has_a_report_by_its_name(http: httpx.Client) -> None:
    run = http.post("/v1/runs", json={"pipeline": "nightly"}).json()
    today = http.get("/v1/schedules/nights").json()["next_runs"][0]["local"][:10]
    report = http.get("/v1/pipelines/nightly/report", params={"day": today}).json()
    assert (report["object"], report["day"], report["time_zone"]) == ("pipeline.report", today, "Asia/Tokyo")
    assert report["drift"] == {"nights": 0, "nights_needed": 5, "changed_steps": [], "measures": []}
    assert (report["next_run"]["schedule"], report["next_run"]["eta"]) == ("nights", None)
    by_default = http.get(f"/v1/pipelines/{run['pipeline_id']}/report").json()
    both = [*report["runs"], *by_default["runs"]]
    assert run["id"] in [one["id"] for one in both] or report["status"] == "no_run"


def test_a_tenant_has_two_reports_read_at_once(
    http: httpx.Client, deployment: Any, browse: Callable[[str | None], Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    def hang(*_: object) -> None:
        begun.release()
        assert may_end.wait(60)
        raise InputError("it was slow")

    for place in ("http", "pages"):
        monkeypatch.setattr(f"features.reports.{place}.reports.read_report", hang)
    browser = browse(http.headers["Authorization"].removeprefix("Bearer "))
    path = "/v1/pipelines/nightly/report"
    with ThreadPoolExecutor(2) as callers:
        try:
            slow = [callers.submit(http.get, path), callers.submit(browser.get, "/reports/nightly")]
            assert all(begun.acquire(timeout=30) for _ in slow)
            assert [http.get(path).status_code, browser.get("/reports").status_code] == [429, 429]
        finally:
            may_end.set()
        assert [each.result().status_code for each in slow] == [400, 400]


@pytest.mark.parametrize(
    ("pipeline", "day", "status"), [("nightly", "2026-13-01", 400), ("nightly", "yesterday", 400), ("other", None, 404)]
)
def test_a_wrong_day_and_an_unknown_pipeline_are_refused(
    http: httpx.Client, pipeline: str, day: str | None, status: int
) -> None:
    query = {} if day is None else {"day": day}
    assert http.get(f"/v1/pipelines/{pipeline}/report", params=query).status_code == status


def test_a_subscription_is_set_shown_changed_and_ended(http: httpx.Client) -> None:
    path = "/v1/pipelines/nightly/report/subscription"
    assert http.get(path).status_code == http.delete(path).status_code == 404
    made = http.put(path, json={"at": "06:30"}).json()
    assert (made["at"], made["mail_to"], made["include_rows"], made["last_mail"]) == ("06:30", [], False, None)
    assert http.put(path, json={}).json()["at"] == "07:00"
    assert http.get(path).json()["at"] == "07:00"
    assert http.delete(path).json()["deleted"] is True
    assert http.get(path).status_code == 404


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"at": "25:00"}, "at", "invalid_value"),
        ({"mail_to": ["anna@example.com"]}, "mail_to", "mail_domain_not_allowed"),
        ({"mail_to": ["anna"]}, "mail_to", "invalid_value"),
    ],
)
def test_a_wrong_subscription_is_refused(http: httpx.Client, body: dict[str, Any], param: str, code: str) -> None:
    answer = http.put("/v1/pipelines/nightly/report/subscription", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
