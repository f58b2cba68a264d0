"""Calls of a service's API that OpenAI's client does not have, for studies. Each raises httpx.HTTPStatusError."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

_MAX_ADDED = 500
"""Documents of one call."""


def get(client: httpx.Client, path: str) -> httpx.Response:
    return client.get(path).raise_for_status()


def post(client: httpx.Client, path: str, body: Mapping[str, Any]) -> Any:
    return client.post(path, json=body).raise_for_status().json()


def make_collection(client: httpx.Client, documents: Iterable[tuple[str, bytes]]) -> str:
    """Upload documents, by name and content, and return the id of a new collection of them."""
    collection_id = str(post(client, "/collections", {"name": f"papers {time.monotonic_ns()}"})["id"])
    ids = [_upload(client, name, content) for name, content in documents]
    for start in range(0, len(ids), _MAX_ADDED):
        post(client, f"/collections/{collection_id}/documents", {"file_ids": ids[start : start + _MAX_ADDED]})
    return collection_id


def _upload(client: httpx.Client, name: str, content: bytes) -> str:
    answer = client.post("/files", files={"purpose": (None, b"user_data"), "file": (name, content)})
    return str(answer.raise_for_status().json()["id"])
