"""Sessions of browsers, as their key and operators see them."""

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
    """To five minutes. It ends twelve hours after its last request."""
    expires_at: int
    """When it ends at the latest."""
    key_id: str
    tenant_id: str | None
    """Null: an operator's."""
    user_agent: str
    """What the browser called itself when it signed in, the first 200 characters."""

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
    """The open ones, the newest first."""


class SessionPage(WireModel):
    """The newest first."""

    object: Literal["list"] = "list"
    data: list[SessionObject]
    has_more: bool
    """Another page with at least one session follows: after the last one's `id`."""


class EndedSession(DeletedObject):
    object: Literal["session.deleted"] = "session.deleted"


class EndedSessions(WireModel):
    object: Literal["sessions.deleted"] = "sessions.deleted"
    num_deleted: int
    """How many were open."""


def session_objects(found: Sequence[Row[BrowserSession, ApiKey]]) -> list[SessionObject]:
    return [SessionObject.of(session, key) for session, key in found]
