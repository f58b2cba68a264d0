"""Errors for a user's process to catch; Tokenmill's other errors, in `jobs.errors`, derive from these."""

from __future__ import annotations

from typing import ClassVar


class TokenmillError(Exception):
    """Base of everything raised on purpose; `str(error)` is one sentence for the user."""

    status: ClassVar[int] = 500
    code: str = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InputError(TokenmillError):
    status = 400
    code = "invalid_request"
