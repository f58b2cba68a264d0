"""Tests of tenants, their keys and the admin log in a browser: only for operators, and by the API's own calls."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from features.administration.pages import tenants
from tests.api.browser import Browser

Browse = Callable[[str | None], Browser]


@pytest.fixture
def operator(browse: Browse, operator_key: str) -> Browser:
    return browse(operator_key)


@pytest.fixture
def tenant_id(operator: Browser, request: pytest.FixtureRequest) -> str:
    wish = {"name": f"team <b> {request.node.name}", "weight": 2.5, "limit_tokens": 1000}
    made = operator.call("POST", "/v1/admin/tenants", json=wish)
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


@pytest.mark.parametrize("path", ["/tenants", "/tenants/tenant_x", "/log"])
def test_tenants_see_no_operators_pages(path: str, browse: Browse, deployment: Any) -> None:
    refused = browse(deployment.new_key()).get(path)
    assert (refused.status_code, "scope admin" in refused.text) == (403, True)


def test_a_tenant_is_made_disabled_and_logged(operator: Browser, tenant_id: str) -> None:
    assert f"/tenants/{tenant_id}" in operator.get("/tenants").text
    page = operator.get(f"/tenants/{tenant_id}").text
    assert ("team &lt;b&gt;" in page, "team <b>" in page, "1,000" in page) == (True, False, True)
    operator.call("POST", f"/v1/admin/tenants/{tenant_id}/disable")
    assert "disabled" in operator.get(f"/tenants/{tenant_id}").text
    log = operator.get("/log").text
    assert tenant_id in log or "team &lt;b&gt;" in log


def test_budgets_and_limits_stand_on_the_page_of_their_tenant(operator: Browser, tenant_id: str) -> None:
    at = f"/v1/admin/tenants/{tenant_id}"
    key = operator.call("POST", f"{at}/keys", json={"name": "laptop"}).json()
    of_key = {"unit": "tokens", "limit": 70_001, "window": "day", "key_id": key["id"], "warn_percent": 80}
    for wish in ({"unit": "micros", "limit": 2_500_000, "window": "month"}, of_key):
        made = operator.call("POST", f"{at}/budgets", json=wish)
        assert made.status_code == 200, made.text
    operator.call("PATCH", at, json={"limits": {"open_batches": 7}})
    page = operator.get(f"/tenants/{tenant_id}").text
    assert ("2.50" in page, "70,001" in page, page.count("/v1/admin/budgets/")) == (True, True, 2)
    assert (f"{key['hint']}… laptop" in page, page.count("warns at 80 %")) == (True, 1)
    assert re.search(r'name="limits.open_batches"[^>]*value="7"', page)
    log = operator.get("/log").text
    assert ("limit <strong>2.50</strong>" in log, "<del>none</del>" in log) == (True, False)
    assert "open batches <strong>7</strong>" in log


def test_the_log_says_where_something_has_nothing() -> None:
    (options,) = tenants._changes({}, {"options": {}})
    assert (options.before, options.after) == (None, "none")


def test_the_log_goes_on_where_a_page_ends(operator: Browser, tenant_id: str) -> None:
    token = {"x-csrf-token": operator.token()}
    for limit in range(1, 60):
        changed = operator.patch(f"/v1/admin/tenants/{tenant_id}", json={"limit_tokens": limit}, headers=token)
        assert changed.status_code == 200, changed.text
    older = re.search(r'href="(/log\?before=\d+)"', operator.get("/log").text)
    assert older is not None
    assert "limit tokens" in operator.get(older[1]).text


def test_a_key_that_is_made_signs_in_until_it_is_revoked(operator: Browser, tenant_id: str, browse: Browse) -> None:
    made = operator.call("POST", f"/v1/admin/tenants/{tenant_id}/keys", json={"name": "laptop", "scopes": ["read"]})
    key = made.json()
    theirs = browse(key["secret"])
    assert theirs.get("/batches").status_code == 200
    page = operator.get(f"/tenants/{tenant_id}").text
    assert ("laptop" in page, key["hint"] in page, key["secret"] in page) == (True, True, False)
    operator.call("DELETE", f"/v1/admin/keys/{key['id']}")
    assert theirs.get("/batches").status_code == 303
