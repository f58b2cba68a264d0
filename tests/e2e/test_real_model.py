"""Tests of the whole service with a real model from a GGUF file: answers, a schema, a tool call, a stopping worker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import psutil
import pytest

from engine.tokenizer import load_tokenizer
from examples.real_demo import PERSON_SCHEMA, TEMPLATE, WEATHER, lines
from tests.real_model import real_model

pytestmark = [pytest.mark.real_model, pytest.mark.long, pytest.mark.timeout(600)]

NUM_LINES = 16
TIMEOUT_SECONDS = 400
NAME = "SmolLM2-135M-Instruct"


@pytest.fixture(scope="module")
def stack_settings() -> dict[str, str]:
    """No grace, so that a stopping worker returns nearly everything it runs."""
    return {"DRAIN_SECONDS": "0", "HEARTBEAT_SECONDS": "0.5"}


@pytest.fixture(scope="module")
def stack_model() -> tuple[str, ...]:
    """In fp32: where whole numbers are the fastest product of bf16, the first token of an answer may be another."""
    options = ("--chat-template", str(TEMPLATE), "--dtype", "float32")
    return ("--model", str(real_model()), "--served-name", NAME, *options)


def until(holds: Callable[[], Any], stack: Any) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError(f"not within {TIMEOUT_SECONDS} s; {stack.logs()}")


def submit(stack: Any, requests: list[dict[str, Any]]) -> str:
    client = stack.client()
    content = "\n".join(map(json.dumps, requests)).encode()
    uploaded = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    return str(batch.id)


def messages(stack: Any, batch_id: str) -> dict[str, dict[str, Any]]:
    """Wait for the end; return the answers' messages by custom_id."""
    client = stack.client()
    until(lambda: client.batches.retrieve(batch_id).status == "completed", stack)
    batch = client.batches.retrieve(batch_id)
    assert batch.request_counts.failed == 0
    found = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["message"] for line in found}


def test_questions_a_schema_and_a_tool_call_are_answered(stack: Any) -> None:
    answers = messages(stack, submit(stack, lines()))
    assert answers["question-0"]["content"] == "The capital of France is Paris."
    person = json.loads(answers["schema"]["content"])
    jsonschema_rs.validator_for(PERSON_SCHEMA).validate(person)
    assert (person["name"], person["age"], person["city"]) == ("Anna Weber", 34, "Hamburg")
    [call] = answers["tool"]["tool_calls"]
    assert call["function"]["name"] == WEATHER["name"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "unit": "celsius"}


def stories() -> list[dict[str, Any]]:
    question = "Write a short story about a fisherman who finds {} coins."
    return [
        {
            "custom_id": f"story-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": NAME,
                "messages": [{"role": "user", "content": question.format(number)}],
                "max_tokens": 8 + 30 * (number % 8),
                "temperature": 0,
                "ignore_eos": True,
            },
        }
        for number in range(NUM_LINES)
    ]


def test_the_next_worker_goes_on_where_a_stopped_one_was(stack: Any) -> None:
    tokenizer: Any = load_tokenizer(real_model())
    batch_id = submit(stack, stories())
    until(lambda: stack.client().batches.retrieve(batch_id).request_counts.completed >= 2, stack)
    worker: psutil.Process = stack.role("worker")
    worker.terminate()
    worker.wait(TIMEOUT_SECONDS)
    kept = {
        f"story-{line_no}": tokenizer.decode(token_ids)
        for line_no, token_ids in stack.query(
            f"SELECT line_no, token_ids FROM checkpoint WHERE batch_id = '{batch_id}'"
        )
    }
    answers = messages(stack, batch_id)
    assert any(kept.values())
    assert all(answers[story]["content"].startswith(text) for story, text in kept.items())
    assert answers.keys() == {story["custom_id"] for story in stories()}
    audit = stack.audit()
    assert audit.returncode == 0, audit.stdout + audit.stderr
