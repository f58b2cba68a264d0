"""`/sign-in` and `/sign-out`: exchange a key for a session cookie, and end the session."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import Form, Request, Response
from fastapi.responses import RedirectResponse

from api.auth import COOKIE
from api.dashboard.rendering import PAGE_HEADERS, render
from api.dashboard.routing import page_router
from api.dashboard.viewer import SIGN_IN, own_path
from api.origins import is_sent_by
from api.services import Services, ServicesDep
from jobs.accounts import browser_sessions
from jobs.accounts.keys import authenticate
from jobs.database import transaction
from jobs.errors import AuthenticationError

_LONGEST_KEY = 200

router = page_router()


@router.get(SIGN_IN, name="showSignIn")
def show(request: Request, asked: str = "/", reason: str = "") -> Response:
    return render(request, None, "sign_in.html", asked=own_path(asked), problem=reason)


@router.post(SIGN_IN, name="signIn")
async def sign_in(
    request: Request,
    services: ServicesDep,
    *,
    key: Annotated[str, Form(max_length=_LONGEST_KEY)] = "",
    asked: Annotated[str, Form()] = "/",
) -> Response:
    """Exchange a key for a session cookie; the session of the browser's previous cookie ends."""
    if not is_sent_by(request.headers, "same-origin"):
        return render(request, None, "sign_in.html", status=HTTPStatus.FORBIDDEN, asked="/", problem=_FOREIGN)
    try:
        async with services.session_slots:
            value = await run_sync(partial(_cookie_for, services, request, key.strip()))
    except AuthenticationError as error:
        request.state.refusal = error.code  # for the log
        return render(
            request, None, "sign_in.html", status=HTTPStatus.UNAUTHORIZED, asked=own_path(asked), problem=error.message
        )
    answer = RedirectResponse(own_path(asked), status_code=HTTPStatus.SEE_OTHER, headers=PAGE_HEADERS)
    answer.set_cookie(
        COOKIE,
        value,
        max_age=int(browser_sessions.LASTS.total_seconds()),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post("/sign-out", name="signOut")
async def sign_out(request: Request, services: ServicesDep) -> Response:
    """End the session of the browser's cookie. It needs no token, as other sites' pages cannot send the cookie."""
    if not is_sent_by(request.headers, "same-origin"):
        return render(request, None, "sign_in.html", status=HTTPStatus.FORBIDDEN, asked="/", problem=_FOREIGN)
    async with services.session_slots:
        await run_sync(_end, services, request)
    answer = RedirectResponse(SIGN_IN, status_code=HTTPStatus.SEE_OTHER, headers=PAGE_HEADERS)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


_FOREIGN = "The form was sent by another site. Open this page itself and sign in here."


def _cookie_for(services: Services, request: Request, key: str) -> str:
    with transaction(services.sessions) as session:
        caller = authenticate(session, key)
        browser_sessions.end_by_token(session, request.cookies.get(COOKIE, ""))
        user_agent = request.headers.get("user-agent", "")
        return browser_sessions.begin(session, key_id=caller.key_id, key_hash=caller.key_hash, user_agent=user_agent)


def _end(services: Services, request: Request) -> None:
    with transaction(services.sessions) as session:
        browser_sessions.end_by_token(session, request.cookies.get(COOKIE, ""))
