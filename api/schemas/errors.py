"""The envelope of every failure, whatever raised it."""

from __future__ import annotations

from typing import Literal

from api.schemas.wire import WireModel

ErrorType = Literal["invalid_request_error", "insufficient_quota", "server_error"]


class ErrorObject(WireModel):
    message: str
    """What was given, what is allowed and what to do."""
    type: ErrorType
    """Follows from the status, as the official service does it."""
    param: str | None
    """The parameter that the message is about."""
    code: str | None
    """The error's name for programs."""


class ErrorEnvelope(WireModel):
    error: ErrorObject
