"""Tests of `/v1/admin`: operators' changes over HTTP, which tenants cannot reach."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from sqlalchemy.orm import Session

from jobs.accounts.keys import create_key
from jobs.batches import deletion
from jobs.chunks import fleet
from tests.api.waiting import wait_until

Made = dict[str, Any]


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Any]) -> Any:
    """An API of this module's own: its worker would serve the batches of others."""
    return deploy()


@pytest.fixture
def operator(deployment: Any) -> Iterator[httpx.Client]:
    with Session(deployment.engine) as session, session.begin():
        _, secret = create_key(session, None)
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=f"{deployment.url}/v1/admin", headers=headers, timeout=120) as client:
        yield client


@pytest.fixture
def tenant(operator: httpx.Client, request: pytest.FixtureRequest) -> Made:
    made: Made = operator.post("/tenants", json={"name": request.node.name}).raise_for_status().json()
    return made


def as_tenant(deployment: Any, secret: str) -> httpx.Client:
    return httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {secret}"}, timeout=120)


def test_a_tenant_is_made_changed_disabled_enabled_and_deleted(operator: httpx.Client, tenant: Made) -> None:
    url = f"/tenants/{tenant['id']}"
    assert (tenant["token_budget"]["limit"], tenant["best_priority"], tenant["disabled_at"]) == (None, "normal", None)
    wanted = {"limit_tokens": 900, "limits": {"files": 5}, "retention_days": 7, "best_priority": "urgent"}
    changed = operator.patch(url, json=wanted).raise_for_status().json()
    assert changed["token_budget"]["limit"] == 900
    assert (changed["limits"]["files"], changed["limits"]["uploads"]) == (5, None)
    assert (changed["retention_days"], changed["best_priority"], changed["may_overflow"]) == (7, "urgent", False)
    assert (tenant["may_leave_house"], changed["may_leave_house"]) == (False, False)
    assert operator.patch(url, json={"may_leave_house": True}).json()["may_leave_house"] is True
    assert operator.patch(url, json={"may_leave_house": "perhaps"}).status_code == 400
    again = operator.patch(url, json={"limits": {"files": None}, "limit_tokens": None}).json()
    assert again["may_leave_house"] is True
    assert (again["limits"]["files"], again["token_budget"]["limit"], again["retention_days"]) == (None, None, 7)
    assert operator.post(f"{url}/disable").json()["disabled_at"] is not None
    assert operator.post(f"{url}/disable", json={"cancel_batches": True}).status_code == 200
    assert operator.post(f"{url}/enable").json()["disabled_at"] is None
    assert operator.get(f"/tenants/{tenant['name']}").json()["id"] == tenant["id"]
    assert operator.delete(url).json() == {"id": tenant["id"], "object": "tenant.deleted", "deleted": True}
    assert operator.get(url).status_code == 404
    assert tenant["id"] not in [each["id"] for each in operator.get("/tenants").json()["data"]]


def test_open_batches_of_a_disabled_tenant_are_cancelled_some_at_a_time(
    deployment: Any, operator: httpx.Client, tenant: Made, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_BLOCK", 2)
    url = f"/tenants/{tenant['id']}"
    secret = operator.post(f"{url}/keys", json={}).json()["secret"]
    with OpenAI(base_url=f"{deployment.url}/v1", api_key=secret, max_retries=0) as client:
        file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch")
        for _ in range(3):
            client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        disabled = operator.post(f"{url}/disable", json={"cancel_batches": True}).raise_for_status().json()
        assert {batch.status for batch in client.batches.list()} == {"cancelling"}
    assert (disabled["id"], disabled["disabled_at"] is None) == (tenant["id"], False)
    logged = operator.get("/log", params={"limit": 3}).json()["data"]
    assert [(entry["action"], entry["after"].get("cancelled_batches")) for entry in logged] == [
        ("tenant.cancel_batches", 1),
        ("tenant.cancel_batches", 2),
        ("tenant.disable", None),
    ]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "There is nothing to change"),
        ({"limits": {"coffee": 1}}, "There is no limit 'coffee'; there are requests_per_minute"),
        ({"limit_tokens": -1}, "limit_tokens"),
        ({"wieght": 2}, "Unknown parameter: 'wieght'"),
    ],
)
def test_a_wrong_change_says_what_is_allowed(
    operator: httpx.Client, tenant: Made, body: dict[str, Any], sentence: str
) -> None:
    refused = operator.patch(f"/tenants/{tenant['id']}", json=body)
    assert refused.status_code == 400
    assert sentence in refused.json()["error"]["message"]


def test_a_key_is_made_used_rotated_and_revoked(deployment: Any, operator: httpx.Client, tenant: Made) -> None:
    url = f"/tenants/{tenant['id']}/keys"
    wanted = {"name": "report", "scopes": ["read"], "expires_in_seconds": 3600}
    key = operator.post(url, json=wanted).raise_for_status().json()
    assert (key["name"], key["scopes"], key["tenant_id"]) == ("report", ["read"], tenant["id"])
    assert abs(key["expires_at"] - time.time() - 3600) < 300
    with as_tenant(deployment, key["secret"]) as report:
        assert report.get("/v1/batches").status_code == 200
        assert report.post("/v1/batches", json={}).json()["error"]["code"] == "insufficient_scope"
        rotated = operator.post(f"/keys/{key['id']}/rotate", json={"overlap_seconds": 0}).json()
        wait_until(lambda: report.get("/v1/batches").status_code == 401)  # once Postgres has notified the API
    (listed,) = operator.get(url).json()["data"]
    assert listed["last_used_at"] is not None
    assert listed.keys() == rotated.keys() - {"secret"}
    assert operator.delete(f"/keys/{key['id']}").json()["revoked_at"] is not None
    assert operator.post(f"/keys/{key['id']}/rotate").status_code == 409


def test_an_operators_key_makes_another_and_it_is_refused_once_it_is_revoked(
    deployment: Any, operator: httpx.Client
) -> None:
    key = operator.post("/keys", json={"name": "second"}).json()
    assert (key["scopes"], key["tenant_id"]) == (["admin"], None)
    with as_tenant(deployment, key["secret"]) as second:
        assert second.get("/v1/admin/tenants").status_code == 200
        assert second.get("/v1/batches").json()["error"]["code"] == "insufficient_scope"
        operator.delete(f"/keys/{key['id']}")
        wait_until(lambda: second.get("/v1/admin/tenants").status_code == 401)
    assert operator.post("/keys", json={"scopes": ["read"]}).status_code == 400


def test_budgets_and_models_are_set_and_removed(operator: httpx.Client, tenant: Made) -> None:
    url = f"/tenants/{tenant['id']}/budgets"
    body = {"unit": "micros", "limit": 2_500_000, "window": "month", "time_zone": "Europe/Berlin"}
    made = operator.post(url, json=body).raise_for_status().json()
    assert (made["limit"], made["unit"], made["window"]) == (2_500_000, "micros", "month")
    again = operator.post(url, json={"unit": "micros", "limit": 7, "window": "month"}).json()
    assert (again["id"], again["limit"], again["time_zone"]) == (made["id"], 7, "Europe/Berlin")
    assert operator.post(url, json=body | {"time_zone": None}).json()["time_zone"] == "UTC"
    assert [each["id"] for each in operator.get(url).json()["data"]] == [None, made["id"]]
    assert operator.delete(f"/budgets/{made['id']}").json()["deleted"]
    assert operator.delete(f"/budgets/{made['id']}").status_code == 404
    model = {"name": "team/model", "path": "team/model", "input_price_micros": 7}
    assert operator.post("/models", json=model).json()["is_offered"] is False
    assert operator.post("/models", json=model).status_code == 409
    adapter = {"name": "team/sql", "base": "team/model", "adapter": "sql-lora"}
    shown = operator.post("/models", json=adapter).json()
    scaled = operator.put("/scaling/team/sql", json={"max_workers": 2})
    assert (scaled.status_code, "team/model" in scaled.json()["error"]["message"]) == (400, True)
    assert (shown["base"], shown["adapter"], shown["is_offered"]) == ("team/model", "sql-lora", False)
    for wrong in ({"base": "nowhere"}, {"adapter": "./folder"}, {"path": "p"}, {"is_offered": True}, {"adapter": None}):
        refused = operator.post("/models", json={**adapter, "name": "team/other", **wrong})
        assert refused.status_code == (404 if wrong == {"base": "nowhere"} else 400), wrong
    folder = operator.post("/models", json={**adapter, "name": "team/folder", "adapter": "/folder"}).json()
    assert (folder["adapter"], folder["is_offered"]) == ("/folder", False)
    assert operator.delete("/models/team/model").status_code == 409
    assert operator.delete("/models/team/folder").json()["deleted"]
    assert operator.delete("/models/team/sql").json()["deleted"]
    priced = operator.patch("/models/team/model", json={"output_price_micros": 9}).json()
    assert (priced["input_price_micros"], priced["output_price_micros"]) == (7, 9)
    assert operator.patch("/models/team/model", json={}).status_code == 400
    assert operator.delete("/models/team/model").json()["deleted"]


def test_how_many_workers_a_model_may_have_is_set_and_removed(operator: httpx.Client) -> None:
    operator.post("/models", json={"name": "team/scaled", "path": "team/scaled"}).raise_for_status()
    body = {"max_workers": 8, "worker_hour_micros": 2_500_000, "max_hour_micros": 10_000_000}
    made = operator.put("/scaling/team/scaled", json=body).raise_for_status().json()
    assert (made["model"], made["min_workers"], made["startup_seconds"]) == ("team/scaled", 0, 130)
    assert operator.get("/scaling").json()["data"] == [made]
    again = operator.put("/scaling/team/scaled", json={"max_workers": 3, "min_workers": 1}).json()
    assert (again["max_workers"], again["worker_hour_micros"]) == (3, None)
    for wrong in ({}, {"max_workers": 0}, {"max_workers": 2, "min_workers": 3}, {**body, "max_hour_micros": 1}):
        assert operator.put("/scaling/team/scaled", json=wrong).status_code == 400
    assert operator.put("/scaling/absent", json=body).status_code == 404
    entries = [entry for entry in operator.get("/log").json()["data"] if entry["action"] == "model.scale"]
    assert [(entry["before"] is None, entry["after"]["max_workers"]) for entry in entries] == [(False, 3), (True, 8)]
    assert operator.delete("/scaling/team/scaled").json()["deleted"]
    assert operator.delete("/scaling/team/scaled").status_code == 404
    operator.delete("/models/team/scaled").raise_for_status()


def test_a_worker_is_drained_and_goes_on(deployment: Any, operator: httpx.Client) -> None:
    with Session(deployment.engine) as session, session.begin():
        fleet.register(session, worker_id="worker_a", model="org/tiny", max_chunks=2, max_model_len=64)
    drained = operator.post("/workers/worker_a/drain").json()
    assert drained["draining_since"] is not None
    assert drained["out_reason"] is None
    with Session(deployment.engine) as session, session.begin():
        fleet.heartbeat(session, "worker_a", out_reason="no numbers")
    assert [each["out_reason"] for each in operator.get("/workers").json()["data"]] == ["no numbers"]
    assert [each["id"] for each in operator.get("/workers").json()["data"]] == ["worker_a"]
    assert operator.post("/workers/worker_a/resume").json()["draining_since"] is None
    assert operator.post("/workers/nobody/drain").status_code == 404


def test_the_log_has_every_change_with_the_key_that_made_it_and_no_secret(operator: httpx.Client, tenant: Made) -> None:
    secret = operator.post(f"/tenants/{tenant['id']}/keys").json()["secret"]
    operator.patch(f"/tenants/{tenant['id']}", json={"limit_tokens": 5})
    page = operator.get("/log", params={"limit": 3}).json()
    assert [entry["action"] for entry in page["data"]] == ["tenant.change", "key.create", "tenant.create"]
    assert {entry["tenant_id"] for entry in page["data"]} == {tenant["id"]}
    assert (page["data"][0]["before"], page["data"][0]["after"]) == ({"limit_tokens": None}, {"limit_tokens": 5})
    (own,) = {entry["actor"] for entry in page["data"]}
    assert own.removeprefix("key:") in [key["id"] for key in operator.get("/keys").json()["data"]]
    assert secret[:10] not in json.dumps(page)
    assert operator.get("/log", params={"after": page["data"][0]["id"], "limit": 1}).json()["data"] == page["data"][1:2]


def test_no_key_of_a_tenant_opens_any_of_it(deployment: Any) -> None:
    with as_tenant(deployment, deployment.new_key()) as stranger:
        for path in ("tenants", "keys", "models", "workers", "log"):
            refused = stranger.get(f"/v1/admin/{path}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
