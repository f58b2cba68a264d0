"""Tests of `/v1/quota`: the remainders of budgets and limits."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import httpx
from openai import OpenAI
from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.accounts import window_budgets
from jobs.accounts.secret_hashes import hash_secret
from jobs.accounts.window_budgets import NewBudget
from jobs.states import BudgetUnit, BudgetWindow
from jobs.tables import ApiKey


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
    reading = limits["reading_seconds_per_day"]
    assert (reading["limit"], reading["used"], reading["left"]) == (None, 0, None)


def test_budgets_of_windows_say_when_they_begin_anew_and_warn(
    deployment: Any, client: OpenAI, input_lines: Callable[..., bytes]
) -> None:
    with Session(deployment.engine) as session, session.begin():
        key = session.scalars(select(ApiKey).where(ApiKey.key_hash == hash_secret(client.api_key))).one()
        money = NewBudget(unit=BudgetUnit.MONEY, window=BudgetWindow.MONTH, limit=12 * 10**12, time_zone="Asia/Tokyo")
        assert key.tenant_id is not None
        window_budgets.set_budget(session, key.tenant_id, money)
        tokens = NewBudget(unit=BudgetUnit.TOKENS, window=BudgetWindow.DAY, limit=0, key_id=key.id, warn_percent=80)
        window_budgets.set_budget(session, key.tenant_id, tokens)
        key_id = key.id
    _, month, day = read(client)["budgets"]
    assert (month["unit"], month["limit"], month["left"], month["is_warning"]) == (
        "micros",
        12_000_000,
        12_000_000,
        False,
    )
    resets = datetime.fromtimestamp(month["resets_at"], tz=ZoneInfo("Asia/Tokyo"))
    assert (resets.day, resets.hour, resets.minute) == (1, 0, 0)
    assert (day["unit"], day["key_id"], day["window"], day["is_warning"]) == ("tokens", key_id, "day", True)
    file = client.files.create(file=("in.jsonl", input_lines(1)), purpose="batch")
    batch: Any = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert batch.budget_warning.startswith(f"80 % or more are spent: the budget of key {key_id} of the day is 0 tokens")
