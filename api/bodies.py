"""Bodies of megabytes: read after authentication, and parsed outside the event loop.

FastAPI parses a body before authentication, and on the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from anyio.to_thread import run_sync
from fastapi import Request

from api.auth import TenantDep
from api.fields import StrictModel
from api.middleware.guard import MAX_JSON_BYTES
from api.parsing.parsed import Body, parsed
from api.services import ServicesDep


def signed_in_body(model: type[Body]) -> Callable[..., Awaitable[Body]]:
    """Return a dependency that reads a JSON body as `model`; `described` documents it in the schema.

    A tenant's large bodies are read and parsed one after another, as each takes megabytes and the parser's time.
    """

    async def read(request: Request, services: ServicesDep, *, tenant: TenantDep) -> Body:
        kind = request.headers.get("content-type", "")
        if not _may_be_large(request):
            content = await request.body()
            return await run_sync(parsed, model, content, kind, limiter=services.store.upload_threads)
        async with services.in_flight.turn(tenant.id, "large bodies", allowed=1):
            return await services.parser.parsed(model, await request.body(), kind)

    return read


def described(model: type[StrictModel]) -> dict[str, Any]:
    """Return the `openapi_extra` of a route with such a body; the app's `body_models` must include the model."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _may_be_large(request: Request) -> bool:
    announced = request.headers.get("content-length", "")
    return int(announced) > MAX_JSON_BYTES if announced.isdecimal() else "transfer-encoding" in request.headers
