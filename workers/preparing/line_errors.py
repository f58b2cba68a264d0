"""Why a line of a prepare worker has no answer."""

from __future__ import annotations

from jobs.errors import InputError


class LineError(InputError):
    """With the page that it is about, counted from 0; None where it is about none."""

    def __init__(self, message: str, *, code: str, page: int | None = None) -> None:
        super().__init__(message, code=code)
        self.page = page
