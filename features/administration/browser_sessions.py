"""Operators' actions on browser sessions. The log has their ids and keys, but no part of a cookie."""

from __future__ import annotations

from jobs.accounts import browser_sessions
from jobs.admin_log import Admin
from jobs.tables import ApiKey

ALL = "all"
"""The subject of an entry about all sessions."""


def end(admin: Admin, session_id: str) -> str:
    """End a session and return its id. Raise NotFoundError."""
    session, key = browser_sessions.get_session(admin.session, session_id)
    browser_sessions.end(admin.session, session.id)
    before = {"key_id": key.id, "last_seen_at": session.last_seen_at}
    admin.note("session.end", session.id, tenant_id=key.tenant_id, before=before)
    return session.id


def end_of_key(admin: Admin, key: ApiKey) -> int:
    """End all sessions of a key; return how many were open."""
    num_ended = browser_sessions.end_of_key(admin.session, key.id)
    admin.note("key.end_sessions", key.id, tenant_id=key.tenant_id, after={"ended_sessions": num_ended})
    return num_ended


def end_all(admin: Admin) -> int:
    """End all sessions of all keys; return how many were open."""
    num_ended = browser_sessions.end_all(admin.session)
    admin.note("session.end_all", ALL, tenant_id=None, after={"ended_sessions": num_ended})
    return num_ended
