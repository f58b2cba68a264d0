"""Additions to FastAPI's /openapi.json: error responses, and the request id of every response.

Each route names the errors that it may answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from api.schemas.errors import ErrorEnvelope
from api.schemas.wire import WireModel
from api.scopes import SCOPES, scope_of

Responses = dict[int | str, dict[str, Any]]
"""By status, in the form of FastAPI's `responses`."""

_DESCRIPTIONS = {
    400: "A value of the request is not allowed; `param` names it.",
    401: "The request has no key, or one that is not known here, was revoked or has expired.",
    403: "The key lacks the scope that this needs, or its tenant may not do it; an operator may allow it.",
    404: "There is no such object, or it is another tenant's.",
    405: "The path does not support this method.",
    408: "The body did not arrive in time.",
    409: "The object's state does not allow this.",
    410: "The requested data has been deleted.",
    413: "The body, the file or one of its fields is too large.",
    416: "The range begins after the file's last byte.",
    429: "Too many requests at a time, too much at once, or the tenant's token budget does not cover the work.",
    500: "A defect; the server's log has the cause under the request id.",
    503: "Postgres, the object store or another service is unavailable, or all connections are in use.",
    504: "The request timed out while it waited.",
    505: "This server does not support the request's version of HTTP.",
}
_FINAL = {"x-should-retry": "`false`: a retry does not help."}
_HEADERS = {
    401: {"www-authenticate": "`Bearer`."},
    405: {"allow": "The methods that the path supports."},
    409: _FINAL,
    416: {"content-range": "`bytes */` and the file's size."},
    429: {"x-should-retry": "`true` with a `retry-after` if the same request may pass later, else `false`."},
    503: {"retry-after": "Seconds after which to retry."},
    504: _FINAL,
}
_REF = "#/components/schemas/{model}"
_UNSENT = ("HTTPValidationError", "ValidationError")
_REQUEST_ID = {"x-request-id": "The id of this request in the server's log."}


def failures(*statuses: int) -> Responses:
    """Describe error responses with the envelope."""
    return {
        status: {
            "model": ErrorEnvelope,
            "description": _DESCRIPTIONS[status],
            "headers": headers(_HEADERS.get(status, {})),
        }
        for status in statuses
    }


def bytes_of(description: str, headers_sent: Mapping[str, str]) -> dict[str, Any]:
    """Describe the content of a file or of a part of it."""
    media = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"description": description, "headers": headers(headers_sent), "content": media}


def text_of(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"text/plain": {"schema": {"type": "string"}}}}


def csv_of(description: str) -> dict[str, Any]:
    """Describe a response that is JSON or, on request, comma-separated values."""
    return {"description": description, "content": {"text/csv": {"schema": {"type": "string"}}}}


def lines_of(model: type[WireModel], headers_sent: Mapping[str, str]) -> dict[str, Any]:
    """Describe a response with one object per line; the app's `line_models` must include the model."""
    kind = "application/x-ndjson"
    text = {"type": "string", "contentMediaType": kind, "contentSchema": {"$ref": _REF.format(model=model.__name__)}}
    content = {kind: {"schema": text}}  # OpenAPI 3.1 has no `itemSchema` yet
    return {"description": f"One {model.__name__} a line.", "headers": headers(headers_sent), "content": content}


def headers(descriptions: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"description": description, "required": True, "schema": {"type": "string"}}
        for name, description in descriptions.items()
    }


class DescribedApp(FastAPI):
    """An application whose schema has the error responses, and models that FastAPI does not see.

    No endpoint returns `line_models`, and endpoints parse `body_models` themselves.
    """

    def __init__(
        self, *, line_models: Sequence[type[BaseModel]], body_models: Sequence[type[BaseModel]], **options: Any
    ) -> None:
        super().__init__(**options)
        self._line_models, self._body_models = line_models, body_models

    def include_router(self, router: APIRouter, *arguments: Any, **options: Any) -> None:
        """Refuse a route that has no scope."""
        for route in router.routes:
            scope_of(route)
        super().include_router(router, *arguments, **options)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = super().openapi()
            components = schema["components"]["schemas"]
            for unsent in _UNSENT:
                components.pop(unsent, None)
            components |= _schemas_of(self._line_models, "serialization") | _schemas_of(self._body_models, "validation")
            for path in schema["paths"].values():
                for operation in path.values():
                    _complete(operation)
        assert self.openapi_schema is not None
        return self.openapi_schema


def _schemas_of(models: Sequence[type[BaseModel]], mode: JsonSchemaMode) -> dict[str, Any]:
    modes = [(model, mode) for model in models]
    schemas: dict[str, Any] = models_json_schema(modes, ref_template=_REF)[1]["$defs"]
    return schemas


def _complete(operation: dict[str, Any]) -> None:
    """Remove FastAPI's 422, which is a 400 here, and add the scope and the request id."""
    responses = operation["responses"]
    responses.pop("422", None)
    if (scope := SCOPES.get(operation["operationId"])) is not None:
        operation["security"] = [{"key": [scope.value]}]
    for response in responses.values():
        response.setdefault("headers", {}).update(headers(_REQUEST_ID))
