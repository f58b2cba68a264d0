"""Measure the service around the engine: many short lines, and an urgent line behind a backlog of bulk work.

Run as `python -m benchmarks.service` with the exports of a running `tokenmill up`. Times are a client's, by polling.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any, Literal

import openai

from benchmarks.arguments import natural

_CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_POLL_SECONDS = 0.05


class Batches:
    """Batches of made-up lines for one served model."""

    def __init__(self, model: str) -> None:
        self._client = openai.OpenAI(base_url=os.environ["TOKENMILL_BASE_URL"], api_key=os.environ["TOKENMILL_API_KEY"])
        self._model = model

    def submit(self, num_lines: int, *, max_tokens: int, priority: str) -> str:
        """Upload and create a batch whose every line runs to `max_tokens`; return its id."""
        lines = (
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": _CHAT,
                "body": {
                    "model": self._model,
                    "messages": [{"role": "user", "content": f"Hello {number}"}],
                    "max_tokens": max_tokens,
                    "ignore_eos": True,
                },
            }
            for number in range(num_lines)
        )
        content = "\n".join(map(json.dumps, lines)).encode()
        uploaded = self._client.files.create(file=("bench.jsonl", content), purpose="batch")
        return self._client.batches.create(
            input_file_id=uploaded.id, endpoint=_CHAT, completion_window="24h", extra_body={"priority": priority}
        ).id

    def wait_for(self, batch_id: str, *states: str) -> Any:
        """Return the batch once it is in one of these states."""
        while (batch := self._client.batches.retrieve(batch_id)).status not in states:
            time.sleep(_POLL_SECONDS)
        return batch

    def wait_for_answers(self, batch_id: str, number: int) -> None:
        """Return once so many lines have an answer."""
        while not ((counts := self._client.batches.retrieve(batch_id).request_counts) and counts.completed >= number):
            time.sleep(_POLL_SECONDS)

    def cancel(self, batch_id: str) -> None:
        """End a batch early."""
        self._client.batches.cancel(batch_id)
        self.wait_for(batch_id, "cancelled")


def short_lines(batches: Batches, num_lines: int) -> None:
    """Print lines per second of lines of one output token, validation and files included."""
    started_at = time.monotonic()
    batches.wait_for(batches.submit(num_lines, max_tokens=1, priority="normal"), "completed")
    seconds = time.monotonic() - started_at
    print(f"short lines: {num_lines} of one token in {seconds:.1f} s, {num_lines / seconds:.0f} lines/s", flush=True)


def urgent_line(batches: Batches, num_bulk: int) -> None:
    """Print how long an urgent line of 4 tokens takes while bulk lines of 450 tokens have every slot."""
    bulk = batches.submit(num_bulk, max_tokens=450, priority="bulk")
    batches.wait_for_answers(bulk, 1)
    started_at = time.monotonic()
    urgent = batches.submit(1, max_tokens=4, priority="urgent")
    batches.wait_for(urgent, "completed")
    print(f"urgent line behind {num_bulk} bulk lines: {time.monotonic() - started_at:.2f} s to its file", flush=True)
    batches.cancel(bulk)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--model", default="demo", help="served name")
    parser.add_argument("--short-lines", type=natural, default=20_000)
    parser.add_argument("--bulk-lines", type=natural, default=1_500)
    arguments = parser.parse_args()
    batches = Batches(arguments.model)
    short_lines(batches, 500)  # warms everything up; the next figure counts
    short_lines(batches, arguments.short_lines)
    urgent_line(batches, arguments.bulk_lines)


if __name__ == "__main__":
    main()
