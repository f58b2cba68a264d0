"""`/v1/admin/sessions` and `/v1/admin/keys/{key_id}/sessions`: the browser sessions of all keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from api.fields import ObjectId, StrictModel
from api.openapi import failures
from api.schemas.sessions import EndedSession, EndedSessions, SessionPage, session_objects
from features.administration import browser_sessions
from features.administration.http.access import AdminDep
from jobs.accounts.browser_sessions import list_sessions
from jobs.accounts.keys import get_key

MAX_PAGE = 1000

router = APIRouter(prefix="/v1/admin", tags=["admin"], responses=failures(401, 403, 503))


class SessionQuery(StrictModel):
    key_id: ObjectId | None = None
    """Only sessions of this key."""
    after: ObjectId | None = None
    """The `id` of the last session of the previous page."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


@router.get("/sessions", operation_id="listAllSessions", responses=failures(404))
def list_all(admin: AdminDep, query: Annotated[SessionQuery, Query()]) -> SessionPage:
    key_id = None if query.key_id is None else get_key(admin.session, query.key_id).id
    rows = list_sessions(admin.session, key_id=key_id, before_id=query.after, limit=query.limit + 1)
    return SessionPage(data=session_objects(rows[: query.limit]), has_more=len(rows) > query.limit)


@router.delete("/sessions", operation_id="endAllSessions")
def end_all(admin: AdminDep) -> EndedSessions:
    """End all sessions of all keys, including the caller's."""
    return EndedSessions(num_deleted=browser_sessions.end_all(admin))


@router.delete("/sessions/{session_id}", operation_id="endAnySession", responses=failures(404))
def end(session_id: str, admin: AdminDep) -> EndedSession:
    return EndedSession(id=browser_sessions.end(admin, session_id))


@router.delete("/keys/{key_id}/sessions", operation_id="endSessionsOfKey", responses=failures(404))
def end_of_key(key_id: str, admin: AdminDep) -> EndedSessions:
    return EndedSessions(num_deleted=browser_sessions.end_of_key(admin, get_key(admin.session, key_id)))
