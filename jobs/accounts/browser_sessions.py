"""Browser sessions: rows by the hash of a random token that only the browser's cookie holds.

A session ends after IDLE without a request, after LASTS at most, when it is ended explicitly, and with the key's secret
that signed in.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, select, text
from sqlalchemy.orm import Session

from jobs.accounts.secret_hashes import hash_secret
from jobs.errors import NotFoundError
from jobs.ids import new_id
from jobs.states import PrincipalKind
from jobs.tables import ApiKey, BrowserSession

IDLE = timedelta(hours=12)
LASTS = timedelta(days=7)
MAX_SESSIONS = 100
"""Per key: a further one ends the least recently used, as a program may sign in repeatedly."""
SEEN_EVERY = timedelta(minutes=5)
"""Requests within this time of the last recorded one write nothing."""
MAX_USER_AGENT_CHARACTERS = 200
_TOKEN_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """The session behind a cookie's token."""

    session_id: str
    key_hash: str
    """Hash of the secret that signed in, which may have ended: `jobs.accounts.keys.authenticate_hash`."""
    page_token: str
    """Token that our pages send with every change; it cannot be derived from the rows."""


def begin(session: Session, *, key_id: str, key_hash: str, user_agent: str) -> str:
    """Begin a session of a key and return its token, which is not stored."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    begun = BrowserSession(
        id=new_id("session"),
        token_hash=hash_secret(token),
        principal_kind=PrincipalKind.KEY.value,
        principal_id=key_id,
        key_hash=key_hash,
        expires_at=func.now() + LASTS,
        user_agent="".join(filter(str.isprintable, user_agent))[:MAX_USER_AGENT_CHARACTERS],
    )
    session.add(begun)
    session.flush()
    session.execute(_END_SURPLUS, {"key_id": key_id, "kept": MAX_SESSIONS})
    return token


def read(session: Session, token: str) -> SignedIn | None:
    """Return the session of a token and occasionally record its use; None where there is none."""
    row = session.execute(_READ, {"token_hash": hash_secret(token)}).one_or_none()
    if row is None:
        return None
    if not row.is_noted:
        session.execute(_NOTE_SEEN, {"id": row.id})
    return SignedIn(session_id=row.id, key_hash=row.key_hash, page_token=_page_token(token, row.id))


def list_sessions(
    session: Session, *, key_id: str | None = None, before_id: str | None = None, limit: int = MAX_SESSIONS
) -> Sequence[Row[BrowserSession, ApiKey]]:
    """Return open sessions of one key or of all, with their keys, newest first; only those before `before_id`."""
    query = _OPEN.order_by(BrowserSession.id.desc()).limit(limit)
    if key_id is not None:
        query = query.where(BrowserSession.principal_id == key_id)
    return session.execute(query if before_id is None else query.where(BrowserSession.id < before_id)).all()


def get_session(session: Session, session_id: str, *, key_id: str | None = None) -> tuple[BrowserSession, ApiKey]:
    """Return an open session with its key, optionally of this key only. Raises NotFoundError."""
    query = _OPEN.where(BrowserSession.id == session_id)
    row = session.execute(query if key_id is None else query.where(BrowserSession.principal_id == key_id)).first()
    if row is None:
        raise NotFoundError("there is no open session with this id; lists of sessions show the ids")
    return row[0], row[1]


def end(session: Session, session_id: str) -> None:
    """End a session."""
    _end(session, BrowserSession.id == session_id)


def end_by_token(session: Session, token: str) -> None:
    """End the session of a token, if there is one."""
    _end(session, BrowserSession.token_hash == hash_secret(token))


def end_of_key(session: Session, key_id: str) -> int:
    """End all sessions of a key; return how many were open."""
    return _end(session, _IS_OF_KEY, BrowserSession.principal_id == key_id)


def end_of_tenant(session: Session, tenant_id: str) -> int:
    """End all sessions of a tenant's keys; return how many were open."""
    keys = select(ApiKey.id).where(ApiKey.tenant_id == tenant_id)
    return _end(session, _IS_OF_KEY, BrowserSession.principal_id.in_(keys))


def end_all(session: Session) -> int:
    """End all sessions; return how many were open."""
    return _end(session)


def forget_ended(session: Session) -> int:
    """Delete the rows of expired sessions; return how many."""
    return len(session.execute(delete(BrowserSession).where(~_IS_IN_TIME).returning(BrowserSession.id)).all())


def _end(session: Session, *which: ColumnElement[bool]) -> int:
    """Delete rows; return how many of them had not expired."""
    return sum(session.scalars(delete(BrowserSession).where(*which).returning(_IS_IN_TIME)))


def _page_token(token: str, session_id: str) -> str:
    return hmac.digest(token.encode(), f"page of {session_id}".encode(), "sha256").hex()


_IS_OF_KEY = BrowserSession.principal_kind == PrincipalKind.KEY.value
_IS_IN_TIME = (BrowserSession.expires_at > func.now()) & (BrowserSession.last_seen_at > func.now() - IDLE)
_HAS_SECRET = (BrowserSession.key_hash == ApiKey.key_hash) | (
    (BrowserSession.key_hash == ApiKey.previous_hash) & (ApiKey.previous_until > func.now())
)
_IS_KEY_OPEN = ApiKey.revoked_at.is_(None) & (ApiKey.expires_at.is_(None) | (ApiKey.expires_at > func.now()))
_OPEN = (
    select(BrowserSession, ApiKey)
    .join(ApiKey, _IS_OF_KEY & (ApiKey.id == BrowserSession.principal_id))
    .where(_IS_IN_TIME, _HAS_SECRET, _IS_KEY_OPEN)
)
# Built once: each request of a browser runs it.
_READ = select(
    BrowserSession.id,
    BrowserSession.key_hash,
    (BrowserSession.last_seen_at >= func.now() - SEEN_EVERY).label("is_noted"),
).where(BrowserSession.token_hash == bindparam("token_hash"), _IS_OF_KEY, _IS_IN_TIME)
# Skipped where it would have to wait: of many requests at once one records the use.
_NOTE_SEEN = text("""
    UPDATE browser_session SET last_seen_at = now() WHERE id = (
        SELECT id FROM browser_session WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED
    )
""")
# Two concurrent sign-ins end the same sessions: the second waits for none of them.
_END_SURPLUS = text("""
    DELETE FROM browser_session WHERE id IN (
        SELECT id FROM browser_session WHERE id IN (
            SELECT id FROM browser_session WHERE principal_kind = 'key' AND principal_id = :key_id
            ORDER BY last_seen_at DESC, id DESC OFFSET :kept
        ) FOR UPDATE SKIP LOCKED
    )
""")
