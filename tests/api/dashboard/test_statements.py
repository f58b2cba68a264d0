"""Tests that the number of statements of a page does not depend on the number of rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, event, select, text
from sqlalchemy.orm import Session

from api.dashboard.live import Look
from api.dashboard.pages import batches, overview
from api.dashboard.recent import Recent
from features.documents import stages
from features.documents.tables import Extraction, ExtractionNode
from features.retrieval.tables import FillNode, PassageFill
from flows.parts import read_parts
from jobs.forecasts import outlooks
from jobs.overview.listing import BatchFilter
from jobs.tables import Batch, Budget
from lab.dashboard import pages
from lab.dashboard.pages import Paths
from lab.dashboard.rows import Filled, Sizes, fill
from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]

MOST = 21
"""Statements of a page, including sign-in; there are more tenants, extractions, schedules and workers than these."""
_TRIES = 3
"""Times may be written otherwise from one look to the next, when a second or a minute has passed; not each time."""
SIZES = Sizes(batches=400, workers=24, tenants=24, lines=2, largest=20, hours=2)


@pytest.fixture(scope="module")
def deployment(deploy: Callable[..., Any]) -> Any:
    """An API with only these rows."""
    return deploy()


@pytest.fixture(scope="module")
def filled(deployment: Any) -> Filled:
    return fill(deployment.engine, SIZES)


@contextmanager
def counted() -> Iterator[list[str]]:
    """Record the statements that the API sends."""
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def without_lists(statement: str) -> str:
    """Remove the contents of lists in a statement, which has one placeholder for each element."""
    return re.sub(r" IN \((%\(\w+\)s(::\w+)?(, )?)+\)", " IN ()", statement)


@pytest.mark.parametrize("who", ["operator", "tenant"])
def test_statements_of_a_page_do_not_follow_what_it_shows(
    who: str, browse: Browse, deployment: Any, filled: Filled
) -> None:
    found: Paths = pages.paths(deployment.engine)
    key, paths = {"operator": (filled.operator_key, found.operator), "tenant": (filled.tenant_keys[0], found.tenant)}[
        who
    ]
    browser = browse(key)
    too_many = {}
    for path in paths:
        with counted() as sent:
            answer = browser.get(path)
        assert answer.status_code == 200, path
        if len(sent) > MOST:
            too_many[path] = len(sent)
    assert too_many == {}


def test_a_look_at_pages_of_all_tenants_asks_as_much_as_at_one(
    deployment: Any, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlooks, "_GRACE", timedelta(0))  # no batch starts to wait between two looks
    services: Any = SimpleNamespace(settings=deployment.settings)
    with Session(deployment.engine) as session:
        session.execute(text("UPDATE forecast SET made_at = now() + interval '30 days'"))  # its end nears by the day
        tenant_ids = list(session.scalars(select(Budget.tenant_id).where(Budget.num_window_budgets > 0)))
        lists = [batches._List(tenant_id, BatchFilter()) for tenant_id in tenant_ids]
        looks: tuple[tuple[Callable[..., Sequence[Look]], Sequence[Any]], ...] = (
            (overview._look_at, tenant_ids),
            (batches._look_at, lists),
        )
        for look_at, subjects in looks:
            for _ in range(_TRIES):
                with counted() as sent_for_all:
                    together = look_at(services, Recent(), session, subjects)
                sent_for_each: set[str] = set()
                alone: list[Look] = []
                for subject in subjects:
                    with counted() as sent_for_one:
                        alone += look_at(services, Recent(), session, [subject])
                    sent_for_each |= set(map(without_lists, sent_for_one))
                if list(together) == alone:
                    break
            assert list(together) == alone
            assert len(together) == len(tenant_ids) > 10
            assert len(sent_for_all) == len(set(sent_for_all)) < MOST, "nothing is asked twice"
            assert set(map(without_lists, sent_for_all)) <= sent_for_each, "some have batches of more kinds"


def test_batches_of_many_extractions_are_those_of_each(deployment: Any, filled: Filled) -> None:
    with Session(deployment.engine) as session:
        wanted = list(session.scalars(select(Extraction.id).where(Extraction.num_to_review > 0).limit(20)))
        begun = stages.stages_of_each(session, wanted)
        looked_for = begun[wanted[0]][0]
        other = session.scalars(select(Batch.id).where(Batch.id.not_in(select(ExtractionNode.batch_id)))).first()
        assert looked_for.batch_id is not None
        assert other is not None
        owner = session.get_one(Batch, looked_for.batch_id)
        ended = {"state": "completed", "ended_at": datetime.now(UTC)}
        fill = PassageFill(id="fill_1", tenant_id=owner.tenant_id, for_batch_id=owner.id, models=[], **ended)
        session.add(fill)
        session.flush()
        session.add(FillNode(flow_id=fill.id, number=0, name="find", batch_id=other, num_lines=1))
        session.flush()
        together = stages.all_batches_of_each(session, begun)
        assert other in together[wanted[0]]
        for extraction_id in wanted:
            own = {extraction_id: stages.stages_of(session, extraction_id)}
            assert set(together[extraction_id]) == set(stages.all_batches_of_each(session, own)[extraction_id])
        session.rollback()


def test_the_graph_of_a_flow_is_read_by_three_statements(deployment: Any, filled: Filled) -> None:
    with Session(deployment.engine) as session:
        flow_id = session.scalars(select(Extraction.id).where(Extraction.num_to_review > 0)).first()
        assert flow_id is not None
        with counted() as sent:
            parts = read_parts(session, ExtractionNode, flow_id)
    assert (len(sent), len(parts.begun), len(parts.batches)) == (3, 3, 3)


@pytest.mark.parametrize("kind", ["extractions", "indexes", "runs"])
def test_a_page_over_http_asks_as_much_as_one_of_one(kind: str, browse: Browse, filled: Filled) -> None:
    browser = browse(filled.tenant_keys[0])
    sent = {}
    for limit in (1, 10):
        with counted() as sent[limit]:
            found = browser.get(f"/v1/{kind}?limit={limit}").raise_for_status().json()["data"]
        assert len(found) == limit
    assert len(sent[10]) == len(sent[1])
