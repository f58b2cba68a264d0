"""Documents in collections of a test's API, added as by a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.cli.service import Service


@contextmanager
def http_of(service: Service) -> Iterator[httpx.Client]:
    """Open the service's API for calls without a command."""
    headers = {"Authorization": f"Bearer {service.api_key}"}
    with httpx.Client(base_url=service.base_url, headers=headers, timeout=120) as http:
        yield http


def collect(service: Service, name: str, content: bytes) -> str:
    """Make a collection of one document; return its id."""
    with http_of(service) as http:
        file = http.post("/files", data={"purpose": "user_data"}, files={"file": (name, content)}).json()
        collection = http.post("/collections", json={"name": "papers"}).json()
        http.post(f"/collections/{collection['id']}/documents", json={"file_ids": [file["id"]]})
        return str(collection["id"])
