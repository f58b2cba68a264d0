"""The error of a line of a prepare worker that has no answer."""

from __future__ import annotations

from jobs.errors import InputError


class LineError(InputError):
    """An error with its page, counted from 0; None if it concerns no page."""

    def __init__(self, message: str, *, code: str, page: int | None = None) -> None:
        super().__init__(message, code=code)
        self.page = page
