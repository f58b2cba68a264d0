"""Tests of a worker that is stopped in the middle of a batch; the next one continues its lines where they stopped.

The model's template has marks of thoughts, so that its engine's answers are parted too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.e2e.builders import Customer, chat, check_ledger
from tests.e2e.thinking_demo import make_thinking_demo

pytestmark = pytest.mark.long

NUM_LINES = 150
TIMEOUT_SECONDS = 120


@pytest.fixture(scope="module")
def stack_settings() -> dict[str, str]:
    """No grace, so that a stopping worker returns nearly everything it runs."""
    return {"DRAIN_SECONDS": "0", "HEARTBEAT_SECONDS": "0.5", "CHUNK_LINES": "48"}


@pytest.fixture(scope="module")
def stack_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    model = make_thinking_demo(tmp_path_factory.mktemp("thinking") / "demo")
    return ("--model", str(model), "--served-name", "demo")


def input_lines() -> list[dict[str, Any]]:
    """Greedy lines of several lengths; a seed or penalties in some of them.

    The shortest end long before the others: most are still running when the worker is told to stop.
    """
    extras: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "frequency_penalty": 0.7, "stop": ["no such text"]},
        {"temperature": 1, "seed": 11, "top_p": 0.9},
        {"temperature": 0, "logit_bias": {"30": 2}},
        {"temperature": 0, "logprobs": True, "top_logprobs": 2},  # computed again: log-probabilities are not kept
    ]
    return [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "demo",
                "messages": [{"role": "user", "content": f"Invoice {number}\nTotal: {number}.25 USD"}],
                "max_tokens": 60 + 78 * (number % 6),
                "ignore_eos": True,
                **extras[number % len(extras)],
            },
        }
        for number in range(NUM_LINES)
    ]


def until(holds: Callable[[], Any], stack: Any) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {TIMEOUT_SECONDS} s; {stack.logs()}")


class Submitted:
    """The batch, submitted once more."""

    def __init__(self, stack: Any) -> None:
        self._stack = stack
        self._client = stack.client()
        content = "\n".join(map(json.dumps, input_lines())).encode()
        uploaded = self._client.files.create(file=("in.jsonl", content), purpose="batch")
        self.id = self._client.batches.create(
            input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h"
        ).id

    def until_completed(self, num_lines: int) -> None:
        until(lambda: self._client.batches.retrieve(self.id).request_counts.completed >= num_lines, self._stack)

    def output(self) -> list[dict[str, Any]]:
        """Wait for the end; return the lines of the output file."""
        until(lambda: self._client.batches.retrieve(self.id).status == "completed", self._stack)
        batch = self._client.batches.retrieve(self.id)
        assert (batch.request_counts.completed, batch.request_counts.failed) == (NUM_LINES, 0)
        return [json.loads(line) for line in self._client.files.content(batch.output_file_id).text.splitlines()]


def as_generated(line: dict[str, Any]) -> str:
    """Return the line without what differs between runs: ids, the time, cached tokens.

    Also without the log-probabilities of its tokens, whose last digits vary by rounding.
    """
    body = line["response"]["body"]
    del line["id"], line["response"]["request_id"], body["id"], body["created"], body["usage"]["prompt_tokens_details"]
    for entry in (body["choices"][0]["logprobs"] or {"content": []})["content"]:
        del entry["logprob"], entry["top_logprobs"]
    return json.dumps(line)


def kept_tokens(stack: Any, batch_id: str) -> dict[int, int]:
    """Return the number of kept tokens by line, waiting for the next worker."""
    rows = stack.query(f"SELECT line_no, cardinality(token_ids) FROM checkpoint WHERE batch_id = '{batch_id}'")
    return {int(line_no): int(count) for line_no, count in rows}


@pytest.mark.timeout(300)
def test_the_next_worker_goes_on_where_a_stopped_one_was_and_says_the_same(stack: Any) -> None:
    undisturbed = Submitted(stack).output()

    batch = Submitted(stack)
    batch.until_completed(4)
    worker: psutil.Process = stack.role("worker")
    worker.terminate()
    worker.wait(TIMEOUT_SECONDS)
    kept = kept_tokens(stack, batch.id)
    assert len(kept) >= 4
    assert min(kept.values()) > 0
    assert not any(input_lines()[line_no]["body"].get("logprobs") for line_no in kept)
    ((num_done, tokens_done),) = stack.query(
        f"SELECT sum(num_results), sum(output_tokens) FROM ledger WHERE batch_id = '{batch.id}'"
    )
    assert 4 <= num_done < NUM_LINES

    output = batch.output()
    assert [as_generated(line) for line in output] == [as_generated(line) for line in undisturbed]
    num_billed = check_ledger(stack, batch.id, output)
    assert num_billed == sum(line["body"]["max_tokens"] for line in input_lines())
    check_work(stack, sum(kept.values()) + int(tokens_done))
    assert stack.query("SELECT max(losses) FROM chunk") == [(0,)], "what is given back is not lost"
    audit = stack.audit()
    assert audit.returncode == 0, audit.stdout + audit.stderr


def check_work(stack: Any, num_known: int) -> None:
    """The second worker generated everything that the first one had not finished or left."""
    wanted = sum(line["body"]["max_tokens"] for line in input_lines()) - num_known
    sql = "SELECT (engine_stats ->> 'generation_tokens_total')::int FROM worker WHERE stopped_at IS NULL"
    until(lambda: stack.query(sql) == [(wanted,)], stack)


PAID = {
    "type": "object",
    "properties": {"paid": {"type": "boolean"}},
    "required": ["paid"],
    "additionalProperties": False,
}


def test_thoughts_come_apart_from_answers_and_are_counted_in_usage_and_estimates(customer: Customer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "receipt", "schema": PAID}}
    asked: dict[str, Any] = {"response_format": form, "max_tokens": 40, "seed": 3, "logit_bias": {"3": -100}}
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 5}
    lines = [chat("Receipt 7\nTotal: 7.50 EUR", **asked, **thinking), chat("Receipt 8\nTotal: 8.50 EUR", **asked)]
    batch_id = customer.submit(lines)
    thought, plain = (line["response"]["body"] for line in customer.answers(batch_id, num_lines=2))
    for body in (thought, plain):
        assert set(json.loads(body["choices"][0]["message"]["content"])) == {"paid"}
    assert thought["choices"][0]["message"]["reasoning_content"]
    assert thought["choices"][0]["reasoning_finish_reason"] == "budget"
    assert thought["usage"]["completion_tokens_details"] == {"reasoning_tokens": 5}
    assert "reasoning_content" not in plain["choices"][0]["message"]
    usage = customer.client.batches.retrieve(batch_id).usage
    assert usage is not None
    assert usage.output_tokens_details.reasoning_tokens == 5
    asked_again = {"requests": [{"body": lines[0]["body"]}]}
    assert customer.call("POST", "/estimates", json=asked_again).json()["reasoning_tokens_per_line"] == 2.5
