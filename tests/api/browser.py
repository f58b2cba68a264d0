"""A browser at one site, as an HTTP client: it keeps cookies and reports its requests' origin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx


class Browser(httpx.Client):
    """Acts for a key once signed in."""

    def sign_in(self, key: str) -> httpx.Response:
        return self.post("/sign-in", data={"key": key}, headers={"sec-fetch-site": "same-origin"})

    def token(self) -> str:
        found = re.search(r'name="csrf-token" content="([^"]+)"', self.get("/").text)
        assert found is not None
        return found[1]

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Call the API as a page's button does."""
        return self.request(method, path, headers={"x-csrf-token": self.token()}, **options)

    def events(self, path: str) -> Iterator[dict[str, Any]]:
        """Yield the messages that an open page receives."""
        with self.stream("GET", path) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))
