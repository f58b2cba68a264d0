"""The page of the service's health, which only operators see."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from api.dashboard.pages import health
from jobs.access import Standing
from jobs.overview.diagnosis import DatabaseLook
from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]


@pytest.fixture
def operator(browse: Browse, operator_key: str) -> Browser:
    return browse(operator_key)


def test_clocks_differ_by_no_less_than_nothing(operator: Browser) -> None:
    assert re.search(r"the database&#39;s differ by \d+\.\d s", operator.get("/health").text)


@pytest.mark.parametrize(
    ("found", "is_well"),
    [
        ({}, (True, True)),
        ({"do_documents_wait": True}, (True, False)),
        ({"are_documents_served": True}, (True, True)),
        ({"unserved_models": ["m"]}, (False, True)),
    ],
)
def test_health_tells_documents_from_models(found: dict[str, Any], is_well: tuple[bool, bool]) -> None:
    standing = Standing(login="tokenmill_service", is_superuser=False, is_owner=False, are_roles_there=True)
    look = DatabaseLook(
        version="16", revision="0", num_connections=1, max_connections=10, clock_seconds=0.0, standing=standing, **found
    )
    models, documents = health._of_models(look), health._of_documents(look)
    assert (models.is_well, documents.is_well) == is_well
    assert ":prepare" not in models.says + documents.says
