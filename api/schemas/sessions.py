"""Browser sessions, for their key and for operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from sqlalchemy import Row

from api.schemas.wire import DeletedObject, WholeList, WireModel, unix_seconds
from jobs.tables import ApiKey, BrowserSession


class SessionObject(WireModel):
    id: str
    object: Literal["session"] = "session"
    created_at: int
    last_seen_at: int
    """Accurate to five minutes. A session ends twelve hours after its last request."""
    expires_at: int
    """When it ends at the latest, even in use."""
    key_id: str
    tenant_id: str | None
    """Null for an operator's session."""
    user_agent: str
    """The browser's user agent at sign-in, up to 200 characters."""

    @classmethod
    def of(cls, session: BrowserSession, key: ApiKey) -> Self:
        return cls(
            id=session.id,
            created_at=unix_seconds(session.created_at),
            last_seen_at=unix_seconds(session.last_seen_at),
            expires_at=unix_seconds(session.expires_at),
            key_id=key.id,
            tenant_id=key.tenant_id,
            user_agent=session.user_agent,
        )


class SessionList(WholeList[SessionObject]):
    """The open sessions, newest first."""


class SessionPage(WireModel):
    """Newest first."""

    object: Literal["list"] = "list"
    data: list[SessionObject]
    has_more: bool
    """Whether another page follows, after the `id` of the last session."""


class EndedSession(DeletedObject):
    object: Literal["session.deleted"] = "session.deleted"


class EndedSessions(WireModel):
    object: Literal["sessions.deleted"] = "sessions.deleted"
    num_deleted: int
    """How many sessions were open."""


def session_objects(rows: Sequence[Row[BrowserSession, ApiKey]]) -> list[SessionObject]:
    return [SessionObject.of(session, key) for session, key in rows]
