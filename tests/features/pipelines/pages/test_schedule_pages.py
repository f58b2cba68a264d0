"""Tests of schedules and runs on pages: only for their tenant, live, and with buttons that the API accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from features.pipelines import stores
from features.pipelines.states import RunState
from features.pipelines.tables import Run, RunStep
from jobs.accounts.keys import authenticate
from jobs.tables import Batch
from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]


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
    """The requests of a page's buttons, by their call."""

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
    assert (before["values"]["tokens"], before["values"]["flow.state"]) == ("0", ["queued", ""])
    nightly.call("POST", f"/v1/runs/{run['id']}/cancel")
    assert next(told)["layout"] != before["layout"]
    stranger = browse(deployment.new_key())
    assert next(stranger.events("/live/pipelines"))["values"] == {}
    assert next(stranger.events(paths[1]))["layout"] == "gone"


def test_a_run_shows_its_steps_with_hostile_names_and_follows_their_batches(nightly: Browser, deployment: Any) -> None:
    (schedule,) = nightly.get("/v1/schedules").json()["data"]
    run_id = nightly.call("POST", "/v1/runs", json={"pipeline": schedule["pipeline_id"]}).json()["id"]
    input_file = nightly.post(
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("a.jsonl", b"{}")},
        headers={"x-csrf-token": nightly.token()},
    ).json()["id"]
    submission = {"input_file_id": input_file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    own, rows = (nightly.call("POST", "/v1/batches", json=submission).json()["id"] for _ in range(2))
    steps = [{"name": "<i>first", "source": {"batch": rows}}, {"name": "second", "source": {"batch": "batch_other"}}]
    with Session(deployment.engine) as session, session.begin():
        run = session.get_one(Run, run_id)
        run.definition, run.state, run.started_at = {"steps": steps}, RunState.RUNNING, run.created_at
        session.add(RunStep(flow_id=run_id, number=0, name="<i>first", batch_id=own, num_lines=5, num_rows=5))
    page = nightly.get(f"/pipelines/runs/{run_id}").text
    assert ("&lt;i&gt;first" in page, "<i>first" in page) == (True, False)
    assert page.count(f'href="/batches/{own}"') == page.count(f'href="/batches/{rows}"') == 1
    assert ("/batches/batch_other" in page, "batch_other" in page) == (False, True), "there is no such batch"
    assert (page.count('class="node begun open"'), page.count('class="node ahead"')) == (1, 1)
    told = nightly.events(f"/live/pipelines/runs/{run_id}")
    before = next(told)
    assert before["values"]["0.lines"] == "0 / 5"
    with Session(deployment.engine) as session, session.begin():
        batch = session.get_one(Batch, own)
        batch.num_requests, batch.num_completed, batch.output_tokens = 5, 2, 77
    after = next(told)
    assert after["layout"] == before["layout"]
    assert {"0.lines": "2 / 5", "0.tokens": "77", "0.done": "400"}.items() <= after["values"].items()
    with Session(deployment.engine) as session, session.begin():
        session.get_one(RunStep, (run_id, 0)).done_at = datetime.now(UTC)
    assert next(told)["layout"] != before["layout"]
