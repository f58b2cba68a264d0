"""The viewer of a page: the key of the browser's cookie, and a read-only transaction for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import anyio.to_thread
from fastapi import Depends, Request
from sqlalchemy.orm import Session

from api.auth import COOKIE, browser_caller
from api.services import Services, ServicesDep
from jobs.accounts.keys import Caller
from jobs.database import transaction
from jobs.errors import AuthenticationError, ForbiddenError
from jobs.states import Scope
from jobs.tables import Tenant

SIGN_IN = "/sign-in"


class SignInNeededError(Exception):
    """The browser is not signed in; it is sent to the form and returns to `path` afterwards."""

    def __init__(self, path: str, reason: str | None = None) -> None:
        super().__init__(reason or "not signed in")
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A signed-in key: the tenant it sees, and what it may do."""

    caller: Caller
    session_id: str
    token: str
    """The CSRF token that its pages send with each change."""

    @property
    def tenant(self) -> Tenant | None:
        """The key's tenant; None for an operator, who sees all tenants."""
        return self.caller.tenant

    @property
    def tenant_id(self) -> str | None:
        return None if self.caller.tenant is None else self.caller.tenant.id

    @property
    def is_operator(self) -> bool:
        return self.caller.tenant is None

    @property
    def may_submit(self) -> bool:
        return self.no_submit is None

    @property
    def no_submit(self) -> str | None:
        """The API's reason to refuse changes; None if it allows them."""
        try:
            self.caller.require(Scope.SUBMIT)
        except ForbiddenError as error:
            return error.message
        return None

    @property
    def name(self) -> str:
        return "Operator" if self.caller.tenant is None else self.caller.tenant.name


async def view(request: Request, services: ServicesDep) -> Viewer:
    """Return the viewer of a page. Raise SignInNeededError without a valid cookie."""
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if COOKIE not in request.cookies:
        raise SignInNeededError(path)
    async with services.session_slots:
        try:
            viewer = await anyio.to_thread.run_sync(_viewer_of, services, request)
        except (AuthenticationError, ForbiddenError) as error:
            raise SignInNeededError(path, error.message) from None
    request.state.tenant_id, request.state.key_id = viewer.tenant_id, viewer.caller.key_id  # for the log
    return viewer


def _viewer_of(services: Services, request: Request) -> Viewer:
    with transaction(services.sessions) as session:
        caller, signed_in = browser_caller(session, request)
        if caller.tenant is not None:
            caller.require(Scope.READ)
        return Viewer(caller=caller, session_id=signed_in.session_id, token=signed_in.page_token)


ViewerDep = Annotated[Viewer, Depends(view)]


async def _hold_slot(services: ServicesDep, _viewer: ViewerDep) -> AsyncIterator[None]:
    async with services.session_slots:
        yield


def _open_reading(
    services: ServicesDep, _slot: Annotated[None, Depends(_hold_slot, scope="function")]
) -> Iterator[Session]:
    with transaction(services.sessions) as session:
        yield session


ReadingDep = Annotated[Session, Depends(_open_reading, scope="function")]
"""The single transaction of a page."""


def own_path(asked: str) -> str:
    """Return where to go after signing in: a path of this site, or the first page for anything else."""
    parts = urlsplit(asked)
    is_ours = not parts.scheme and not parts.netloc and asked.startswith("/") and not asked.startswith(("//", "/\\"))
    return asked if is_ours else "/"
