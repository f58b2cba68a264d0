"""Calls to endpoints that the official client does not have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import quote

from cli.client import client_from_environment, server_errors_as_sentences


class Calls:
    """Sends and returns JSON."""

    def __init__(self, client: Any) -> None:
        from httpx import Response  # takes 80 ms to load

        self.client = client
        self._as_sent = Response

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        params = {name: value for name, value in query.items() if value is not None}
        answer: dict[str, Any] = self.client.get(path, cast_to=self._as_sent, options={"params": params}).json()
        return answer

    def rows(self, path: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield the objects of an answer that has one a line, as they arrive."""
        params = {name: value for name, value in query.items() if value is not None}
        options = {"params": params, "headers": {"X-Stainless-Raw-Response": "stream"}}  # the client reads no body
        answer = self.client.get(path, cast_to=self._as_sent, options=options)
        with closing(answer):
            yield from map(json.loads, answer.iter_lines())

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str | None = None) -> dict[str, Any]:
        """Create or change an object; a repeated call with the same key returns the first result."""
        options = {} if key is None else {"headers": {"Idempotency-Key": key}}
        response = self.client.post(path, cast_to=self._as_sent, body=dict(body or {}), options=options)
        answer: dict[str, Any] = response.json()
        return answer

    def post_files(self, path: str, files: Sequence[tuple[str, bytes]], **fields: str) -> dict[str, Any]:
        """Upload files, each a name and its content, as the parts `files` of one form."""
        response = self.client.post(
            path,
            cast_to=self._as_sent,
            body=fields,
            files=[("files", file) for file in files],
            options={"headers": {"Content-Type": "multipart/form-data"}},
        )
        answer: dict[str, Any] = response.json()
        return answer

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.patch(path, cast_to=self._as_sent, body=dict(body)).json()
        return answer

    def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Set an object, in place of one that may be there."""
        answer: dict[str, Any] = self.client.put(path, cast_to=self._as_sent, body=dict(body)).json()
        return answer

    def delete(self, path: str) -> None:
        self.client.delete(path, cast_to=self._as_sent)

    def find(self, path: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""
        from openai import NotFoundError

        try:
            return self.get(path)
        except NotFoundError:
            return None

    def pages(self, path: str, *, limit: int, **query: Any) -> list[dict[str, Any]]:
        """Return the newest objects of a list."""
        objects: list[dict[str, Any]] = []
        after: str | None = None
        while len(objects) < limit:
            page = self.get(path, limit=min(100, limit - len(objects)), after=after, **query)
            objects += page["data"]
            after = page["last_id"]
            if not page["has_more"]:
                break
        return objects


@contextmanager
def server() -> Iterator[Calls]:
    """Open a client for the server of the environment; its errors become sentences."""
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        yield Calls(client)


def named(kind: str, name: str, action: str = "") -> str:
    """Return the path of an object by its id or name."""
    return f"/{kind}/{quote(name, safe='')}{action}"
