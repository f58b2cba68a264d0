"""Tests of pipelines, schedules and runs over HTTP: created, shown, refused with the place, separate by tenant."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session

from features.documents.http import documents
from features.pipelines import stores
from features.pipelines.http import previews
from jobs.accounts.keys import authenticate
from jobs.errors import InputError
from tests.api.waiting import wait_until
from tests.api.worker import run

MODEL = "org/tiny"


def step(**fields: Any) -> dict[str, Any]:
    return {
        "name": "fields",
        "source": {"store": "documents", "keys": "in/*.jsonl"},
        "prompt": "Read {{ text }}",
        "model": MODEL,
        "parameters": {"max_tokens": 8},
        "output": {"store": "results", "keys": "{pipeline}/{date}/part-{n}.jsonl"},
    } | fields


@pytest.fixture
def http(deployment: Any, tmp_path: Path) -> Any:
    """A client of a tenant with two stores."""
    key = deployment.new_key()
    with Session(deployment.engine) as session, session.begin():
        tenant_id = authenticate(session, key).owner().id
        for name in ("documents", "results"):
            (tmp_path / name).mkdir()
            url = f"file://{tmp_path / name}"
            stores.add_store(session, tenant_id, name, url, options={}, is_writable=name == "results")
    with httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
        yield client


def test_a_pipeline_is_made_shown_changed_and_deleted(http: httpx.Client) -> None:
    made = http.post("/v1/pipelines", json={"name": "nightly", "steps": [step()], "max_tokens": 1000}).json()
    assert (made["name"], made["version"], made["max_tokens"], made["max_cost"]) == ("nightly", 1, 1000, None)
    assert http.get("/v1/pipelines/nightly").json() == made == http.get(f"/v1/pipelines/{made['id']}").json()
    changed = http.patch("/v1/pipelines/nightly", json={"max_tokens": None, "max_cost": "1.50"}).json()
    assert (changed["version"], changed["max_tokens"], changed["max_cost"]) == (2, None, "1.50")
    assert changed["steps"] == made["steps"]
    assert [each["id"] for each in http.get("/v1/pipelines").json()["data"]] == [made["id"]]
    assert http.delete("/v1/pipelines/nightly").json() == {"id": made["id"], "object": "pipeline", "deleted": True}
    assert http.get("/v1/pipelines/nightly").status_code == 404


@pytest.mark.parametrize(
    ("fields", "status", "param", "said"),
    [
        ({"prompt": "{{ text"}, 400, "steps.0.prompt", "steps.0.prompt: line 1"),
        ({"prompt": "{{ 'a' * 100000000 }}"}, 400, "steps.0.prompt", "repeats it"),
        ({"schema": {"type": "string"}}, 400, "steps.0.schema", "needs"),
        ({"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}, 400, "steps.0.schema", "'error'"),
        (
            {"schema": {"type": "object", "properties": {"thoughts": {"type": "string"}}}, "thoughts": True},
            400,
            "steps.0.schema",
            "'thoughts'",
        ),
        (
            {
                "schema": {"type": "object", "properties": {"total": {}}},
                "output": {"store": "results", "keys": "o/{n}.parquet"},
            },
            400,
            "steps.0.schema",
            "too wide for Parquet, where a column has one type: at $.properties.total, it may be anything",
        ),
        ({"parameters": {"max_tokens": "many"}}, 400, "steps.0.parameters", "max_tokens"),
        ({"prompt": "{{ previous.text }}"}, 400, "steps.0.prompt", "the source of this one is not a step"),
        (
            {"schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}},
            400,
            "steps.0.schema",
            "at $.properties.a.pattern, '(' is not a regular expression",
        ),
        ({"model": "gone"}, 400, "steps.0.model", "The model 'gone' does not exist; known are: org/tiny"),
        ({"source": {"store": "secret", "keys": "a"}}, 404, "steps.0.source.store", "There is no store"),
        ({"source": {"store": "documents", "keys": "../a"}}, 400, "steps.0.source.keys", "without a leading /"),
        (
            {"output": {"store": "documents", "keys": "o/{n}.jsonl"}},
            400,
            "steps.0.output.store",
            "registered for reading only",
        ),
        ({"output": {"store": "results", "keys": "o/{n}.xml"}}, 400, "steps.0.output", ".jsonl, .csv or .parquet"),
        ({"name": "../x"}, 400, "steps.0.name", "a-z"),
        ({"parameters": {"user": "\u0000"}}, 400, "steps", "NUL"),
    ],
)
def test_a_wrong_pipeline_is_refused_at_once_with_its_place(
    http: httpx.Client, fields: dict[str, Any], status: int, param: str, said: str
) -> None:
    answer = http.post("/v1/pipelines", json={"name": "wrong", "steps": [step(**fields)]})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert said in error["message"]
    assert http.get("/v1/pipelines").json()["data"] == []


def test_a_schedule_shows_its_next_five_runs_and_is_paused_and_resumed(http: httpx.Client) -> None:
    http.post("/v1/pipelines", json={"name": "nightly", "steps": [step()]})
    wish = {"pipeline": "nightly", "name": "at-two", "cron": "30 2 * * *", "time_zone": "Europe/Berlin"}
    made = http.post("/v1/schedules", json=wish).json()
    assert len(made["next_runs"]) == 5
    assert all("T02:30:00+0" in run["local"] and run["utc"].endswith("Z") for run in made["next_runs"])
    assert http.post("/v1/schedules", json=wish).status_code == 409
    paused = http.post("/v1/schedules/at-two/pause").json()
    assert (paused["paused_at"] is None, paused["next_runs"]) == (False, [])
    assert http.post("/v1/schedules/at-two/resume").json()["next_runs"] == made["next_runs"]
    changed = http.patch("/v1/schedules/at-two", json={"late_after_seconds": 3600}).json()
    assert (changed["late_after_seconds"], changed["num_skipped"]) == (3600, 0)
    changed = http.patch("/v1/schedules/at-two", json={"late_after_seconds": None}).json()
    assert changed["late_after_seconds"] is None
    changed = http.patch("/v1/schedules/at-two", json={"max_failures": 3, "overlap": "queue_one"}).json()
    assert (changed["max_failures"], changed["overlap"], changed["cron"]) == (3, "queue_one", "30 2 * * *")
    (listed,) = http.get("/v1/schedules", params={"pipeline": "nightly"}).json()["data"]
    assert [run["utc"] for run in listed["next_runs"]] == [changed["next_runs"][0]["utc"]]  # only the first
    assert listed | {"next_runs": changed["next_runs"]} == changed
    filled = http.post(
        "/v1/schedules/at-two/backfill", json={"start": "2026-10-24T00:00:00+02:00", "end": "2026-10-26T12:00:00Z"}
    ).json()
    assert len(filled["runs"]) == 3
    runs = http.get("/v1/runs", params={"schedule": "at-two", "status": "queued"}).json()["data"]
    assert [run["id"] for run in reversed(runs)] == filled["runs"]
    assert http.delete("/v1/schedules/at-two").json()["deleted"] is True
    assert {run["status"] for run in http.get("/v1/runs").json()["data"]} == {"cancelled"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cron": "99 * * * *"}, "cron"),
        ({"time_zone": "Mars"}, "time_zone"),
        ({"overlap": "sometimes"}, "overlap"),
        ({"starts_at": "tomorrow"}, "starts_at"),
        ({"starts_at": "0001-01-01T00:00:00+14:00"}, "starts_at"),
        ({"jitter_seconds": 99999}, "jitter_seconds"),
        ({"pipeline": "gone"}, "pipeline_id"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_place(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    http.post("/v1/pipelines", json={"name": "nightly", "steps": [step()]})
    wish = {"pipeline": "nightly", "name": "s", "cron": "@daily"} | fields
    answer = http.post("/v1/schedules", json=wish)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


def test_a_run_is_triggered_once_by_one_key_shown_cancelled_and_deleted(http: httpx.Client) -> None:
    pipeline = http.post("/v1/pipelines", json={"name": "nightly", "steps": [step()]}).json()
    runs = [
        http.post("/v1/runs", json={"pipeline": "nightly"}, headers={"Idempotency-Key": "k"}).json() for _ in range(2)
    ]
    assert runs[0] == runs[1]
    run = runs[0]
    assert (run["status"], run["kind"], run["pipeline_id"], run["steps"]) == ("queued", "manual", pipeline["id"], [])
    assert http.post(f"/v1/runs/{run['id']}/resume").json()["error"]["code"] == "run_not_resumable"
    assert http.delete(f"/v1/runs/{run['id']}").json()["error"]["code"] == "run_not_deletable"
    cancelled = http.post(f"/v1/runs/{run['id']}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert cancelled["reason"].startswith("cancelled by key_")
    assert http.get(f"/v1/runs/{run['id']}").json() == cancelled
    assert http.delete(f"/v1/runs/{run['id']}").json() == {"id": run["id"], "object": "run", "deleted": True}
    assert http.get(f"/v1/runs/{run['id']}").status_code == 404


def test_another_tenants_are_not_there(http: httpx.Client, new_client: Callable[..., Any]) -> None:
    http.post("/v1/pipelines", json={"name": "nightly", "steps": [step()]})
    http.post("/v1/schedules", json={"pipeline": "nightly", "name": "s", "cron": "@daily"})
    run = http.post("/v1/runs", json={"pipeline": "nightly"}).json()
    stranger = {"Authorization": f"Bearer {new_client().api_key}"}
    paths = ["/v1/pipelines/nightly", "/v1/schedules/s", f"/v1/runs/{run['id']}"]
    assert {http.get(path, headers=stranger).status_code for path in paths} == {404}
    assert http.post("/v1/runs", json={"pipeline": "nightly"}, headers=stranger).status_code == 404
    assert http.get("/v1/runs", headers=stranger).json()["data"] == []


def test_a_preview_renders_the_first_lines_and_keeps_nothing(http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "documents" / "in").mkdir()
    rows = [{"text": f"row {number}"} for number in range(5)] + [{"other": 1}]
    (tmp_path / "documents" / "in" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = http.post("/v1/pipelines/preview", json={"name": "nightly", "steps": [step()]}).json()
    prompts = [line["body"]["messages"][0]["content"] for line in found["lines"]]
    assert prompts == ["Read row 0", "Read row 1", "Read row 2"]
    assert (found["rows"], found["failed"], found["has_more"], found["files"]) == (6, 1, False, 1)
    assert found["estimated_output_tokens"] == 40
    assert "Together 6 rows: about" in found["summary"]
    assert http.get("/v1/pipelines").json()["data"] == []


def test_a_preview_says_how_an_unusual_table_is_read(http: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "documents" / "in").mkdir()
    for name in ("a", "b", "c", "d"):
        (tmp_path / "documents" / "in" / f"{name}.csv").write_text("text;n\nrow 1;2\nrow 2;3\n")
    source = {**step()["source"], "keys": "in/*.csv"}
    found = http.post("/v1/pipelines/preview", json={"name": "n", "steps": [{**step(), "source": source}]}).json()
    assert [found["summary"].count(f"in/{name}.csv") for name in "abcd"] == [1, 1, 1, 0]


def test_a_preview_of_a_batchs_answers_is_for_its_tenant_alone(http: httpx.Client, deployment: Any) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
    wish = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    requests = [{"custom_id": name, "body": body} for name in ("a", "b")]
    batch_id = http.post("/v1/batches", json=wish | {"requests": requests}).json()["id"]
    pipeline = {"name": "after", "steps": [step(source={"batch": batch_id}, prompt="After {{ custom_id }}")]}
    early = http.post("/v1/pipelines/preview", json=pipeline)
    assert (early.status_code, early.json()["error"]["param"]) == (400, "steps.0.source.batch")
    assert "is validating; its answers are complete once it has ended" in early.json()["error"]["message"]
    run(deployment, batch_id)
    found = http.post("/v1/pipelines/preview", json=pipeline).json()
    assert [line["body"]["messages"][0]["content"] for line in found["lines"]] == ["After a", "After b"]
    assert http.post("/v1/pipelines", json=pipeline).json()["steps"][0]["source"] == {"batch": batch_id}
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    for path in ("/v1/pipelines/preview", "/v1/pipelines"):
        answer = httpx.post(f"{deployment.url}{path}", json=pipeline, headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "steps.0.source.batch")


def test_previews_of_slow_stores_keep_nobody_else_waiting(
    deployment: Any, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Semaphore(0), threading.Event()

    def hang(*given: Any) -> None:
        begun.release()
        may_end.wait(60)
        raise InputError("it was slow")

    monkeypatch.setattr(previews, "_preview", hang)
    keys = [deployment.new_key() for _ in range(4)]
    wish = {"name": "nightly", "steps": [step()]}

    def look(key: str) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{deployment.url}/v1/pipelines/preview", json=wish, headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(len(keys)) as callers:
        try:
            slow = [callers.submit(look, key) for key in keys]
            assert all(begun.acquire(timeout=30) for _ in keys)  # every thread of previews is taken
            assert look(keys[0]) == 429
            assert http.post("/v1/pipelines", json=wish, timeout=120).status_code == 200
        finally:
            may_end.set()
        assert [each.result() for each in slow] == [400] * 4


def test_previews_and_listings_of_one_tenant_leave_half_of_the_threads(
    deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: dict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(0))
    may_end = threading.Event()

    def hang(_: object, tenant_id: str, *__: object) -> None:
        begun[tenant_id].release()
        assert may_end.wait(60)
        raise InputError("it was slow")

    monkeypatch.setattr(previews, "_preview", hang)
    monkeypatch.setattr(documents, "_add", hang)
    keys = [deployment.new_key() for _ in range(2)]
    preview = ("/v1/pipelines/preview", {"name": "nightly", "steps": [step()]})
    listing = ("/v1/collections/collection_1/documents", {"store": "docs", "prefix": ""})

    def call(key: str, path: str, body: Any) -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(f"{deployment.url}{path}", json=body, headers=headers, timeout=60).status_code

    def started(key: str, *calls: tuple[str, Any]) -> list[Future[int]]:
        """Make calls one after the other, and wait for two of them to have a thread."""
        known = set(begun)
        answers = [callers.submit(call, key, *each) for each in calls]
        wait_until(lambda: len(begun) > len(known))
        (tenant_id,) = set(begun) - known
        assert all(begun[tenant_id].acquire(timeout=30) for _ in range(2))
        return answers

    with ThreadPoolExecutor(5) as callers:
        try:
            mine = started(keys[0], preview, listing, listing)
            theirs = started(keys[1], listing, listing)
        finally:
            may_end.set()
        assert [answer.result() for answer in (*mine, *theirs)] == [400] * 5


def test_a_definition_of_a_mebibyte_is_read_once_its_sender_is_signed_in(http: httpx.Client, deployment: Any) -> None:
    wish = {"name": "nightly", "steps": [step(prompt="x" * 200_000)]}
    assert http.post("/v1/pipelines", json=wish).status_code == 200
    assert http.patch("/v1/pipelines/nightly", json={"steps": [step(prompt="y" * 200_000)]}).json()["version"] == 2
    assert http.post("/v1/pipelines/preview", json=wish).status_code in (200, 400)  # the store has no folder for it
    for path in ("/v1/pipelines", "/v1/pipelines/preview"):
        refused = http.post(path, json={"name": "nightly", "steps": [step(prompt="x" * 1_100_000)]})
        assert (refused.status_code, "1,048,576 are allowed" in refused.json()["error"]["message"]) == (400, True)
        assert http.post(path, json={"name": "x" * 2_200_000}).status_code == 413
        assert httpx.post(f"{deployment.url}{path}", json=wish).status_code == 401
