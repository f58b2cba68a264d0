"""The official client, and a plain one, connected to a real API. Every test has its own tenants."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.api.deployment import MODEL, Deployment, witnesses

Submit = Callable[..., Batch]


@pytest.fixture(autouse=True)
def every_answer_is_documented() -> Iterator[None]:
    """Fail a test if one of its calls got an answer that /openapi.json does not document."""
    yield
    surprises = [surprise for witness in witnesses for surprise in witness.surprises]
    for witness in witnesses:
        witness.surprises.clear()
    assert surprises == [], surprises


@pytest.fixture
def new_client(deployment: Deployment) -> Iterator[Callable[..., OpenAI]]:
    """Return a function that makes an official client for a new tenant."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(
            OpenAI(base_url=f"{deployment.url}/v1", api_key=deployment.new_key(**limits), max_retries=0)
        )


@pytest.fixture
def client(new_client: Callable[..., OpenAI]) -> OpenAI:
    return new_client()


@pytest.fixture
def stored_objects(deployment: Deployment) -> Callable[[], set[str]]:
    """Return a function that names the objects in the store, including unfinished ones."""
    return deployment.object_names


@pytest.fixture
def http(deployment: Deployment) -> Iterator[httpx.Client]:
    """A plain client for requests that the official one cannot send; it has a key of its own tenant."""
    headers = {"Authorization": f"Bearer {deployment.new_key()}"}
    with httpx.Client(base_url=deployment.url, headers=headers, timeout=120) as plain:
        yield plain


@pytest.fixture(scope="session")
def input_lines() -> Callable[..., bytes]:
    """Return a function that writes an input file of `count` chat requests."""

    def write(count: int, *, model: str = MODEL) -> bytes:
        body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}
        line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
        return b"".join(json.dumps({"custom_id": f"line-{n}", **line}).encode() + b"\n" for n in range(count))

    return write


@pytest.fixture
def submit(input_lines: Callable[..., bytes]) -> Submit:
    """Return a function that uploads two lines and makes a batch of them."""

    def upload_and_create(client: OpenAI, **options: Any) -> Batch:
        file = client.files.create(file=("in.jsonl", input_lines(2)), purpose="batch")
        wanted: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h", **options}
        return client.batches.create(input_file_id=file.id, **wanted)

    return upload_and_create
