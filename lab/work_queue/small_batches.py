"""Batches of one line: how many of one tenant end per minute, and how long one of another tenant takes meanwhile.

All exist from the start, as the API leaves them, written by SQL: the measurement covers everything after that.
"""

from __future__ import annotations

import time

import openai

from benchmarks.processor_time import processor_seconds, spent
from lab.own_stack import OwnStack
from lab.validation import input_parts
from lab.work_queue.fairness import new_tenant

_OTHERS_SECONDS = 5.0
"""Interval between batches of the other tenant."""
_POLL_SECONDS = 0.1
_WARM_BATCHES = 20


def measure(stack: OwnStack, num_batches: int) -> None:
    """Let `num_batches` of one tenant end, with one of another now and then; print the measurements."""
    client = stack.client()
    content = b"".join(input_parts(1, model="demo"))
    file_id = client.files.create(file=("bench.jsonl", content), purpose="batch").id
    _, key = new_tenant(stack)
    other = openai.OpenAI(base_url=stack.base_url, api_key=key)
    others_file_id = other.files.create(file=("bench.jsonl", content), purpose="batch").id
    _run(stack, file_id, _WARM_BATCHES, other, others_file_id)
    before, commits = processor_seconds(stack.base_url), stack.query(_COMMITS)
    seconds, others = _run(stack, file_id, num_batches, other, others_file_id)
    after = processor_seconds(stack.base_url)
    print(
        f"small: {num_batches:,} batches of one line in {seconds:.1f} s, {num_batches / seconds * 60:,.0f} a minute; "
        f"{(stack.query(_COMMITS) - commits) / num_batches:.1f} transactions each",
        flush=True,
    )
    print(f"  processor ms a batch: {spent(before, after, num_lines=num_batches)}")
    times = ", ".join(f"{each:.1f}" for each in others)
    print(f"  seconds of a batch of another tenant meanwhile, one after the other: {times}", flush=True)


def _run(
    stack: OwnStack, file_id: str, num_batches: int, other: openai.OpenAI, others_file_id: str
) -> tuple[float, list[float]]:
    """Return the seconds until all have ended, and those of each batch of the other tenant."""
    began_at = time.monotonic()
    stack.connection.execute(_INSERT, {"file_id": file_id, "num": num_batches})
    stack.connection.execute("ANALYZE batch")
    others: list[float] = []
    next_at, other_id, other_began = began_at, None, 0.0
    while stack.query(_OPEN, file_id):
        now = time.monotonic()
        if other_id is None and now >= next_at:
            batch = other.batches.create(
                input_file_id=others_file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"number": str(now)},
            )
            other_id, other_began = batch.id, now
        elif other_id is not None and not stack.query(_IS_OPEN, other_id):
            others.append(now - other_began)
            other_id, next_at = None, now + _OTHERS_SECONDS
        time.sleep(_POLL_SECONDS)
    return time.monotonic() - began_at, others


_INSERT = """
    INSERT INTO batch (id, tenant_id, input_file_id, endpoint, completion_window, fingerprint, expires_at)
    SELECT 'batch_' || gen_random_uuid(), tenant_id, id, '/v1/chat/completions', '24h', gen_random_uuid()::text,
        now() + interval '1 day'
    FROM file, generate_series(1, %(num)s) WHERE id = %(file_id)s
"""
_OPEN = "SELECT count(*) FROM batch WHERE input_file_id = %s AND state NOT IN ('completed', 'failed')"
_IS_OPEN = "SELECT count(*) FROM batch WHERE id = %s AND state NOT IN ('completed', 'failed')"
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
