"""The operator of a request: its key, with the request's transaction or with several separate ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends

from api.auth import CallerDep
from api.services import ServicesDep
from api.sessions import SessionDep, SlotDep
from jobs.admin_log import Actor, Admin, Administration
from jobs.database import transaction


def admin_of(session: SessionDep, caller: CallerDep) -> Admin:
    """Return the acting operator, whose entries in the admin log name the key."""
    return Admin(session=session, actor=Actor.of_key(caller.key_id))


AdminDep = Annotated[Admin, Depends(admin_of)]


def administration_of(services: ServicesDep, caller: CallerDep, _slot: SlotDep) -> Administration:
    """Return a function that begins a transaction of the acting operator, for requests with several transactions."""

    @contextmanager
    def begin() -> Iterator[Admin]:
        with transaction(services.sessions) as session:
            yield admin_of(session, caller)

    return begin


AdministrationDep = Annotated[Administration, Depends(administration_of)]
