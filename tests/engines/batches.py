"""Batches of a worker without its process, and what is compared of their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from tests.engines.fixtures import Connect

Submit = Callable[..., str]


def lines_of(bodies: list[dict[str, Any]], endpoint: str) -> list[dict[str, Any]]:
    return [
        {"custom_id": f"{endpoint} {number}", "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate(bodies)
    ]


def run_all(connect: Connect, url: str, submit: Submit, bodies: list[dict[str, Any]], **options: Any) -> list[Any]:
    """Run the bodies as a batch of their endpoint; return the bodies of the answers."""
    post = connect(url, **options)
    endpoint = CHAT_ENDPOINT if "messages" in bodies[0] else COMPLETION_ENDPOINT
    endpoint = EMBEDDING_ENDPOINT if "input" in bodies[0] else endpoint
    submit(lines_of(bodies, endpoint), endpoint=endpoint)
    while post.rows("SELECT 1 FROM chunk WHERE state <> 'done'"):
        assert post.run_next()
    post.billed()
    answers = post.bodies()
    return [answers[f"{endpoint} {number}"] for number in range(len(bodies))]


def text_of(answer: dict[str, Any]) -> str:
    (choice,) = answer["choices"]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def read(answer: dict[str, Any]) -> dict[str, Any]:
    reason, num = answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]
    return {"text": text_of(answer), "finish_reason": reason, "num_tokens": num}
