"""Calls to the endpoints of pipelines, which the official client has no names for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from cli.client import client_from_environment, server_errors_as_sentences


class Calls:
    """JSON in, JSON out."""

    def __init__(self, client: Any) -> None:
        from httpx import Response  # 80 ms, which help texts do without

        self.client = client
        self._as_sent = Response

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        given = {name: value for name, value in query.items() if value is not None}
        found: dict[str, Any] = self.client.get(path, cast_to=self._as_sent, options={"params": given}).json()
        return found

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> dict[str, Any]:
        """Create or change something; sent again with its key, a call that creates returns what was made."""
        options = {} if key is None else {"headers": {"Idempotency-Key": key}}
        answer = self.client.post(path, cast_to=self._as_sent, body=dict(body or {}), options=options)
        found: dict[str, Any] = answer.json()
        return found

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self.client.patch(path, cast_to=self._as_sent, body=dict(body)).json()
        return found

    def delete(self, path: str) -> None:
        self.client.delete(path, cast_to=self._as_sent)

    def find(self, path: str) -> dict[str, Any] | None:
        """Return an object, None where there is none."""
        from openai import NotFoundError

        try:
            return self.get(path)
        except NotFoundError:
            return None

    def pages(self, path: str, *, limit: int, **query: Any) -> list[dict[str, Any]]:
        """Return the newest objects of a list."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while len(found) < limit:
            page = self.get(path, limit=min(100, limit - len(found)), after=after, **query)
            found += page["data"]
            after = page["last_id"]
            if not page["has_more"]:
                break
        return found


@contextmanager
def server() -> Iterator[Calls]:
    """Open the server of the environment; its errors become sentences."""
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        yield Calls(client)


def named(kind: str, name: str, action: str = "") -> str:
    """Return the path of an object by its id or name."""
    return f"/{kind}/{quote(name, safe='')}{action}"
