"""`/batches/{id}/lines`: a batch's lines by failure, code and status; `…/{number}`: one line beside its request."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal

from anyio.to_thread import run_sync
from fastapi import Path, Query, Request, Response
from pydantic import Field

from api.dashboard.rendering import render
from api.dashboard.routing import page_router
from api.dashboard.viewer import ViewerDep
from api.fields import Storable, StrictModel
from api.services import Services, ServicesDep
from api.spending import AT_ONCE
from features.lines.content import prompt_of, readable, said
from features.lines.http.access import WholeLine, opened, read, read_one
from features.lines.http.lines import MAX_NUMBER
from features.lines.http.threads import threads_of
from features.lines.reader import LineFilter
from features.lines.schemas import LineList, LineObject, WholeLineObject
from jobs.batches import lifecycle
from jobs.database import transaction

router = page_router()

PAGE = 50


class Shown(StrEnum):
    """Which lines a list shows."""

    ALL = "all"
    FAILED = "failed"
    COMPLETED = "completed"


_IS_ERROR = {Shown.ALL: None, Shown.FAILED: True, Shown.COMPLETED: False}


class LinesPageQuery(StrictModel):
    show: Shown = Shown.ALL
    code: Annotated[Storable, Field(max_length=200)] = ""
    status: Annotated[int, Field(ge=100, le=599)] | Literal[""] = ""
    after: Annotated[int, Field(ge=0, lt=MAX_NUMBER)] | Literal[""] = 0

    def wanted(self) -> LineFilter:
        status = None if self.status == "" else self.status
        return LineFilter(is_error=_IS_ERROR[self.show], code=self.code or None, status_code=status)

    def changed(self, **values: Any) -> dict[str, Any]:
        """Return the query with other values, without those that select nothing."""
        query = self.model_dump(mode="json") | values
        return {name: value for name, value in query.items() if value not in ("", "all", 0)}


@router.get("/batches/{batch_id}/lines", name="showLines")
async def show(
    batch_id: str,
    request: Request,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[LinesPageQuery, Query()],
) -> Response:
    tenant_id = viewer.caller.owner().id
    first_line = query.after or 0
    with services.in_flight.hold(tenant_id, "listings", allowed=AT_ONCE):
        lines = await opened(services, tenant_id, batch_id)
        call = partial(lines.reader.page, query.wanted(), first_line=first_line, limit=PAGE)
        page = await read(services, lines, call, limiter=threads_of(services).pages)
        listed = await run_sync(LineList.of, page, lines, limiter=threads_of(services).pages)
    return render(
        request,
        viewer,
        "lines.html",
        batch_id=batch_id,
        batch_name=await _name(services, tenant_id, batch_id),
        page=listed,
        query=query,
        filters=Shown,
    )


@router.get("/batches/{batch_id}/lines/{number}", name="showLine")
async def show_one(
    batch_id: str,
    number: Annotated[int, Path(ge=1, lt=MAX_NUMBER)],
    request: Request,
    *,
    viewer: ViewerDep,
    services: ServicesDep,
    query: Annotated[LinesPageQuery, Query()],
) -> Response:
    tenant_id = viewer.caller.owner().id
    with services.in_flight.hold(tenant_id, "listings", allowed=AT_ONCE):
        whole = await read_one(services, tenant_id, batch_id, number - 1)
        following = await _following(services, tenant_id, batch_id, query.wanted(), after=number)
        parts = await run_sync(_parts_of, whole, limiter=threads_of(services).pages)
    return render(
        request,
        viewer,
        "line.html",
        batch_id=batch_id,
        batch_name=await _name(services, tenant_id, batch_id),
        following=following,
        query=query,
        **parts,
    )


async def _following(
    services: Services, tenant_id: str, batch_id: str, wanted: LineFilter, *, after: int
) -> LineObject | None:
    lines = await opened(services, tenant_id, batch_id)
    call = partial(lines.reader.page, wanted, first_line=after, limit=1)
    page = await read(services, lines, call, limiter=threads_of(services).pages)
    if not page.lines:
        return None
    return await run_sync(LineObject.of, page.lines[0], limiter=threads_of(services).pages)


def _parts_of(whole: WholeLine) -> dict[str, Any]:
    """Return the variables of a line's page that are made of it, in a thread: it may have megabytes."""
    line = WholeLineObject.of_whole(whole)
    return {
        "line": line,
        "prompt": prompt_of(line.request),
        "answer": said(line.result),
        "request_json": readable(whole.request) if isinstance(whole.request, bytes) else None,
        "result_json": readable(whole.line.content),
    }


async def _name(services: Services, tenant_id: str, batch_id: str) -> str:
    async with services.session_slots:
        return await run_sync(_name_of, services, tenant_id, batch_id)


def _name_of(services: Services, tenant_id: str, batch_id: str) -> str:
    with transaction(services.sessions) as session:
        return lifecycle.get_batch(session, tenant_id, batch_id).name or batch_id
