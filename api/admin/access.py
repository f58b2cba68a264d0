"""Who administers: the operator's key behind a request, in the request's transaction."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from api.auth import CallerDep
from api.sessions import SessionDep
from jobs.administration.log import Actor, Admin


def admin_of(session: SessionDep, caller: CallerDep) -> Admin:
    """Return the operator at work, whose entries in the admin log name the key."""
    return Admin(session=session, actor=Actor.of_key(caller.key_id))


AdminDep = Annotated[Admin, Depends(admin_of)]
