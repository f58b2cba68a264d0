"""Two tenants on the whole stack: an urgent line while another's bulk work has every slot."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from benchmarks.service import Batches
from jobs.accounts import tenants
from jobs.database import connect, sessions
from jobs.states import Priority

pytestmark = pytest.mark.long

TIMEOUT_SECONDS = 200
NUM_BULK = 448
"""Seven chunks, one more than a worker has slots."""


def until(holds: Callable[[], bool], stack: Any) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, stack.logs()
        time.sleep(0.1)


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
    bulk = Batches(client, "demo").submit(NUM_BULK, max_tokens=450, priority="bulk")
    chunks = f"SELECT state, count(*)::int FROM chunk WHERE batch_id = '{bulk}' GROUP BY state ORDER BY state"
    until(lambda: stack.query(chunks) == [("leased", 6), ("ready", 1)], stack)

    urgent = Batches(other_client, "demo").submit(1, max_tokens=4, priority="urgent")
    until(lambda: other_client.batches.retrieve(urgent).status == "completed", stack)
    assert stack.query(chunks) == [("leased", 6), ("ready", 1)], "it waited for a slot"

    client.batches.cancel(bulk)
    until(lambda: client.batches.retrieve(bulk).status == "cancelled", stack)
    audit = stack.audit()
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.timeout(300)
def test_the_benchmark_of_the_service_measures_a_running_stack(stack: Any) -> None:
    done = stack.run("bench", "service", "--short-lines", "5", "--bulk-lines", "448")
    assert done.returncode == 0, done.stderr
    measured = [line.partition(":")[0] for line in done.stdout.splitlines()]
    assert measured == ["short lines", "short lines", "urgent line behind 448 bulk lines"]
    few = stack.run("bench", "service", "--short-lines", "5", "--bulk-lines", "1")
    assert few.returncode == 1
    assert "ended" in few.stderr
    wrong = stack.run("bench", "service", "--model", "nobody")
    assert wrong.returncode == 1
    assert "ended as failed and not as completed" in wrong.stderr
    assert "nobody" in wrong.stderr
