"""The transaction of an authenticated request: begun after authentication, committed before the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy.orm import Session

from api.auth import CallerDep
from api.services import ServicesDep
from jobs.database import transaction


async def hold_session_slot(services: ServicesDep, _caller: CallerDep) -> AsyncIterator[None]:
    """Wait for a slot only after authentication, which needs one itself: otherwise all could wait for a second one."""
    async with services.session_slots:
        yield


SlotDep = Annotated[None, Depends(hold_session_slot, scope="function")]


def open_session(services: ServicesDep, _slot: SlotDep) -> Iterator[Session]:
    """Run one transaction per request: committed when the endpoint returns, rolled back when it raises."""
    with transaction(services.sessions) as session:
        yield session


# scope="function" commits before the answer. FastAPI's default commits after it, so that "created" could be wrong.
SessionDep = Annotated[Session, Depends(open_session, scope="function")]
