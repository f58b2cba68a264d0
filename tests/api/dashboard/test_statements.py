"""What pages ask of the database: as many statements, whatever there is to be shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from benchmarks.dashboard import pages
from benchmarks.dashboard.pages import Paths
from benchmarks.dashboard.rows import Filled, Sizes, fill
from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]

MOST = 20
"""Statements of a page, sign-in included; there are more tenants, extractions, schedules and workers than these."""
SIZES = Sizes(batches=400, workers=24, tenants=24, lines=2, largest=20, hours=2)


@pytest.fixture(scope="session")
def filled(deployment: Any) -> Filled:
    return fill(deployment.engine, SIZES)


@contextmanager
def counted() -> Iterator[list[str]]:
    """Note the statements that the API sends."""
    sent: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


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
