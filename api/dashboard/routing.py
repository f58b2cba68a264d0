"""Routes whose errors are HTML pages instead of the API's JSON envelopes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException

from api.dashboard.rendering import PAGE_HEADERS, render
from api.dashboard.viewer import SIGN_IN, SignInNeededError
from api.errors import describe_problem
from jobs.errors import InputError, ServiceError

_AWAY = "The database or the object store does not answer right now. Try again in a moment."


class PageRoute(APIRoute):
    """A page, or a request of a page."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler, which also resolves the dependencies."""
        handle = super().get_route_handler()

        async def handle_as_page(request: Request) -> Response:
            if "authorization" in request.headers:  # a program that left out /v1: it gets the API's error
                raise HTTPException(HTTPStatus.NOT_FOUND)
            try:
                return await handle(request)
            except SignInNeededError as error:
                return _to_sign_in(request, error)
            except InputError as error:
                return _failed(request, error.status, error.message)
            except RequestValidationError as error:
                message, _, _ = describe_problem(error.errors()[0])
                return _failed(request, HTTPStatus.BAD_REQUEST, message)
            except (ServiceError, OperationalError, InterfaceError, PoolTimeoutError):
                return _failed(request, HTTPStatus.SERVICE_UNAVAILABLE, _AWAY)

        return handle_as_page


def page_router() -> APIRouter:
    return APIRouter(include_in_schema=False, route_class=PageRoute)


def _to_sign_in(request: Request, error: SignInNeededError) -> Response:
    if request.url.path.startswith(("/live/", "/plots")):  # requested by a page's script, which needs no redirect
        return Response(status_code=HTTPStatus.UNAUTHORIZED, headers=PAGE_HEADERS)
    query = {"asked": error.path} | ({"reason": error.reason} if error.reason else {})
    return RedirectResponse(f"{SIGN_IN}?{urlencode(query)}", status_code=HTTPStatus.SEE_OTHER, headers=PAGE_HEADERS)


def _failed(request: Request, status: int, message: str) -> Response:
    return render(request, None, "failed.html", status=status, message=message, code=status)
