"""Tests of scopes: every route has one, and a key without it gets an error that names it."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from sqlalchemy import text
from sqlalchemy.orm import Session

import api
import features
from api.openapi import DescribedApp
from api.scopes import SCOPES, scope_of
from jobs.accounts import keys, tenants
from jobs.states import Scope


def routes() -> Iterator[APIRoute]:
    """Yield the routes of every router of the package, including those not in the schema."""
    modules = [
        importlib.import_module(module.name)
        for package in (api, features)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    routers = {id(value): value for module in modules for value in vars(module).values()}.values()
    for router in routers:
        if isinstance(router, APIRouter):
            yield from (route for route in router.routes if type(route) is APIRoute)  # pages check scopes themselves


@pytest.fixture(scope="module")
def secrets(deployment: Any) -> dict[str, str]:
    """Keys of one tenant, by their restrictions."""
    with Session(deployment.engine) as session, session.begin():
        tenant = tenants.create_tenant(session, "team")
        made = {
            **{scope.value: keys.create_key(session, tenant.id, scopes=[scope]) for scope in keys.TENANT_SCOPES},
            "expired": keys.create_key(session, tenant.id, lifetime=timedelta(days=1)),
            "admin": keys.create_key(session, None),
        }
        session.execute(text("UPDATE api_key SET expires_at = now() WHERE id = :id"), {"id": made["expired"][0].id})
        return {name: secret for name, (_, secret) in made.items()}


def ask(deployment: Any, secret: str, route: APIRoute) -> httpx.Response:
    assert route.methods is not None
    (method,) = route.methods - {"HEAD"}
    url = deployment.url + re.sub(r"\{[^}]+\}", "nothing", route.path)
    return httpx.request(method, url, headers={"Authorization": f"Bearer {secret}"}, timeout=120)


def test_every_route_says_which_scope_it_needs() -> None:
    found = {scope_of(route) for route in routes()}  # raises if one has none
    assert found == {None, *Scope}


def test_a_route_of_which_nobody_has_said_it_is_not_served() -> None:
    router = APIRouter()
    router.add_api_route("/v1/new", lambda: None, operation_id="doSomethingNew")
    with pytest.raises(LookupError, match="'doSomethingNew' has no scope"):
        DescribedApp(line_models=[], body_models=[]).include_router(router)


@pytest.mark.parametrize("held", ["read", "submit", "admin"])
def test_a_key_without_the_scope_is_told_which_one_it_lacks(
    deployment: Any, secrets: dict[str, str], held: str
) -> None:
    for route in routes():
        needed = scope_of(route)
        if needed is None or needed == held:
            continue
        answer = ask(deployment, secrets[held], route)
        assert answer.status_code == 403, route.operation_id
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert (error["code"], error["type"]) == ("insufficient_scope", "invalid_request_error")
        assert f"needs a key with scope {needed.value}; your key has {held}" in error["message"]


def test_a_key_with_the_scope_passes_the_door(deployment: Any, secrets: dict[str, str]) -> None:
    reading = [route for route in routes() if scope_of(route) is Scope.READ]
    answers = {route.operation_id: ask(deployment, secrets["read"], route).status_code for route in reading}
    assert answers.keys() == {name for name, scope in SCOPES.items() if scope is Scope.READ}
    assert set(answers.values()) <= {200, 400, 404}


def test_an_expired_key_is_a_401_that_says_so(deployment: Any, secrets: dict[str, str]) -> None:
    headers = {"Authorization": f"Bearer {secrets['expired']}"}
    answer = httpx.get(f"{deployment.url}/v1/models", headers=headers)
    assert answer.status_code == 401
    assert "expired at" in answer.json()["error"]["message"]


def test_a_disabled_tenant_reads_and_submits_nothing(deployment: Any) -> None:
    secret = deployment.new_key()
    with Session(deployment.engine) as session, session.begin():
        tenants.set_disabled(session, keys.authenticate(session, secret).owner(), is_disabled=True)
    with httpx.Client(base_url=deployment.url, headers={"Authorization": f"Bearer {secret}"}) as http:
        assert http.get("/v1/batches").status_code == 200
        refused = http.post("/v1/batches", json={})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "tenant_disabled")
