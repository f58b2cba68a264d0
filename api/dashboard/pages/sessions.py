"""`/sessions`: the browser sessions of the viewer's key or, for operators, of all keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ReadingDep, ViewerDep
from api.fields import ObjectId, StrictModel
from jobs.accounts.browser_sessions import list_sessions

router = page_router()

_SESSIONS = 50


class SessionsQuery(StrictModel):
    before: ObjectId | None = None


@router.get("/sessions", name="showSessions")
def show(
    request: Request, session: ReadingDep, *, viewer: ViewerDep, query: Annotated[SessionsQuery, Query()]
) -> Response:
    key_id = None if viewer.is_operator else viewer.caller.key_id
    rows = list_sessions(session, key_id=key_id, before_id=query.before, limit=_SESSIONS + 1)
    more = rows[_SESSIONS - 1][0].id if len(rows) > _SESSIONS else None
    return render(request, viewer, "sessions.html", sessions=rows[:_SESSIONS], more=more)
