"""Measure the service around the engine: many short lines, an urgent line behind a backlog of bulk work, documents.

Times are a client's, by polling; CPU time is that of every process of the stack, if it runs on this machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from benchmarks import documents
from benchmarks.arguments import natural
from benchmarks.processor_time import processor_seconds, spent

if TYPE_CHECKING:
    import openai

_CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
_POLL_SECONDS = 0.05
_SELDOM_SECONDS = 0.5
"""Poll interval of a batch whose CPU time is measured: each poll costs some."""
_ENDS = ("completed", "failed", "expired", "cancelled")


class Batches:
    """Generated batches for one served model."""

    def __init__(self, client: openai.OpenAI, model: str) -> None:
        self._client = client
        self._model = model

    def submit(self, num_lines: int, *, max_tokens: int, priority: str, text: str = "Hello") -> str:
        """Upload and create a batch whose every line runs to `max_tokens`; return its id."""
        lines = (
            {
                "custom_id": f"line-{number}",
                "method": "POST",
                "url": _CHAT,
                "body": {
                    "model": self._model,
                    "messages": [{"role": "user", "content": f"{text} {number}"}],
                    "max_tokens": max_tokens,
                    "ignore_eos": True,
                },
            }
            for number in range(num_lines)
        )
        return self.submit_file("\n".join(map(json.dumps, lines)).encode(), priority=priority)

    def submit_file(self, content: bytes, *, priority: str = "normal") -> str:
        """Upload the lines of chats and create a batch of them; return its id."""
        uploaded = self._client.files.create(file=("bench.jsonl", content), purpose="batch")
        return self._client.batches.create(
            input_file_id=uploaded.id, endpoint=_CHAT, completion_window="24h", extra_body={"priority": priority}
        ).id

    def wait_for(self, batch_id: str, status: str, *, poll_seconds: float = _POLL_SECONDS) -> Any:
        """Return the batch once it has this status; exit if it ended with another one."""
        while (batch := self._client.batches.retrieve(batch_id)).status != status:
            if batch.status in _ENDS:
                reasons = "; ".join(error.message or "" for error in (batch.errors and batch.errors.data) or [])
                raise SystemExit(f"batch {batch_id} ended as {batch.status} instead of {status}. {reasons}")
            time.sleep(poll_seconds)
        return batch

    def wait_for_answers(self, batch_id: str, number: int) -> None:
        """Return once `number` lines have an answer."""
        while not ((counts := self.wait_for(batch_id, "in_progress").request_counts) and counts.completed >= number):
            time.sleep(_POLL_SECONDS)

    def is_running(self, batch_id: str) -> bool:
        """Return whether a batch has neither ended nor started to end."""
        return self._client.batches.retrieve(batch_id).status == "in_progress"

    def num_unanswered(self, batch_id: str) -> int:
        """Return how many lines of a batch are unanswered, whatever its status, which lags behind its last answer."""
        counts = self._client.batches.retrieve(batch_id).request_counts
        return counts.total - counts.completed - counts.failed if counts else 0

    def processor_seconds(self) -> dict[str, float]:
        """Return the CPU seconds of each role so far, if the server runs on this machine."""
        return processor_seconds(str(self._client.base_url))

    def cancel(self, batch_id: str) -> None:
        """End a batch early."""
        self._client.batches.cancel(batch_id)
        self.wait_for(batch_id, "cancelled")


def short_lines(batches: Batches, num_lines: int) -> None:
    """Print lines per second for lines of one output token, with validation and files, and each role's CPU time."""
    before, started_at = batches.processor_seconds(), time.monotonic()
    batch_id = batches.submit(num_lines, max_tokens=1, priority="normal")
    batches.wait_for(batch_id, "completed", poll_seconds=_SELDOM_SECONDS)
    seconds = time.monotonic() - started_at
    print(f"short lines: {num_lines} of one token in {seconds:.1f} s, {num_lines / seconds:.0f} lines/s", flush=True)
    if before:
        print(f"  processor ms a line: {spent(before, batches.processor_seconds(), num_lines=num_lines)}", flush=True)


def urgent_line(batches: Batches, num_bulk: int) -> None:
    """Print the time of an urgent line of 4 tokens while bulk lines of 450 tokens occupy every slot."""
    bulk = batches.submit(num_bulk, max_tokens=450, priority="bulk")
    batches.wait_for_answers(bulk, 1)
    started_at = time.monotonic()
    urgent = batches.submit(1, max_tokens=4, priority="urgent")
    batches.wait_for(urgent, "completed")
    seconds = time.monotonic() - started_at
    if not batches.num_unanswered(bulk):
        raise SystemExit(f"the {num_bulk} bulk lines ended before the urgent one; give more --bulk-lines")
    print(f"urgent line behind {num_bulk} bulk lines: {seconds:.2f} s to its file", flush=True)
    batches.cancel(bulk)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line's options."""
    parser = argparse.ArgumentParser(prog="tokenmill bench service", description=__doc__)
    parser.add_argument("--model", default="demo", help="served name")
    parser.add_argument("--short-lines", type=natural, default=20_000, help="lines of one token each")
    parser.add_argument(
        "--bulk-lines", type=natural, default=1_500, help="lines of 450 tokens each, ahead of an urgent one"
    )
    parser.add_argument(
        "--documents",
        type=natural,
        help="measure only this many of the demo's documents, here and with the bare engine",
    )
    parser.add_argument("--turns", type=natural, default=1, help="of --documents")
    return parser.parse_args(arguments)


def run(client: openai.OpenAI, arguments: argparse.Namespace) -> None:
    """Measure the server behind `client`, which must be idle otherwise."""
    batches = Batches(client, arguments.model)
    if arguments.documents:
        documents.measure(batches, arguments.documents, turns=arguments.turns)
        return
    short_lines(batches, 500)  # warm-up; the next figure counts
    short_lines(batches, arguments.short_lines)
    urgent_line(batches, arguments.bulk_lines)
