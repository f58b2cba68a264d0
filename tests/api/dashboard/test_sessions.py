"""Tests of browser sessions: a token signs in until its session ends; the rows of sessions do not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from api.auth import COOKIE
from features import load_tables
from jobs.accounts import browser_sessions, keys
from jobs.errors import AuthenticationError
from jobs.tables import Base
from tests.api.browser import Browser

load_tables()

Browse = Callable[[str | None], Browser]


def copied(browser: Browser, browse: Browse) -> Browser:
    """Return another browser with this one's cookie."""
    other = browse(None)
    other.cookies.set(COOKIE, browser.cookies[COOKIE])
    return other


def change(deployment: Any, statement: str, **values: Any) -> None:
    with Session(deployment.engine) as session, session.begin():
        session.execute(text(statement), values)


def is_signed_in(browser: Browser) -> bool:
    """Return whether a browser is signed in, for pages and for the API alike."""
    page, call = browser.get("/sessions"), browser.get("/v1/sessions")
    assert (page.status_code == 200) == (call.status_code == 200)
    assert page.status_code == 200 or call.json()["error"]["code"] == "session_ended"
    return page.status_code == 200


def test_signing_out_ends_the_session_for_a_copied_cookie_too(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    thief = copied(browser, browse)
    assert is_signed_in(thief)
    assert browser.post("/sign-out").headers["location"] == "/sign-in"
    assert not is_signed_in(thief)
    assert COOKIE not in browser.cookies


@pytest.mark.parametrize("value", ["", "x", "é", "tm-" + "a" * 43])
def test_a_wrong_token_is_no_session(browse: Browse, value: str) -> None:
    browser = browse(None)
    answer = browser.get("/v1/sessions", headers=[(b"cookie", f"{COOKIE}={value}".encode())])
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "session_ended")


@pytest.mark.parametrize("change_to", ["last_seen_at = now() - interval '12 hours'", "expires_at = now()"])
def test_a_session_that_was_idle_or_is_too_old_is_over(browse: Browse, deployment: Any, change_to: str) -> None:
    key = deployment.new_key()
    browser = browse(key)
    assert is_signed_in(browser)
    change(deployment, f"UPDATE browser_session SET {change_to}")
    assert not is_signed_in(browser)
    assert is_signed_in(browse(key))


def test_no_session_is_told_of_while_the_database_is_away(serve: Callable[..., str]) -> None:
    with Browser(base_url=serve(database_url="postgresql://nobody@127.0.0.1:1/none")) as browser:
        browser.cookies.set(COOKIE, "x" * 43)
        assert browser.sign_in("tm-" + "x" * 43).status_code == 503
        assert browser.get("/sessions").status_code == 503
        assert browser.get("/v1/sessions").status_code == 503
        left = browser.post("/sign-out")
        assert (left.status_code, "set-cookie" in left.headers) == (503, False), "the session may go on"


def test_a_form_of_another_site_signs_nobody_out(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    answer = browser.post("/sign-out", headers={"sec-fetch-site": "cross-site"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
    assert is_signed_in(browser)


def test_signing_in_again_ends_the_session_of_the_cookie_before(browse: Browse, deployment: Any) -> None:
    key = deployment.new_key()
    browser = browse(key)
    before = copied(browser, browse)
    browser.sign_in(key)
    assert is_signed_in(browser)
    assert not is_signed_in(before)


def test_the_token_of_one_session_changes_nothing_in_another(browse: Browse, deployment: Any) -> None:
    key = deployment.new_key()
    mine, other = browse(key), browse(key)
    answer = mine.delete("/v1/sessions", headers={"x-csrf-token": other.token()})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_page")


def test_a_rotated_key_ends_its_sessions_at_once_and_its_old_secrets_with_the_overlap(
    browse: Browse, deployment: Any, operator_key: str
) -> None:
    key = deployment.new_key()
    browser, operator = browse(key), browse(operator_key)
    (row,) = browser.get("/v1/sessions").json()["data"]
    operator.call("POST", f"/v1/admin/keys/{row['key_id']}/rotate", json={})
    assert not is_signed_in(browser)
    again = browse(key)
    assert is_signed_in(again)
    change(deployment, "UPDATE api_key SET previous_until = now() WHERE id = :id", id=row["key_id"])
    assert "rotated" in again.get("/sessions").headers["location"]


def test_a_disabled_tenant_is_signed_out_and_may_sign_in_to_read(
    browse: Browse, deployment: Any, operator_key: str
) -> None:
    key = deployment.new_key()
    browser, operator = browse(key), browse(operator_key)
    (row,) = browser.get("/v1/sessions").json()["data"]
    operator.call("POST", f"/v1/admin/tenants/{row['tenant_id']}/disable")
    assert not is_signed_in(browser)
    again = browse(key)
    assert is_signed_in(again)
    assert again.call("POST", "/v1/collections", json={"name": "x"}).json()["error"]["code"] == "tenant_disabled"
    assert again.call("DELETE", "/v1/sessions").json() == {"object": "sessions.deleted", "num_deleted": 1}


def test_a_key_sees_and_ends_its_own_sessions_alone(browse: Browse, deployment: Any) -> None:
    key = deployment.new_key()
    stranger, first, second = browse(deployment.new_key()), browse(key), browse(key)
    (theirs,) = stranger.get("/v1/sessions").json()["data"]
    newest, oldest = first.get("/v1/sessions").json()["data"]
    assert theirs["id"] not in first.get("/sessions").text
    assert (newest["user_agent"], newest["expires_at"] - newest["created_at"]) == (
        first.headers["user-agent"],
        7 * 86_400,
    )
    assert first.call("DELETE", f"/v1/sessions/{theirs['id']}").status_code == 404
    assert first.call("DELETE", f"/v1/sessions/{newest['id']}").json()["deleted"] is True
    assert (is_signed_in(first), is_signed_in(second), is_signed_in(stranger)) == (True, False, True)
    assert first.call("DELETE", f"/v1/sessions/{newest['id']}").status_code == 404
    ended = httpx.delete(f"{deployment.url}/v1/sessions", headers={"Authorization": f"Bearer {key}"})
    assert (ended.json()["num_deleted"], is_signed_in(first), oldest["object"]) == (1, False, "session")


def test_the_page_marks_this_browser_and_has_a_button_for_each(browse: Browse, deployment: Any) -> None:
    key = deployment.new_key()
    _, browser = browse(key), browse(key)
    page = browser.get("/sessions").text
    assert (page.count("this browser"), len(re.findall('data-call="DELETE /v1/sessions/session_', page))) == (1, 2)
    assert 'data-call="DELETE /v1/sessions"' in page
    assert "/v1/admin/" not in page
    assert 'href="/sessions"' in browser.get("/").text


def test_an_operator_sees_and_ends_the_sessions_of_all(browse: Browse, deployment: Any, operator_key: str) -> None:
    key = deployment.new_key()
    operator, first, second = browse(operator_key), browse(key), browse(key)
    newest, oldest = first.get("/v1/sessions").json()["data"]
    page = operator.get("/sessions").text
    assert (newest["id"] in page, oldest["id"] in page, 'data-call="DELETE /v1/admin/sessions"' in page) == (True,) * 3
    asked = {"key_id": newest["key_id"], "limit": "1"}
    one = operator.get("/v1/admin/sessions", params=asked).json()
    rest = operator.get("/v1/admin/sessions", params=asked | {"after": one["data"][0]["id"]}).json()
    assert [found["id"] for found in (*one["data"], *rest["data"])] == [newest["id"], oldest["id"]]
    assert (one["has_more"], rest["has_more"]) == (True, False)
    assert operator.get("/v1/admin/sessions", params={"key_id": "key_x"}).status_code == 404
    assert operator.call("DELETE", f"/v1/admin/sessions/{newest['id']}").json()["deleted"] is True
    assert operator.call("DELETE", f"/v1/admin/sessions/{newest['id']}").status_code == 404
    assert (is_signed_in(first), is_signed_in(second)) == (True, False)
    assert operator.call("DELETE", f"/v1/admin/keys/{newest['key_id']}/sessions").json()["num_deleted"] == 1
    assert not is_signed_in(first)
    logged = [entry["action"] for entry in operator.get("/v1/admin/log", params={"limit": 2}).json()["data"]]
    assert logged == ["key.end_sessions", "session.end"]
    assert operator.call("DELETE", "/v1/admin/sessions").json()["num_deleted"] >= 1
    assert operator.get("/").status_code == 303


def test_a_page_of_sessions_goes_on_where_it_ends(browse: Browse, deployment: Any) -> None:
    browser = browse(deployment.new_key())
    (row,) = browser.get("/v1/sessions").json()["data"]
    more = """INSERT INTO browser_session
            (id, token_hash, principal_kind, principal_id, key_hash, expires_at, user_agent)
        SELECT 'session_' || n, n, principal_kind, principal_id, key_hash, expires_at, '<b>' FROM browser_session,
        generate_series(1, 60) AS n WHERE id = :id"""
    change(deployment, more, id=row["id"])
    page = browser.get("/sessions").text
    older = re.search(r'href="(/sessions\?before=session_\w+)"', page)
    assert older is not None
    assert ("&lt;b&gt;" in page, "<b>" in page) == (True, False)
    assert browser.get(older[1]).text.count('data-call="DELETE /v1/sessions/') == 11


def every_value(session: Session) -> set[str]:
    """Return every text, number and time of every row of the database, including those inside JSON and lists."""
    found: set[str] = set()
    for table in Base.metadata.tables:
        for row in session.scalars(text(f'SELECT to_jsonb(one) FROM "{table}" AS one')):
            found.update(map(str, leaves(row)))
    return found


def leaves(value: Any) -> Iterator[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        yield value
    else:
        for each in inner:
            yield from leaves(each)


def test_who_has_the_whole_database_cannot_forge_a_session(browse: Browse, deployment: Any, operator_key: str) -> None:
    """As a cookie, as a key, as a secret that signs cookies, and as the token of a page."""
    victim = browse(operator_key)
    assert victim.get("/").status_code == 200
    with Session(deployment.engine) as session:
        values = every_value(session)
        hashes = list(session.scalars(text("SELECT key_hash FROM api_key WHERE tenant_id IS NULL")))
        (mine,) = session.scalars(
            text("SELECT token_hash FROM browser_session WHERE key_hash = ANY(:all)"), {"all": hashes}
        )
        assert {mine, *hashes} <= values
        cookies = values | {hashlib.sha256(value.encode()).hexdigest() for value in values}
        for value in cookies:
            assert browser_sessions.read(session, value) is None
            with pytest.raises(AuthenticationError):
                keys.authenticate(session, value)
    own_page_token = victim.token()
    assert own_page_token not in cookies
    tried = browse(None)
    for cookie in [mine, *hashes]:
        tried.cookies.clear()
        tried.cookies.set(COOKIE, cookie)
        assert tried.get("/v1/admin/keys").status_code == 401
    assert victim.get("/v1/admin/keys").status_code == 200
