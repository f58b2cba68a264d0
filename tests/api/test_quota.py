"""`/v1/quota` of a served API: what is left of budgets and limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
from openai import OpenAI


def read(client: OpenAI) -> dict[str, Any]:
    answer: dict[str, Any] = client.get("/quota", cast_to=httpx.Response).json()
    return answer


def test_a_budget_shows_what_batches_reserve_and_what_is_left(
    new_client: Callable[..., OpenAI], input_lines: Callable[..., bytes]
) -> None:
    client = new_client(limit_tokens=1000)
    [before] = read(client)["budgets"]
    assert (before["limit"], before["spent"], before["reserved"], before["left"]) == (1000, 0, 0, 1000)
    file = client.files.create(file=("in.jsonl", input_lines(2)), purpose="batch")
    client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    [after] = read(client)["budgets"]
    assert after["reserved"] > 16  # two answers of 8 tokens, and their prompts
    assert after["left"] == 1000 - after["reserved"]
    assert after["resets_at"] is None


def test_without_a_limit_nothing_is_left_to_count(client: OpenAI) -> None:
    [budget] = read(client)["budgets"]
    assert (budget["limit"], budget["left"]) == (None, None)


def test_limits_show_what_the_tenant_has_of_each(client: OpenAI, input_lines: Callable[..., bytes]) -> None:
    content = input_lines(1)
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    limits = {limit["name"]: limit for limit in read(client)["limits"]}
    assert limits["open_batches"]["used"] == limits["files"]["used"] == 1
    assert limits["open_batches"]["left"] == limits["open_batches"]["limit"] - 1
    assert limits["stored_bytes"]["used"] == len(content)
    assert limits["enqueued_tokens"]["used"] > 8
    assert limits["uploads"]["used"] is None
