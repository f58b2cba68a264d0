"""Shares of two tenants of equal weight in any minute while both have work, one a hundred times the other's."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

import openai
import psycopg

from jobs.accounts import keys, tenants
from jobs.database import connect, sessions, transaction
from jobs.ids import new_id
from lab.own_stack import OwnStack
from lab.simulation.shares import jain_index
from lab.validation import input_parts

_TIMES_AS_MUCH = 100
_LINES_A_BATCH = 50_000
_STEP_SECONDS = 1.0
_POLL_SECONDS = 0.5
_SETTLE_SECONDS = 5.0
"""At the start, while only one of them has work, and at the end: results that have not arrived would distort shares."""

Used = Sequence[tuple[float, int]]
"""Pairs of a time in seconds and a number of tokens."""


def measure(stack: OwnStack, *, num_lines: int, window_seconds: float) -> None:
    """Run both tenants' work until the smaller one is done; print the least fair window's index."""
    small, large = (new_tenant(stack) for _ in range(2))
    num_large = num_lines * _TIMES_AS_MUCH
    _submit(stack, large[1], num_lines=min(num_large, _LINES_A_BATCH), num_batches=-(-num_large // _LINES_A_BATCH))
    _wait_for_results(stack, large[0])
    _submit(stack, small[1], num_lines=num_lines, num_batches=1)
    while stack.query(_OPEN, small[0]):
        time.sleep(_POLL_SECONDS)
    used = [_used(stack, tenant_id) for tenant_id, _ in (small, large)]
    begin, end = used[0][0][0] + _SETTLE_SECONDS, used[0][-1][0] - _SETTLE_SECONDS
    window = min(window_seconds, end - begin)
    indexes = window_indexes(used, begin=begin, end=end, window_seconds=window)
    print(
        f"fairness: {num_lines:,} lines of a tenant beside {num_large:,} of another of the same weight, both at work "
        f"for {end - begin:.0f} s: Jain index in any {window:.0f} s at least {min(indexes):.3f}, of {len(indexes)}",
        flush=True,
    )


def window_indexes(used: Sequence[Used], *, begin: float, end: float, window_seconds: float) -> list[float]:
    """Return the Jain index of each window; one starts every second."""
    sums = [_Sums(each) for each in used]
    num_windows = int((end - begin - window_seconds) / _STEP_SECONDS) + 1
    starts = [begin + number * _STEP_SECONDS for number in range(num_windows)]
    return [jain_index([each.between(start, start + window_seconds) for each in sums]) for start in starts]


class _Sums:
    """Sums of tokens between any two moments."""

    def __init__(self, used: Used) -> None:
        self._times = [at for at, _ in used]
        self._sums = list(accumulate((tokens for _, tokens in used), initial=0))

    def between(self, first: float, last: float) -> int:
        return self._sums[bisect_right(self._times, last)] - self._sums[bisect_left(self._times, first)]


def new_tenant(stack: OwnStack) -> tuple[str, str]:
    """Create a tenant; return its id and a key."""
    engine = connect(stack.database_url)
    with transaction(sessions(engine)) as session:
        tenant = tenants.create_tenant(session, new_id("bench"))
        _, secret = keys.create_key(session, tenant.id)
        tenant_id = tenant.id
    engine.dispose()
    return tenant_id, secret


def _submit(stack: OwnStack, key: str, *, num_lines: int, num_batches: int) -> None:
    client = openai.OpenAI(base_url=stack.base_url, api_key=key)
    content = b"".join(input_parts(num_lines, model="demo"))
    uploaded = client.files.create(file=("bench.jsonl", content), purpose="batch")
    for number in range(num_batches):
        client.batches.create(
            input_file_id=uploaded.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"number": str(number)},
        )


def _wait_for_results(stack: OwnStack, tenant_id: str) -> None:
    while not stack.query("SELECT count(*) FROM ledger WHERE tenant_id = %s", tenant_id):
        time.sleep(_POLL_SECONDS)


def _used(stack: OwnStack, tenant_id: str) -> Used:
    with psycopg.connect(stack.database_url) as connection:
        return connection.execute(_USED, [tenant_id]).fetchall()


_OPEN = "SELECT count(*) FROM batch WHERE tenant_id = %s AND state NOT IN ('completed', 'failed')"
_USED = (
    "SELECT extract(epoch FROM created_at)::float8, (input_tokens + output_tokens)::bigint FROM ledger "
    "WHERE tenant_id = %s ORDER BY created_at"
)
