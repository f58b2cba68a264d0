"""Tests of signing in: a key becomes a cookie, which acts for it until it ends, and only on our own pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from api.dashboard.routing import PageRoute
from api.dashboard.site import install_dashboard
from api.dashboard.viewer import own_path
from api.openapi import DescribedApp
from jobs.accounts.keys import create_key, find_key, revoke_key
from jobs.accounts.tenants import create_tenant
from jobs.states import Scope
from tests.api.browser import Browser
from tests.api.deployment import serving

Browse = Callable[[str | None], Browser]


def page_paths() -> list[str]:
    app = DescribedApp(line_models=[], body_models=[])
    install_dashboard(app)
    routers = [getattr(route, "original_router", None) for route in app.router.routes]
    routes = [route for router in routers if router is not None for route in router.routes]
    return sorted({route.path for route in routes if isinstance(route, PageRoute)} - {"/sign-in", "/sign-out"})


@pytest.mark.parametrize("path", page_paths())
def test_no_page_shows_anything_to_somebody_who_is_not_signed_in(path: str, browse: Browse) -> None:
    answer = browse(None).get(path.replace("{", "").replace("}", ""))
    assert answer.status_code in (303, 401)
    assert answer.text == ""


def test_pages_are_found() -> None:
    assert {"/", "/batches", "/live/overview", "/plots"} <= set(page_paths())


def test_after_signing_in_one_is_where_one_wanted_to_go(browse: Browse, deployment: Any) -> None:
    browser = browse(None)
    away = browser.get("/batches?show=open")
    assert away.headers["location"] == "/sign-in?asked=%2Fbatches%3Fshow%3Dopen"
    back = browser.post("/sign-in", data={"key": deployment.new_key(), "asked": "/batches?show=open"})
    assert (back.status_code, back.headers["location"]) == (303, "/batches?show=open")
    cookie = back.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Max-Age=604800"))


@pytest.mark.parametrize(("trusted", "is_secure"), [("127.0.0.0/8", True), ("10.0.0.0/8", False)])
def test_a_cookie_is_secure_behind_a_proxy_with_tls_that_is_trusted(
    trusted: str, is_secure: bool, deployment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    with serving(deployment.settings) as url, Browser(base_url=url, headers={"x-forwarded-proto": "https"}) as browser:
        answer = browser.sign_in(deployment.new_key())
    assert answer.status_code == 303
    assert ("Secure" in answer.headers["set-cookie"]) is is_secure


@pytest.mark.parametrize("asked", ["https://evil.example/", "//evil.example/", "/\\evil.example", "batches", ""])
def test_nobody_is_sent_to_another_site(asked: str) -> None:
    assert own_path(asked) == "/"


def test_a_wrong_key_is_told_and_never_shown(browse: Browse) -> None:
    answer = browse(None).sign_in("tm-<script>alert(1)</script>")
    assert answer.status_code == 401
    assert "not known here" in answer.text
    assert "alert(1)" not in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": "ours"},
    ],
)
def test_a_form_of_another_site_signs_nobody_in(browse: Browse, deployment: Any, headers: dict[str, str]) -> None:
    browser = browse(None)
    sent = {name: deployment.url if value == "ours" else value for name, value in headers.items()}
    answer = browser.post("/sign-in", data={"key": deployment.new_key()}, headers=sent)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_browser_that_names_our_origin_alone_signs_in(browse: Browse, deployment: Any) -> None:
    answer = browse(None).post("/sign-in", data={"key": deployment.new_key()}, headers={"origin": deployment.url})
    assert "set-cookie" in answer.headers


def test_a_session_ends_with_its_key(browse: Browse, deployment: Any) -> None:
    key = deployment.new_key()
    browser = browse(key)
    assert browser.get("/batches").status_code == 200
    with Session(deployment.engine) as session, session.begin():
        revoke_key(session, find_key(session, key))
    assert browser.get("/batches").status_code == 303
    assert browser.get("/v1/batches").status_code == 401


def test_signing_out_forgets_the_cookie(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    browser.post("/sign-out")
    assert browser.get("/").status_code == 303


def test_a_changed_cookie_is_no_session(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    value = browser.cookies["tokenmill_session"]
    browser.cookies.clear()
    browser.cookies.set("tokenmill_session", value[:-2] + ("aa" if value[-2:] != "aa" else "bb"))
    assert browser.get("/").status_code == 303
    assert browser.get("/v1/batches").json()["error"]["code"] == "session_ended"


def test_the_api_takes_the_cookie_from_our_pages_alone(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    body = {"name": "papers"}
    assert browser.get("/v1/batches").status_code == 200
    assert browser.post("/v1/collections", json=body).json()["error"]["code"] == "foreign_page"
    wrong = browser.post("/v1/collections", json=body, headers={"x-csrf-token": "x" * 32})
    assert wrong.json()["error"]["code"] == "foreign_page"
    foreign = browser.get("/v1/batches", headers={"sec-fetch-site": "cross-site"})
    assert foreign.json()["error"]["code"] == "foreign_page"
    of_another = browser.get("/v1/batches", headers={"origin": "https://elsewhere.example"})
    assert of_another.json()["error"]["code"] == "foreign_page"
    assert browser.call("POST", "/v1/collections", json=body).status_code == 200


def test_a_key_that_only_reads_may_not_submit(browse: Browse, deployment: Any) -> None:
    with Session(deployment.engine) as session, session.begin():
        tenant = create_tenant(session, "readers")
        _, key = create_key(session, tenant.id, scopes=[Scope.READ])
    browser = browse(key)
    assert "Submit a batch" not in browser.get("/batches").text
    assert browser.get("/submit").status_code == 403
    assert browser.call("POST", "/v1/collections", json={"name": "x"}).json()["error"]["code"] == "insufficient_scope"


def test_a_key_that_only_submits_sees_no_page(browse: Browse, deployment: Any) -> None:
    with Session(deployment.engine) as session, session.begin():
        tenant = create_tenant(session, "senders")
        _, key = create_key(session, tenant.id, scopes=[Scope.SUBMIT])
    browser = browse(key)
    for path in ("/", "/batches", "/usage"):
        assert "needs a key with scope read" in browser.get(path, follow_redirects=True).text
    assert browser.get("/live/overview").status_code == 401


def test_no_page_may_load_or_run_what_is_not_ours(browse: Browse, deployment: Any) -> None:
    answer = browse(deployment.new_key()).get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in answer.text
    assert " style=" not in answer.text
    assert answer.headers["cache-control"] == "no-store"


def test_a_program_that_leaves_out_v1_gets_no_page(browse: Browse, deployment: Any) -> None:
    answer = browse(None).get("/models", headers={"Authorization": f"Bearer {deployment.new_key()}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


def test_a_switch_turns_the_pages_off(serve: Callable[..., str], new_database: Callable[[], str]) -> None:
    with Browser(base_url=serve(database_url=new_database(), dashboard=False)) as browser:
        assert browser.get("/").status_code == 404
        assert browser.get("/sign-in").status_code == 404
