"""`GET /v1/batches/{id}/events`: a batch's changes as server-sent events, until it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import StreamingResponse

from api.auth import TenantDep
from api.batches.looks import BatchLook, BatchLooks, look_at
from api.openapi import failures, headers
from api.services import ServicesDep
from api.spending import ONE_STREAM

router = APIRouter(prefix="/v1/batches", tags=["batches"], responses=failures(401, 403, 429, 503))

KIND = "text/event-stream"
MAX_SECONDS = 600.0
"""Then the client must reconnect and authenticate again, so that a revoked key stops reading."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}  # nginx would buffer events
_EVENTS = {
    "description": "Events `batch`, whose data is a BatchObject in one line; comments while nothing changes.",
    "headers": headers({"cache-control": "`no-store`."}),
    "content": {KIND: {"schema": {"type": "string"}}},
}
_NOTHING_NEW = {"description": "The batch has ended, and `last-event-id` is that of its last event: do not reconnect."}


@router.get(
    "/{batch_id}/events",
    operation_id="streamBatch",
    response_class=Response,
    responses={200: _EVENTS, 204: _NOTHING_NEW, **failures(404)},
    dependencies=[ONE_STREAM],
)
async def stream(
    batch_id: str,
    request: Request,
    *,
    tenant: TenantDep,
    services: ServicesDep,
    last_event_id: Annotated[str | None, Header(max_length=100)] = None,
) -> Response:
    """Send the whole batch now and at each change, and end when the batch has ended.

    An event's id identifies its content: with it as `last-event-id`, an unchanged batch is not sent again.
    """
    async with services.session_slots:
        first = await run_sync(look_at, services, tenant.id, batch_id)
    if first.has_ended and first.id == last_event_id:
        return Response(status_code=204)
    looks: BatchLooks = request.app.state.looks
    return StreamingResponse(
        _written(looks.watch(batch_id, first, seen=last_event_id)), media_type=KIND, headers=_HEADERS
    )


async def _written(looks: AsyncIterator[BatchLook | None]) -> AsyncIterator[str]:
    yield "retry: 2000\n\n"  # milliseconds that a client waits before it reconnects
    end = anyio.current_time() + MAX_SECONDS
    async for look in looks:
        yield ": nothing has changed\n\n" if look is None else f"id: {look.id}\nevent: batch\ndata: {look.content}\n\n"
        if anyio.current_time() >= end:
            return
