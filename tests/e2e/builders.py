"""A tenant of a running stack, with the official client: submit lines, wait for a batch, read its results."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai

CHAT = "/v1/chat/completions"
TIMEOUT_SECONDS = 200
REAL_COMMANDS = Path(sys.executable).parent
"""The folder of `python` and `tokenmill`, for stacks that are not forks."""
_FINAL = ("completed", "failed", "expired", "cancelled")

_numbers = itertools.count()


def until(holds: Callable[[], Any], stack: Any) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := holds()):
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.05)
    return found


def chat(content: str, **body: Any) -> dict[str, Any]:
    """Make the line of a short conversation; keywords replace or add parameters of its body."""
    asked = {"model": "demo", "messages": [{"role": "user", "content": content}], "max_tokens": 4} | body
    return {"custom_id": f"line-{next(_numbers)}", "method": "POST", "url": CHAT, "body": asked}


def check_ledger(stack: Any, batch_id: str, output: list[dict[str, Any]]) -> int:
    """Check that each line was billed once, by the sums of the output file; return the output tokens."""
    usages = [line["response"]["body"]["usage"] for line in output]
    ((num, tokens_in, tokens_out),) = stack.query(
        f"SELECT sum(num_results), sum(input_tokens), sum(output_tokens) FROM ledger WHERE batch_id = '{batch_id}'"
    )
    assert int(num) == len(output)
    assert int(tokens_in) == sum(usage["prompt_tokens"] for usage in usages)
    assert int(tokens_out) == sum(usage["completion_tokens"] for usage in usages)
    return int(tokens_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Customer:
    """One tenant with a key."""

    id: str
    client: openai.OpenAI
    """Without retries."""
    stack: Any

    def call(self, method: str, path: str, **given: Any) -> httpx.Response:
        """Send one request unchanged and return the answer unchanged."""
        return httpx.request(method, f"{self.stack.base_url}{path}", headers=self.client.auth_headers, **given)

    def upload(self, content: bytes) -> str:
        return self.client.files.create(file=("in.jsonl", content), purpose="batch").id

    def submit(self, lines: Iterable[dict[str, Any]] | bytes, *, endpoint: Any = CHAT, **wishes: Any) -> str:
        """Upload lines and create their batch; return its id."""
        content = lines if isinstance(lines, bytes) else "\n".join(map(json.dumps, lines)).encode()
        return self.client.batches.create(
            input_file_id=self.upload(content), endpoint=endpoint, completion_window="24h", extra_body=wishes
        ).id

    def wait(self, batch_id: str) -> Any:
        """Return the batch once it has ended."""
        until(lambda: self.client.batches.retrieve(batch_id).status in _FINAL, self.stack)
        return self.client.batches.retrieve(batch_id)

    def answers(self, batch_id: str, *, num_lines: int) -> list[dict[str, Any]]:
        """Return the output of a batch that must complete, with an answer for every line."""
        batch = self.wait(batch_id)
        counts = (batch.status, batch.request_counts.completed, batch.request_counts.failed)
        assert counts == ("completed", num_lines, 0), self.stack.logs()
        return self.content(batch.output_file_id)

    def content(self, file_id: str) -> list[dict[str, Any]]:
        """Return the lines of a file."""
        return [json.loads(line) for line in self.client.files.content(file_id).text.splitlines()]

    def cancel_all(self) -> None:
        """Cancel everything that runs, and wait for it."""
        batch_ids = [batch.id for batch in self.client.batches.list(limit=100) if batch.status not in _FINAL]
        for batch_id in batch_ids:
            self.client.batches.cancel(batch_id)
        for batch_id in batch_ids:
            self.wait(batch_id)
