"""Bodies of megabytes: read once the caller is signed in, and parsed beside the event loop.

FastAPI parses a body before it asks who sends it, and on the event loop.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from email.message import Message
from typing import Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from api.auth import TenantDep
from api.fields import StrictModel
from api.services import ServicesDep

Body = TypeVar("Body", bound=StrictModel)


def signed_in_body(model: type[Body]) -> Callable[..., Awaitable[Body]]:
    """Return a dependency that reads a JSON body as `model`; `described` says so in the schema."""

    async def read(request: Request, services: ServicesDep, *, _tenant: TenantDep) -> Body:
        content, kind = await request.body(), request.headers.get("content-type", "")
        return await run_sync(_parsed, model, content, kind, limiter=services.store.upload_threads)

    return read


def described(model: type[StrictModel]) -> dict[str, Any]:
    """Describe such a body, as `openapi_extra` of a route; the app's `body_models` must have the model."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _parsed(model: type[Body], content: bytes, kind: str) -> Body:
    """Raises RequestValidationError, which says what FastAPI would."""
    try:
        given = json.loads(content) if content and _is_json(kind) else None
    except (ValueError, RecursionError):
        raise RequestValidationError([{"type": "json_invalid", "loc": ("body",)}]) from None
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise RequestValidationError([{**problem, "loc": ("body", *problem["loc"])} for problem in problems]) from None


def _is_json(kind: str) -> bool:
    message = Message()
    message["content-type"] = kind
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
