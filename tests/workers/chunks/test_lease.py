"""Tests of a claimed chunk's transactions beside others: rows are locked in one order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy import text

from tests.jobs.chunks.builders import answers
from tests.workers.chunks.builders import Bench
from workers.chunks.lease import ChunkLease

_WAITS = "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
_SUMS = """
    SELECT spent_tokens, (SELECT sum(input_tokens + output_tokens) FROM ledger),
        budget.reserved_tokens = batch.reserved_tokens, covered_tokens
    FROM budget JOIN batch USING (tenant_id)
"""


def test_the_last_flush_waits_for_a_share_before_it_has_the_budget(
    bench: Bench, submit_valid: Callable[..., str], line: Callable[..., dict[str, Any]]
) -> None:
    """Dispatchers and starters of a batch lock the tenant's share first and its budget next."""
    submit_valid([line(0), line(1)])
    claim = bench.claim()
    lease = ChunkLease(claim, bench.services)
    lease.cover([10, 10], [0, 0])
    results = answers(claim, [0, 1])
    thread = threading.Thread(
        target=lease.flush, args=(results,), kwargs={"most_running": 0, "most_picos": 0, "is_last": True}
    )
    with bench.maker() as other:
        other.execute(text("SELECT FROM fair_share FOR UPDATE"))
        thread.start()
        bench.wait_until(_WAITS, [(True,)])
        try:
            other.execute(text("SELECT FROM budget FOR UPDATE NOWAIT"))
        finally:
            other.rollback()
            thread.join()
    assert lease.is_complete
    assert bench.rows("SELECT state, covered_tokens FROM chunk") == [("done", 0)]
    assert bench.rows(_SUMS) == [(16, 16, True, 0)]
