"""Tests of reports on pages: only for their tenant, with a button that retries what can be retried."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from features.pipelines.tables import Pipeline
from jobs.accounts.keys import authenticate
from jobs.ids import new_id
from tests.api.browser import Browser
from tests.features.reports.fixtures import DEFINITION, Days, stored

Browse = Callable[[str | None], Browser]

NIGHT = datetime(2026, 11, 20, 1, 30, tzinfo=UTC)


@pytest.fixture
def nightly(browse: Browse, deployment: Any) -> tuple[Browser, str, str]:
    """A browser of a tenant, the id of its pipeline, and of the batch of a night with failed rows and a drift."""
    key = deployment.new_key()
    with Session(deployment.engine) as session:
        tenant_id = authenticate(session, key).owner().id
        name = "<i>receipts"
        pipeline = Pipeline(id=new_id("pipeline"), tenant_id=tenant_id, name=name, definition=DEFINITION)
        session.add(pipeline)
        session.flush()
        days = Days(session, pipeline)
        days.quiet(NIGHT, cost=1_000_000)
        statistics = stored(failed=17, nulls=500)
        run = days.run(NIGHT, statistics=statistics, failed_lines=15, cost=2_000_000)
        days.run(NIGHT + timedelta(days=1), state="failed", reason="a <b> store is away")
        batch_id = days.batch_of(run)
        return browse(key), pipeline.id, batch_id


def test_a_day_shows_its_failed_rows_its_drift_and_what_it_cost(
    nightly: tuple[Browser, str, str], browse: Browse, deployment: Any
) -> None:
    browser, pipeline_id, batch_id = nightly
    path = f"/reports/{pipeline_id}?day=2026-11-20"
    page = browser.get(path).text
    assert ("&lt;i&gt;receipts" in page, "<i>receipts" in page) == (True, False)
    assert f'data-call="POST /v1/batches/{batch_id}/retry"' in page
    assert f"tokenmill batch retry {batch_id}" in page
    for words in ("length 17", "fields.vendor", "50.9 %", "0.002", "0.001", "2026-11-20 01:40 UTC"):
        assert words in page, words
    assert f"/reports/{pipeline_id}?day=2026-11-19" in page
    quiet = browser.get(f"/reports/{pipeline_id}?day=2026-11-19").text
    assert ("None beside" in quiet, "Not compared" in quiet, "/retry" in quiet) == (True, False, False)
    assert "Not compared" in browser.get(f"/reports/{pipeline_id}?day=2026-11-15").text
    failed = browser.get(f"/reports/{pipeline_id}?day=2026-11-21").text
    assert ("a &lt;b&gt; store is away" in failed, ">failed<" in failed) == (True, True)
    stranger = browse(deployment.new_key())
    assert stranger.get(path).status_code == 404
    assert pipeline_id not in stranger.get("/reports").text


def test_all_pipelines_are_listed_with_links_to_their_days(nightly: tuple[Browser, str, str]) -> None:
    browser, pipeline_id, _ = nightly
    listed = browser.get("/reports").text
    assert f'href="/reports/{pipeline_id}?day=' in listed
    assert ("&lt;i&gt;receipts" in listed, "no run" in listed) == (True, True)
    assert f'href="/reports/{pipeline_id}"' in browser.get("/pipelines").text


def test_a_day_that_is_none_is_refused(nightly: tuple[Browser, str, str]) -> None:
    browser, pipeline_id, _ = nightly
    assert browser.get(f"/reports/{pipeline_id}?day=tomorrow").status_code == 400
    statuses = {"0001-01-01": 400, "2000-01-01": 200, "2099-12-31": 200, "9999-12-31": 400}
    assert {day: browser.get(f"/reports/{pipeline_id}?day={day}").status_code for day in statuses} == statuses
