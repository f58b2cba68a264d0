"""Turns every failure into OpenAI's envelope: `{"error": {"message", "type", "param", "code"}}`, always all four keys.

The domain's errors carry their own status, code and message.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.types import Scope

from api.fields import UNKNOWN_PARAMETERS
from api.schemas.errors import ErrorEnvelope, ErrorObject, ErrorType
from jobs.accounts.keys import masked
from jobs.errors import AuthenticationError, InputError, RateLimitError, ServiceError, StorageFullError, StoreAwayError
from jobs.lines.endpoints import ENDPOINTS, LineKind, paths_of

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 2

# The official client retries 409, 429 and 5xx. With these statuses, except RateLimitError, a retry does not help, or
# the answer names another way.
_FINAL_STATUSES = frozenset(
    {
        HTTPStatus.CONFLICT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)

_STORAGE_FULL = (
    "The server's object store is full, and nothing of this request was stored; send it again later, or tell the "
    "operator of the server."
)

_BELOW_V1 = "The API is below /v1: give the client a base URL that ends in /v1, or check the path for typos."
_HTTP_CODES = {
    HTTPStatus.BAD_REQUEST: "invalid_request",
    HTTPStatus.NOT_FOUND: "unknown_url",
    HTTPStatus.METHOD_NOT_ALLOWED: "method_not_supported",
    HTTPStatus.REQUEST_TIMEOUT: "request_timeout",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "too_large",
}

# Paths that OpenAI answers online, and this service only in batches or not at all.
_ONLINE_PATHS = frozenset({*ENDPOINTS, "/v1/responses"})


def error_response(
    status: int, message: str, *, code: str | None, param: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Build the envelope. `type` follows from the status, as in the official service."""
    error = ErrorObject(message=message, type=_error_type(status, code), param=param, code=code)
    content = ErrorEnvelope(error=error).model_dump_json()
    return Response(content, status_code=status, headers=dict(headers or {}), media_type="application/json")


def _error_type(status: int, code: str | None) -> ErrorType:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "server_error"
    return "insufficient_quota" if code == "insufficient_quota" else "invalid_request_error"


def install_error_handlers(app: FastAPI) -> None:
    """Install handlers for every exception that an endpoint, a dependency or the router raises on purpose."""
    app.add_exception_handler(InputError, _answer_input_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(HTTPException, _answer_http_exception)
    for error_class in (ServiceError, OperationalError, InterfaceError, PoolTimeoutError):
        app.add_exception_handler(error_class, _answer_unavailable)


async def _answer_input_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, InputError)
    return refusal(request.scope, error)


def refusal(scope: Scope, error: InputError) -> Response:
    """Answer an error of the caller."""
    if isinstance(error, AuthenticationError):
        scope.setdefault("state", {})["refusal"] = error.code  # for the log
    return error_response(error.status, error.message, code=error.code, param=error.param, headers=_headers_for(error))


def _headers_for(error: InputError) -> dict[str, str]:
    if isinstance(error, RateLimitError):
        return _retry_after(error.retry_after_seconds)
    if error.status == HTTPStatus.UNAUTHORIZED:
        return {"www-authenticate": "Bearer"}
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:  # people may retry; automatic retries would not help
        return {"x-should-retry": "false", **retry_later()}
    return {"x-should-retry": "false"} if error.status in _FINAL_STATUSES else {}


def _retry_after(seconds: float) -> dict[str, str]:
    """Return the headers for a retry: the official client reads the milliseconds, others only whole seconds."""
    return {
        "x-should-retry": "true",
        "retry-after": str(max(1, math.ceil(seconds))),
        "retry-after-ms": str(max(1, math.ceil(1000 * seconds))),
    }


async def _answer_unavailable(request: Request, error: Exception) -> Response:
    return unavailable(request.scope, error)


def unavailable(scope: Scope, error: Exception) -> Response:
    """Answer that Postgres or the store is unreachable, and log why."""
    # The reason names hosts, users and statements: it is for the operator's log, not for the caller.
    logger.warning("service unavailable method=%s path=%s request_id=%s reason=%s", *shown_request(scope), error)
    if isinstance(error, StorageFullError):
        return error_response(error.status, _STORAGE_FULL, code=error.code, headers=retry_later())
    if isinstance(error, StoreAwayError):
        return error_response(error.status, error.message, code=error.code, headers=retry_later())
    return unavailable_response()


def unavailable_response() -> Response:
    """Answer 503 with the seconds after which to retry."""
    return error_response(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The server cannot use its database or object store right now; send the request again in a moment.",
        code=ServiceError.code,
        headers=retry_later(),
    )


def retry_later() -> dict[str, str]:
    """Return the header that tells a client when to retry."""
    return {"retry-after": str(RETRY_AFTER_SECONDS)}


async def _answer_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return http_refusal(request, error)


def http_refusal(request: Request, error: HTTPException) -> Response:
    """Answer a refusal of the framework or of the guard of bodies."""
    message, headers = error.detail, error.headers
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = _unknown_url(request.method, request.url.path)
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = _allowed_methods(request, error)
        headers = {"allow": allowed}
        message = f"{request.method} is not allowed on {request.url.path}. Use {allowed}."
    code = _HTTP_CODES.get(HTTPStatus(error.status_code), "invalid_request")
    return error_response(error.status_code, message, code=code, headers=headers)


def _allowed_methods(request: Request, error: HTTPException) -> str:
    """Return every method of the path: the router names only those of the path's first endpoint."""
    template = getattr(request.scope.get("route"), "path_format", None)
    methods = request.app.openapi()["paths"].get(template) or (error.headers or {})["Allow"].split(", ")
    served = {method.upper() for method in methods}
    return ", ".join(sorted(served | {"HEAD"} if "GET" in served else served))


def _unknown_url(method: str, path: str) -> str:
    if path not in _ONLINE_PATHS:
        hint = "Check the path for typos." if path.startswith("/v1/") else _BELOW_V1
        return f"Unknown request URL: {method} {path}. {hint}"
    endpoints = path if path in ENDPOINTS else " or ".join(paths_of(LineKind.GENERATE))
    return (
        f"{method} {path} is not served: this is a batch service. Write the requests as the lines of a file, upload it "
        f"with POST /v1/files and purpose batch, and send its id to POST /v1/batches with endpoint {endpoints}."
    )


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    message, param, code = describe_problem(error.errors()[0])
    return error_response(HTTPStatus.BAD_REQUEST, message, code=code, param=param)


def describe_problem(problem: Mapping[str, Any]) -> tuple[str, str | None, str]:
    """Describe one of pydantic's errors: (message, param, code)."""
    kind, param = problem["type"], _param_name(problem["loc"])
    if kind == "json_invalid":
        return "The request body is not valid JSON. Check it and send it again.", None, "invalid_json"
    if kind == UNKNOWN_PARAMETERS:
        return _unknown_parameters([*problem["loc"][1:]], **problem["ctx"])
    if param is None:
        return "The request needs a JSON object as its body, sent as application/json.", None, "invalid_body"
    if kind == "missing":
        return f"Missing required parameter: '{param}'.", param, "missing_required_parameter"
    value, rule = _shortened(problem.get("input")), str(problem["msg"]).removeprefix("Value error, ")
    return f"Invalid value for '{param}': {value}. {rule}.", param, "invalid_value"


def _unknown_parameters(location: Sequence[int | str], *, names: Sequence[str], total: int) -> tuple[str, str, str]:
    params = [".".join(cut(str(part)) for part in (*location, name)) for name in names]
    quoted = ", ".join(f"'{name}'" for name in params)
    more = f" and {total - len(params):,} more" if total > len(params) else ""
    what, them = ("parameter", "it") if total == 1 else ("parameters", "them")
    message = f"Unknown {what}: {quoted}{more}. Remove {them}; nothing is ignored silently."
    return message, params[0], "unknown_parameter"


def _param_name(location: Sequence[int | str]) -> str | None:
    """Turn ("body", "output_expires_after", "seconds") into `output_expires_after.seconds`."""
    return ".".join(cut(str(part)) for part in location[1:]) or None


def cut(text: str, *, most: int = 100) -> str:
    return text if len(text) <= most else text[:most] + "…"


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "…"


def shown_request(scope: Scope) -> tuple[str, str, str | None]:
    """Return a request's method, path and id for the log."""
    request_id = scope.get("state", {}).get("request_id")
    return scope["method"], masked(scope["path"]), request_id
