"""Tests of every page for a tenant and for an operator, with plots, workers and usage."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import heartbeat, register, stop
from jobs.overview import spending
from jobs.overview.spending import ModelSpill, ModelWaste
from jobs.tables import Batch, Ledger
from tests.api.browser import Browser
from tests.api.dashboard.submitting import submit

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
    assert (
        'data-live="m0.lost"' in browse(operator_key).get("/").text
    )  # no worker is lost now, but one may be while the page is open
    with Session(deployment.engine) as session, session.begin():
        stop(session, "worker_x")  # other tests use the same database


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
        stop(session, "worker_d")  # other tests use the same database


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
        for worker_id in ids:  # other tests use the same database
            stop(session, worker_id)


def test_usage_is_that_of_the_days_that_are_asked_for(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    page = browser.get("/usage?by=model&since=2026-01-01&until=2026-01-31")
    assert (page.status_code, "2026-01-01 to 2026-01-31" in page.text) == (200, True)
    wrong = browser.get("/usage?by=model&since=2026-02-01&until=2026-01-31")
    assert (wrong.status_code, "not after" in wrong.text) == (400, True)


def test_only_an_operator_sees_what_servers_were_paid_for_in_vain(
    browse: Browse, deployment: Any, operator_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waste = ModelWaste(model="org/elsewhere", input_tokens=1234, output_tokens=56)
    monkeypatch.setattr(spending, "wasted_by_model", lambda _: [waste])
    of_all, own = (browse(key).get("/usage").text for key in (operator_key, deployment.new_key()))
    assert ("org/elsewhere" in of_all, "1,234" in of_all) == (True, True)
    assert "org/elsewhere" not in own


def test_only_an_operator_sees_what_servers_outside_the_house_were_paid(
    browse: Browse, deployment: Any, operator_key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spill = ModelSpill(model="org/outside", num_results=78, input_tokens=1234, output_tokens=56, picos=25 * 10**11)
    monkeypatch.setattr(spending, "spilled_by_model", lambda _: [spill])
    of_all, own = (browse(key).get("/usage").text for key in (operator_key, deployment.new_key()))
    assert all(shown in of_all for shown in ("org/outside", "78", "1,234", "2.50"))
    assert "org/outside" not in own


def test_usage_tells_the_tokens_of_thoughts(browse: Browse, deployment: Any, input_lines: Callable[..., bytes]) -> None:
    browser = browse(deployment.new_key())
    batch_id = submit(browser, input_lines(1))
    with Session(deployment.engine) as session, session.begin():
        batch = session.get_one(Batch, batch_id)
        keys = {"tenant_id": batch.tenant_id, "batch_id": batch_id, "chunk_id": 1, "fence": 1, "flush_no": 0}
        counts = {"num_results": 1, "num_truncated": 0, "cost_picos": 7}
        tokens = {"input_tokens": 10, "cached_tokens": 0, "output_tokens": 2500, "reasoning_tokens": 2345}
        prices = {"input_price_picos": 0, "output_price_picos": 0, "priority": "normal"}
        at = datetime(2026, 1, 5, tzinfo=UTC)
        session.add(Ledger(model="m", created_at=at, **keys, **counts, **tokens, **prices))
    page = browser.get("/usage?by=model&since=2026-01-01&until=2026-01-31").text
    assert '<td class="number" data-label="Of these thoughts">2,345</td>' in page


def test_a_page_without_its_database_says_so(serve: Callable[..., str]) -> None:
    with Browser(base_url=serve(database_url="postgresql://nobody@127.0.0.1:1/none")) as browser:
        answer = browser.sign_in("tm-anything")
        assert (answer.status_code, "does not answer" in answer.text) == (503, True)
