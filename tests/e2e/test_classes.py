"""Two tenants on the whole stack: an urgent line while another's bulk work has every slot."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Literal

import openai
import pytest

from jobs.accounts import tenants
from jobs.database import connect, sessions
from jobs.states import Priority

pytestmark = pytest.mark.long

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
TIMEOUT_SECONDS = 200
NUM_BULK = 448
"""Seven chunks, one more than a worker has slots."""


def until(holds: Callable[[], bool], stack: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.1)


def submit(client: openai.OpenAI, num_lines: int, *, max_tokens: int, priority: str) -> str:
    lines = (
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": "demo",
                "messages": [{"role": "user", "content": f"Invoice {number}"}],
                "max_tokens": max_tokens,
                "ignore_eos": True,
            },
        }
        for number in range(num_lines)
    )
    uploaded = client.files.create(file=("in.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    return client.batches.create(
        input_file_id=uploaded.id, endpoint=CHAT, completion_window="24h", extra_body={"priority": priority}
    ).id


@pytest.fixture
def other_client(stack: Any) -> openai.OpenAI:
    engine = connect(stack.database_url())
    with sessions(engine).begin() as session:
        other = tenants.create_tenant(session, "other", best_priority=Priority.URGENT)
        _, secret = tenants.create_key(session, other.id)
    engine.dispose()
    return openai.OpenAI(base_url=stack.base_url, api_key=secret)


@pytest.mark.timeout(300)
def test_an_urgent_line_is_answered_before_any_chunk_of_the_bulk_work_that_fills_the_worker(
    stack: Any, other_client: openai.OpenAI
) -> None:
    client = stack.client()
    bulk = submit(client, NUM_BULK, max_tokens=450, priority="bulk")
    chunks = f"SELECT state, count(*)::int FROM chunk WHERE batch_id = '{bulk}' GROUP BY state ORDER BY state"
    until(lambda: stack.query(chunks) == [("leased", 6), ("ready", 1)], stack)

    urgent = submit(other_client, 1, max_tokens=4, priority="urgent")
    until(lambda: other_client.batches.retrieve(urgent).status == "completed", stack)
    assert stack.query(chunks) == [("leased", 6), ("ready", 1)], "it waited for a slot"

    client.batches.cancel(bulk)
    until(lambda: client.batches.retrieve(bulk).status == "cancelled", stack)
    audit = stack.audit()
    assert audit.returncode == 0, audit.stdout + audit.stderr
