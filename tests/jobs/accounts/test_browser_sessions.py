"""Tests of browser sessions: the tokens that open one, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import browser_sessions, keys, tenants
from jobs.errors import NotFoundError
from jobs.tables import ApiKey, Tenant

DAY = timedelta(days=1)
End = Callable[[Session, ApiKey, Tenant], object]


@pytest.fixture
def key(session: Session, tenant: Tenant) -> ApiKey:
    return keys.create_key(session, tenant.id)[0]


def begin(session: Session, key: ApiKey, user_agent: str = "Firefox") -> str:
    return browser_sessions.begin(session, key_id=key.id, key_hash=key.key_hash, user_agent=user_agent)


def make_older(session: Session, column: str, by: timedelta) -> None:
    session.execute(text(f"UPDATE browser_session SET {column} = {column} - :by"), {"by": by})
    session.commit()  # starts another transaction time


def listed(session: Session, **of: Any) -> list[str]:
    return [found.id for found, _ in browser_sessions.list_sessions(session, **of)]


def test_a_token_opens_its_session_and_no_other_text_does(session: Session, key: ApiKey) -> None:
    token = begin(session, key)
    found = browser_sessions.read(session, token)
    assert found is not None
    assert (found.key_hash, [found.session_id]) == (key.key_hash, listed(session))
    for wrong in ("", token[:-1], token + "a", found.session_id, found.page_token, "é" * 99):
        assert browser_sessions.read(session, wrong) is None


def test_no_row_has_the_token_or_what_pages_send(session: Session, key: ApiKey) -> None:
    token = begin(session, key)
    found = browser_sessions.read(session, token)
    assert found is not None
    stored = str(session.scalar(text("SELECT browser_session::text FROM browser_session")))
    assert (token in stored, found.page_token in stored) == (False, False)


def test_what_pages_send_is_of_one_session_alone(session: Session, key: ApiKey) -> None:
    tokens = [begin(session, key) for _ in range(2)]
    sent = [found.page_token for token in tokens for _ in range(2) if (found := browser_sessions.read(session, token))]
    assert (sent[0] == sent[1], sent[2] == sent[3], sent[0] == sent[2]) == (True, True, False)


@pytest.mark.parametrize(
    ("column", "by", "is_open"),
    [
        ("last_seen_at", timedelta(hours=11, minutes=59), True),
        ("last_seen_at", timedelta(hours=12), False),
        ("expires_at", timedelta(days=6, hours=23, minutes=59), True),
        ("expires_at", timedelta(days=7), False),
    ],
)
def test_a_session_ends_after_twelve_idle_hours_and_after_seven_days(
    session: Session, key: ApiKey, column: str, *, by: timedelta, is_open: bool
) -> None:
    token = begin(session, key)
    make_older(session, column, by)
    assert len(listed(session)) == is_open
    assert browser_sessions.forget_ended(session) == (not is_open)
    assert (browser_sessions.read(session, token) is not None) == is_open


def test_use_keeps_a_session_open_but_for_no_longer_than_its_end(session: Session, key: ApiKey) -> None:
    token = begin(session, key)
    for _ in range(14):
        make_older(session, "last_seen_at", timedelta(hours=11, minutes=59))
        assert browser_sessions.read(session, token) is not None
    make_older(session, "expires_at", timedelta(days=7))
    assert browser_sessions.read(session, token) is None


def test_requests_of_five_minutes_write_once(session: Session, key: ApiKey, statements: list[tuple[str, Any]]) -> None:
    def written() -> int:
        statements.clear()
        assert browser_sessions.read(session, token) is not None
        session.commit()
        return sum("UPDATE" in statement for statement, _ in statements)

    token = begin(session, key)
    assert [written(), written()] == [0, 0]
    make_older(session, "last_seen_at", timedelta(minutes=6))
    assert [written(), written()] == [1, 0]


def rotate(session: Session, key: ApiKey, _: Tenant) -> object:
    return keys.rotate_key(session, key, overlap=DAY)


ENDS: dict[str, End] = {
    "revoked": lambda session, key, _: keys.revoke_key(session, key),
    "rotated": rotate,
    "tenant deleted": lambda session, _, tenant: keys.revoke_keys(session, tenant.id),
    "tenant disabled": lambda session, _, tenant: tenants.set_disabled(session, tenant, is_disabled=True),
    "all of the key": lambda session, key, _: browser_sessions.end_of_key(session, key.id),
    "all of the tenant": lambda session, _, tenant: browser_sessions.end_of_tenant(session, tenant.id),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_key_ends_with_all_its_sessions_and_with_no_others(
    session: Session, tenant: Tenant, key: ApiKey, end: End
) -> None:
    tokens = [begin(session, key) for _ in range(2)]
    other = begin(session, keys.create_key(session, tenants.create_tenant(session, "other").id)[0])
    end(session, key, tenant)
    assert [browser_sessions.read(session, token) for token in tokens] == [None, None]
    assert listed(session, key_id=key.id) == []
    assert browser_sessions.read(session, other) is not None


@pytest.mark.parametrize(
    "change",
    [
        "expires_at = now()",  # the key expires,
        "revoked_at = now()",  # or is revoked without ending its sessions,
        "previous_hash = key_hash, previous_until = now(), key_hash = 'new'",  # or its overlap has ended
    ],
)
def test_a_session_of_a_secret_that_has_ended_is_listed_no_more(session: Session, key: ApiKey, change: str) -> None:
    token = begin(session, key)
    found = browser_sessions.read(session, token)
    assert found is not None
    session.execute(text(f"UPDATE api_key SET {change}"))
    assert listed(session) == []
    with pytest.raises(NotFoundError):
        browser_sessions.get_session(session, found.session_id)


def test_one_session_is_ended_and_the_others_stay(session: Session, key: ApiKey) -> None:
    tokens = [begin(session, key) for _ in range(3)]
    newest, second, oldest = listed(session)
    browser_sessions.end(session, newest)
    browser_sessions.end_by_token(session, tokens[1])
    browser_sessions.end_by_token(session, "unknown")
    assert listed(session) == [oldest]
    with pytest.raises(NotFoundError):
        browser_sessions.get_session(session, second)
    assert browser_sessions.end_all(session) == 1


def test_sessions_of_another_key_are_not_found(session: Session, tenant: Tenant, key: ApiKey) -> None:
    begin(session, key)
    (session_id,) = listed(session)
    other = keys.create_key(session, tenant.id)[0]
    with pytest.raises(NotFoundError):
        browser_sessions.get_session(session, session_id, key_id=other.id)
    assert browser_sessions.get_session(session, session_id, key_id=key.id)[1].id == key.id


def test_pages_of_sessions_go_on_where_the_one_before_ended(session: Session, key: ApiKey) -> None:
    for _ in range(3):
        begin(session, key)
    first = listed(session, limit=2)
    assert len(listed(session, before_id=first[-1], limit=2)) == 1
    assert sorted([*first, *listed(session, before_id=first[-1])], reverse=True) == listed(session)


def test_of_too_many_sessions_the_one_that_was_used_longest_ago_ends(
    session: Session, key: ApiKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser_sessions, "MAX_SESSIONS", 2)
    tokens = [begin(session, key) for _ in range(2)]
    session.commit()
    session.execute(text("UPDATE browser_session SET last_seen_at = last_seen_at - interval '1 hour'"))
    make_older(session, "last_seen_at", timedelta(minutes=10))
    assert browser_sessions.read(session, tokens[0]) is not None  # used again
    session.commit()
    tokens.append(begin(session, key))
    assert [browser_sessions.read(session, token) is not None for token in tokens] == [True, False, True]


def test_of_a_user_agent_what_can_be_printed_is_kept(session: Session, key: ApiKey) -> None:
    begin(session, key, "Fire\x00fox\x1b[31m\u202e " + "x" * 500)
    (kept,) = [found.user_agent for found, _ in browser_sessions.list_sessions(session)]
    assert kept == ("Firefox[31m " + "x" * 500)[:200]
