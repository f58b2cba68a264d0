"""`/v1/sessions`: the browser sessions of the caller's key."""

from __future__ import annotations

from fastapi import APIRouter

from api.auth import KeyIdDep
from api.openapi import failures
from api.schemas.sessions import EndedSession, EndedSessions, SessionList, session_objects
from api.sessions import SessionDep
from jobs.accounts import browser_sessions

router = APIRouter(prefix="/v1/sessions", tags=["sessions"], responses=failures(401, 403, 429, 503))


@router.get("", operation_id="listSessions")
def list_of_key(session: SessionDep, *, key_id: KeyIdDep) -> SessionList:
    return SessionList(data=session_objects(browser_sessions.list_sessions(session, key_id=key_id)))


@router.delete("", operation_id="endSessions")
def end_all(session: SessionDep, *, key_id: KeyIdDep) -> EndedSessions:
    """End all sessions of the key, including the caller's."""
    return EndedSessions(num_deleted=browser_sessions.end_of_key(session, key_id))


@router.delete("/{session_id}", operation_id="endSession", responses=failures(404))
def end(session_id: str, session: SessionDep, *, key_id: KeyIdDep) -> EndedSession:
    browser_session, _ = browser_sessions.get_session(session, session_id, key_id=key_id)
    browser_sessions.end(session, browser_session.id)
    return EndedSession(id=browser_session.id)
