"""Requests and queries that are repeated until they are answered, and waits for ends; each has a longest time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import httpx
import psycopg
import sqlalchemy.exc

from jobs.errors import ServiceError

_PAUSE_SECONDS, _LOOK_SECONDS = 0.5, 1.0
_TIMEOUT_SECONDS = 30.0
MOST_SECONDS = 1200.0
"""Longer than any outage, and than a flow takes on a busy machine."""
AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    sqlalchemy.exc.OperationalError,
    sqlalchemy.exc.InterfaceError,
    ServiceError,
)
"""Errors of a Postgres that is away; every other error would come again."""

T = TypeVar("T")


class RefusedError(RuntimeError):
    """A response that no repetition would change."""

    def __init__(self, call: str, response: httpx.Response) -> None:
        super().__init__(f"{call} returned {_shown(response)}")
        self.status_code = response.status_code
        self.text = response.text


class OverdueError(RuntimeError):
    """Something has not come for so long that it will not come."""

    def __init__(self, what: str, last: object) -> None:
        super().__init__(f"{what} did not come within {MOST_SECONDS:g} s; the last answer was {last}")


class PatientClient:
    """Retries each API call until it is answered, as a user's script would."""

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(
            base_url=base_url, headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False, transport=transport
        )
        self._clock = clock

    def call(self, method: str, path: str, *, is_done: Sequence[int] = (), **options: Any) -> dict[str, Any]:
        """Return the response body; statuses in `is_done` count as success. Raises RefusedError and OverdueError."""
        return dict(self._answer(method, path, is_done, options).json())

    def ended(self, path: str, is_over: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Return the object at a path once it is over. Raises RefusedError and OverdueError."""
        return until_over(lambda: self.call("GET", path), is_over, path, clock=self._clock)

    def content(self, file_id: str) -> bytes:
        """Return a file."""
        return self.raw(f"/files/{file_id}/content")

    def raw(self, path: str) -> bytes:
        """Return what is at a path."""
        return self._answer("GET", path, (), {}).content

    def _answer(self, method: str, path: str, is_done: Sequence[int], options: dict[str, Any]) -> httpx.Response:
        last = "none"
        until = self._clock() + MOST_SECONDS
        while self._clock() < until:
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                last = repr(error)
            else:
                if response.is_success or response.status_code in is_done:
                    return response
                if response.status_code < 500 and response.status_code not in (408, 429):
                    raise RefusedError(f"{method} {path}", response)
                last = _shown(response)
            time.sleep(_PAUSE_SECONDS)
        raise OverdueError(f"the answer to {method} {path}", last)


def patiently(ask: Callable[[], T], *, clock: Callable[[], float] = time.monotonic) -> T:
    """Return the result of a query or a repeatable transaction, once Postgres answers. Raises OverdueError."""
    last: object = "none"
    until = clock() + MOST_SECONDS
    while clock() < until:
        try:
            return ask()
        except AWAY as error:
            last = repr(error)
        time.sleep(_PAUSE_SECONDS)
    raise OverdueError("a result from Postgres", last)


def until_over(
    look: Callable[[], T], is_over: Callable[[T], bool], what: str, *, clock: Callable[[], float] = time.monotonic
) -> T:
    """Return the first value of `look` that is over. Raises OverdueError, with the last value."""
    until = clock() + MOST_SECONDS
    while not is_over(value := look()):
        if clock() >= until:
            raise OverdueError(f"the end of {what}", value)
        time.sleep(_LOOK_SECONDS)
    return value


def _shown(response: httpx.Response) -> str:
    return f"{response.status_code}: {response.text[:300]}"
