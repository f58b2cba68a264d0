"""The envelope of every error."""

from __future__ import annotations

from typing import Literal

from api.schemas.wire import WireModel

ErrorType = Literal["invalid_request_error", "insufficient_quota", "server_error"]


class ErrorObject(WireModel):
    message: str
    """What was wrong, what is allowed, and what to do."""
    type: ErrorType
    """Follows from the status, as in the official service."""
    param: str | None
    """The parameter that the message is about."""
    code: str | None
    """The machine-readable name of the error."""


class ErrorEnvelope(WireModel):
    error: ErrorObject
