"""Every page for a tenant, for another one and for an operator; plots, schedules, runs and extractions on them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from features.pipelines import stores
from jobs.accounts.keys import authenticate
from jobs.chunks.fleet import heartbeat, register, stop
from tests.api.browser import Browser
from tests.features.documents.http.extracting import completed_extraction

Browse = Callable[[str | None], Browser]

TENANT_PAGES = (
    *("/", "/batches", "/submit", "/models", "/pipelines", "/extractions", "/indexes", "/usage"),
    "/plots?range=24h",
)
OPERATOR_PAGES = ("/", "/batches", "/models", "/usage", "/health", "/plots?range=30d")


@pytest.mark.parametrize("path", TENANT_PAGES)
def test_a_tenant_who_has_nothing_sees_every_page(path: str, browse: Browse, deployment: Any) -> None:
    assert browse(deployment.new_key()).get(path).status_code == 200


@pytest.mark.parametrize("path", OPERATOR_PAGES)
def test_an_operator_sees_the_service(path: str, browse: Browse, operator_key: str) -> None:
    assert browse(operator_key).get(path).status_code == 200


def test_pages_of_others_say_which_key_they_want(browse: Browse, deployment: Any, operator_key: str) -> None:
    for path in ("/pipelines", "/extractions", "/submit"):
        assert browse(operator_key).get(path).status_code == 403
    refused = browse(deployment.new_key()).get("/health")
    assert (refused.status_code, "scope admin" in refused.text) == (403, True)


def test_what_concerns_all_is_in_no_tenants_plots(browse: Browse, deployment: Any, operator_key: str) -> None:
    assert set(browse(deployment.new_key()).get("/plots").json()) == {"tokens", "cost"}
    of_all = browse(operator_key).get("/plots").json()
    assert {"queued_lines", "running_requests", "cache_use"} < set(of_all)
    assert len(of_all["tokens"]["at"]) == 60


def test_workers_are_shown_without_their_machines(browse: Browse, deployment: Any, operator_key: str) -> None:
    with Session(deployment.engine) as session, session.begin():
        register(session, worker_id="worker_x", model="org/elsewhere", max_chunks=3, max_model_len=100)
        heartbeat(session, "worker_x", engine_stats={"num_requests_running": 7, "kv_cache_usage_perc": 0.5})
        hostname = session.connection().exec_driver_sql("SELECT hostname FROM worker LIMIT 1").scalar_one()
    own, all_of_it = (browse(key).get("/models").text for key in (deployment.new_key(), operator_key))
    assert ("50 %" in own, f"{hostname} <" in own) == (True, False)
    assert (f"{hostname} <" in all_of_it, "/v1/admin/workers/worker_x/drain" in all_of_it) == (True, True)
    assert 'data-live="m0.lost"' in browse(operator_key).get("/").text  # none is, and one may be while one looks
    with Session(deployment.engine) as session, session.begin():
        stop(session, "worker_x")  # other tests have the same database


def test_a_worker_that_is_drained_says_so_and_can_be_resumed(
    browse: Browse, deployment: Any, operator_key: str
) -> None:
    with Session(deployment.engine) as session, session.begin():
        register(session, worker_id="worker_d", model="org/drained", max_chunks=3, max_model_len=100)
        heartbeat(session, "worker_d")
    operator = browse(operator_key)
    at = "/v1/admin/workers/worker_d"
    operator.call("POST", f"{at}/drain")
    page = operator.get("/models").text
    assert (f"POST {at}/resume" in page, f"POST {at}/drain" in page, ">draining<" in page) == (True, False, True)
    operator.call("POST", f"{at}/resume")
    page = operator.get("/models").text
    assert (f"POST {at}/resume" in page, f"POST {at}/drain" in page, ">draining<" in page) == (False, True, False)
    with Session(deployment.engine) as session, session.begin():
        stop(session, "worker_d")  # other tests have the same database


def test_workers_come_by_pages_those_that_were_lost_first(browse: Browse, deployment: Any) -> None:
    ids = [f"worker_{n:02}" for n in range(51)]
    with Session(deployment.engine) as session, session.begin():
        for worker_id in ids:
            register(session, worker_id=worker_id, model=f"org/{worker_id}", max_chunks=3, max_model_len=100)
        times = "started_at = now() - interval '2 minutes', heartbeat_at = now() - interval '1 minute'"
        session.execute(text(f"UPDATE worker SET {times} WHERE id = 'worker_50'"))
    browser = browse(deployment.new_key())
    first, second, beyond = (browser.get(f"/models?page={page}").text for page in (1, 2, 3))
    assert ("org/worker_50" in first, "org/worker_48" in first, "org/worker_49" in first) == (True, True, False)
    assert ("org/worker_49" in second, "org/worker_48" in second, "51 to 51" in second) == (True, False, True)
    assert "There are fewer now" in beyond
    told = next(browser.events("/live/models?page=2"))
    assert (told["values"]["live"], told["values"]["lost"]) == ("50 live", ["1 lost", "bad"])
    assert told["layout"] == re.search('data-layout="([^"]+)"', second).group(1)  # type: ignore[union-attr]
    assert browser.get("/models?page=0").status_code == 400
    with Session(deployment.engine) as session, session.begin():
        for worker_id in ids:  # other tests have the same database
            stop(session, worker_id)


@pytest.fixture
def nightly(browse: Browse, deployment: Any, tmp_path: Path) -> Browser:
    """A browser of a tenant with a pipeline and a schedule."""
    key = deployment.new_key()
    with Session(deployment.engine) as session, session.begin():
        tenant_id = authenticate(session, key).owner().id
        for name in ("documents", "results"):
            (tmp_path / name).mkdir()
            stores.add_store(session, tenant_id, name, f"file://{tmp_path / name}", options={}, is_writable=True)
    browser = browse(key)
    step = {
        "name": "fields",
        "source": {"store": "documents", "keys": "in/*.jsonl"},
        "prompt": "Read {{ text }}",
        "model": "org/tiny",
        "parameters": {"max_tokens": 8},
        "output": {"store": "results", "keys": "{pipeline}/{date}/part-{n}.jsonl"},
    }
    made = browser.call("POST", "/v1/pipelines", json={"name": "receipts", "steps": [step]})
    assert made.status_code == 200, made.text
    wish = {"pipeline": "receipts", "name": "every-night", "cron": "0 3 * * *", "time_zone": "Europe/Berlin"}
    made = browser.call("POST", "/v1/schedules", json=wish)
    assert made.status_code == 200, made.text
    return browser


def test_a_schedule_is_paused_triggered_and_backfilled(nightly: Browser, browse: Browse, deployment: Any) -> None:
    (schedule,) = nightly.get("/v1/schedules").json()["data"]
    page = f"/pipelines/schedules/{schedule['id']}"
    assert "every-night" in nightly.get("/pipelines").text
    assert nightly.get(page).text.count(" 03:00 C") == 5  # CET or CEST
    nightly.call("POST", f"/v1/schedules/{schedule['id']}/pause")
    assert "Paused" in nightly.get(page).text
    run = nightly.call("POST", "/v1/runs", json={"pipeline": schedule["pipeline_id"]}).json()
    shown = nightly.get(f"/pipelines/runs/{run['id']}")
    assert (shown.status_code, "queued" in shown.text or "running" in shown.text) == (200, True)
    assert run["id"] in nightly.get("/pipelines").text
    stranger = browse(deployment.new_key())
    assert stranger.get(page).status_code == stranger.get(f"/pipelines/runs/{run['id']}").status_code == 404


class _Buttons(HTMLParser):
    """What a page's buttons send, by their call."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.bodies = dict[str, str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "button" and given.get("data-body"):
            self.bodies[str(given["data-call"])] = str(given["data-body"])


def test_buttons_that_run_a_pipeline_send_what_the_api_reads(nightly: Browser) -> None:
    (schedule,) = nightly.get("/v1/schedules").json()["data"]
    for path in ("/pipelines", f"/pipelines/schedules/{schedule['id']}"):
        body = json.loads(_Buttons(nightly.get(path).text).bodies["POST /v1/runs"])
        assert nightly.call("POST", "/v1/runs", json=body).json()["pipeline_id"] == schedule["pipeline_id"]


def test_schedules_and_runs_are_told_while_one_looks(nightly: Browser, browse: Browse, deployment: Any) -> None:
    (schedule,) = nightly.get("/v1/schedules").json()["data"]
    paths = ("/live/pipelines", f"/live/pipelines/schedules/{schedule['id']}")
    for path, change in zip(paths, ("pause", "resume"), strict=True):
        told = nightly.events(path)
        before = next(told)
        if path == paths[0]:
            assert before["values"]["s0.next"].startswith("in ")
            assert before["values"]["s0.last"] == ["–", ""]
        nightly.call("POST", f"/v1/schedules/{schedule['id']}/{change}")
        assert next(told)["layout"] != before["layout"]
    run = nightly.call("POST", "/v1/runs", json={"pipeline": schedule["pipeline_id"]}).json()
    told = nightly.events(f"/live/pipelines/runs/{run['id']}")
    before = next(told)
    assert before["values"] == {"tokens": "0"}
    nightly.call("POST", f"/v1/runs/{run['id']}/cancel")
    assert next(told)["layout"] != before["layout"]
    stranger = browse(deployment.new_key())
    assert next(stranger.events("/live/pipelines"))["values"] == {}
    assert next(stranger.events(paths[1]))["layout"] == "gone"


@pytest.fixture
def extraction_id(browse: Browse, deployment: Any) -> tuple[Browser, str]:
    browser = browse(deployment.new_key())
    token = {"x-csrf-token": browser.token()}
    collection = browser.call("POST", "/v1/collections", json={"name": "papers <i>"}).json()["id"]
    file = browser.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"no 7")}, headers=token)
    browser.call("POST", f"/v1/collections/{collection}/documents", json={"file_ids": [file.json()["id"]]})
    schema = {"type": "object", "properties": {"number": {"type": "string"}}}
    asked = {"collection_id": collection, "schema": schema, "model": "org/tiny"}
    made = browser.call("POST", "/v1/extractions", json=asked)
    assert made.status_code == 200, made.text
    return browser, made.json()["id"]


def test_an_extraction_is_its_tenants(extraction_id: tuple[Browser, str], browse: Browse, deployment: Any) -> None:
    browser, found = extraction_id
    assert found in browser.get("/extractions").text
    page = browser.get(f"/extractions/{found}")
    assert (page.status_code, "papers &lt;i&gt;" in page.text, "papers <i>" in page.text) == (200, True, False)
    stranger = browse(deployment.new_key())
    assert found not in stranger.get("/extractions").text
    for path in (f"/extractions/{found}", f"/reviews/{found}"):
        assert stranger.get(path).status_code == 404


def test_a_page_outlives_the_collection(extraction_id: tuple[Browser, str], deployment: Any) -> None:
    browser, found = extraction_id
    with Session(deployment.engine) as session, session.begin():
        delete = "UPDATE collection SET deleted_at = now() FROM extraction WHERE collection_id = collection.id"
        session.execute(text(f"{delete} AND extraction.id = :id"), {"id": found})
    page = browser.get(f"/extractions/{found}")
    assert (page.status_code, "papers &lt;i&gt;" in page.text) == (200, True)


def test_what_is_not_completed_has_nothing_to_review(extraction_id: tuple[Browser, str]) -> None:
    browser, found = extraction_id
    assert browser.get(f"/reviews/{found}").status_code == 409


def test_an_evaluation_is_told_by_field_with_its_plots(browse: Browse, deployment: Any) -> None:
    key, gold = deployment.new_key(), b'{"document": "0.txt", "fields": {"vendor": "Elm <b>", "total": "3"}}'
    with httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {key}"}, timeout=20) as http:
        schema = {"type": "object", "properties": {"vendor": {"type": "string"}, "total": {"type": "string"}}}
        found = completed_extraction(http, deployment, schema, b"vendor: Birch Ltd\ntotal: 3")
        file = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("<i>.jsonl", gold)}).json()["id"]
    browser = browse(key)
    path = f"/extractions/{found}/evaluation"
    assert path in browser.get(f"/extractions/{found}").text
    early = browser.get(path)
    assert (early.status_code, "Nobody has decided" in early.text) == (200, True)
    page = browser.get(f"{path}?gold={file}").text
    assert ("vendor" in page, "50.0 %" in page, page.count("<svg"), "<i>" in page) == (True, True, 2, False)
    wrong = browser.get(f"{path}?gold=file_x")
    assert (wrong.status_code, "No such File" in wrong.text) == (404, True)
    stranger = browse(deployment.new_key())
    assert stranger.get(f"{path}?gold={file}").status_code == 404
    collection = browser.get(f"/v1/extractions/{found}").json()["collection_id"]
    (document,) = browser.get(f"/v1/collections/{collection}/documents").json()["data"]
    text = f"/collections/{collection}/documents/{document['id']}"
    assert '<mark id="mark">Birch Ltd</mark>' in browser.get(f"{text}?start=8&end=17").text
    assert "<mark" not in browser.get(text).text
    assert stranger.get(text).status_code == 404


def test_an_index_is_its_tenants_and_told_while_it_is_built(
    extraction_id: tuple[Browser, str], browse: Browse, deployment: Any
) -> None:
    browser, extraction = extraction_id
    collection = browser.get(f"/v1/extractions/{extraction}").json()["collection_id"]
    made = browser.call("POST", "/v1/indexes", json={"collection_id": collection, "name": "boats <i>"}).json()["id"]
    for path in ("/indexes", f"/indexes/{made}"):
        page = browser.get(path).text
        assert ("boats &lt;i&gt;" in page, "boats <i>" in page, f"/indexes/{made}" in page) == (True, False, True)
    assert "two bytes each" in page  # whose tokens a passage has
    assert next(browser.events(f"/live/indexes/{made}"))["values"]["state"] == ["in progress", ""]
    stranger = browse(deployment.new_key())
    assert stranger.get(f"/indexes/{made}").status_code == 404
    assert made not in stranger.get("/indexes").text


def test_usage_is_that_of_the_days_that_are_asked_for(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    page = browser.get("/usage?by=model&since=2026-01-01&until=2026-01-31")
    assert (page.status_code, "2026-01-01 to 2026-01-31" in page.text) == (200, True)
    wrong = browser.get("/usage?by=model&since=2026-02-01&until=2026-01-31")
    assert (wrong.status_code, "not after" in wrong.text) == (400, True)


def test_a_page_without_its_database_says_so(serve: Callable[..., str]) -> None:
    with Browser(base_url=serve(database_url="postgresql://nobody@127.0.0.1:1/none")) as browser:
        answer = browser.sign_in("tm-anything")
        assert (answer.status_code, "does not answer" in answer.text) == (503, True)
