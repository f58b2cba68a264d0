"""Requests and queries that are repeated until they are answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import httpx
import psycopg
import sqlalchemy.exc

from jobs.errors import ServiceError

_PAUSE_SECONDS = 0.5
_TIMEOUT_SECONDS = 30.0

T = TypeVar("T")


class RefusedError(RuntimeError):
    """A response that no repetition would change."""

    def __init__(self, call: str, response: httpx.Response) -> None:
        super().__init__(f"{call} returned {response.status_code}: {response.text[:300]}")
        self.status_code = response.status_code
        self.text = response.text


class PatientClient:
    """Retries each API call until it is answered, as a user's script would."""

    def __init__(self, base_url: str, key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=base_url, headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False)

    def call(self, method: str, path: str, *, is_done: Sequence[int] = (), **options: Any) -> dict[str, Any]:
        """Return the response body; statuses in `is_done` count as success. Raises RefusedError."""
        return dict(self._answer(method, path, is_done, options).json())

    def content(self, file_id: str) -> bytes:
        """Return a file."""
        return self.raw(f"/files/{file_id}/content")

    def raw(self, path: str) -> bytes:
        """Return what is at a path."""
        return self._answer("GET", path, (), {}).content

    def _answer(self, method: str, path: str, is_done: Sequence[int], options: dict[str, Any]) -> httpx.Response:
        while True:
            with suppress(httpx.TransportError):
                response = self._http.request(method, path, **options)
                if response.is_success or response.status_code in is_done:
                    return response
                if response.status_code < 500 and response.status_code not in (408, 429):
                    raise RefusedError(f"{method} {path}", response)
            time.sleep(_PAUSE_SECONDS)


def patiently(ask: Callable[[], T]) -> T:
    """Return the result of a query or a repeatable transaction, once Postgres answers."""
    while True:
        with suppress(psycopg.Error, sqlalchemy.exc.OperationalError, ServiceError):
            return ask()
        time.sleep(_PAUSE_SECONDS)
