"""Duration of claims on queues of different lengths: the call that workers make, repeated one after the other.

The queues are rows as a validation leaves them, written by SQL: nobody reads their input.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import chain

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from benchmarks.processor_time import processor_seconds
from jobs import served_models
from jobs.accounts import tenants
from jobs.chunks import claiming, leasing, queue_marks
from jobs.database import connect, sessions, transaction
from jobs.ids import new_id
from jobs.states import Priority
from lab.own_stack import OwnStack
from lab.work_queue.percentiles import percentile

MODEL = "queued"
_LINES_A_CHUNK = 100
"""Of 500 bytes each, as made by `jobs.batches.scan`."""
_LINES_A_BATCH = 50_000
_OPEN_CHUNKS = 50
"""Claimed before they are released, so that tenants alternate and the queue keeps its length."""
_LEASE = timedelta(hours=1)


def measure(stack: OwnStack, *, queued: Sequence[int], num_tenants: int, num_claims: int) -> None:
    """Print the times of claims on each queue, shortest first, and their ratio to the first."""
    engine = connect(stack.database_url)
    maker = sessions(engine)
    names = [make_tenant(maker) for _ in range(num_tenants)]
    num_there, first = 0, 0.0
    for num_lines in sorted(queued):
        fill(maker, names, num_lines=num_lines - num_there)
        num_there = num_lines
        a_round = max(min(_OPEN_CHUNKS, num_lines // _LINES_A_CHUNK // 2), 1)
        claim_and_release(maker, a_round)  # warm-up
        before = processor_seconds(stack.base_url)
        rounds = [claim_and_release(maker, a_round) for _ in range(-(-num_claims // a_round))]
        seconds = sorted(chain.from_iterable(rounds))
        spent = processor_seconds(stack.base_url).get("postgres", 0.0) - before.get("postgres", 0.0)
        median, high = (percentile(seconds, share) * 1e3 for share in (0.5, 0.99))
        first = first or median
        print(
            f"claims: {len(seconds)} with {num_lines:,} lines of {num_tenants} tenants queued: p50 {median:.2f} ms, "
            f"p99 {high:.2f} ms, {median / first:.2f} x the first's p50; Postgres "
            f"{spent / len(seconds) * 1e3:.2f} ms for each and its release",
            flush=True,
        )
    engine.dispose()


def fill(maker: sessionmaker[Session], tenant_ids: Sequence[str], *, num_lines: int) -> None:
    """Queue `num_lines` more, evenly among tenants, in batches of at most 50,000."""
    num_chunks = -(-num_lines // _LINES_A_CHUNK)
    a_batch = min(_LINES_A_BATCH // _LINES_A_CHUNK, -(-num_chunks // len(tenant_ids)))
    for number, first in enumerate(range(0, num_chunks, a_batch)):
        tenant_id = tenant_ids[number % len(tenant_ids)]
        with transaction(maker) as session:
            _queue_batch(session, tenant_id, num_chunks=min(a_batch, num_chunks - first))
    with maker() as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"}).execute(text("VACUUM ANALYZE chunk"))


def claim_and_release(maker: sessionmaker[Session], num_claims: int) -> list[float]:
    """Claim the next chunks one by one, then release all; return the seconds of each claim, including its commit."""
    claims, seconds = [], []
    for _ in range(num_claims):
        began_at = time.perf_counter()
        with transaction(maker) as session:
            claims.append(claiming.claim_next(session, model=MODEL, worker_id="bench", lease=_LEASE))
        seconds.append(time.perf_counter() - began_at)
    for claim in claims:
        assert claim is not None, "the queue has more chunks than are claimed"
        with transaction(maker) as session:
            leasing.release(session, claim)
    return seconds


def make_tenant(maker: sessionmaker[Session]) -> str:
    """Create a tenant and its model; return its id."""
    with transaction(maker) as session:
        served_models.put_model(session, MODEL, "/models/queued", is_checked=True)
        return tenants.create_tenant(session, new_id("bench")).id


def _queue_batch(session: Session, tenant_id: str, *, num_chunks: int) -> None:
    values = {
        "batch_id": new_id("batch"),
        "file_id": new_id("file"),
        "tenant_id": tenant_id,
        "model": MODEL,
        "num_chunks": num_chunks,
        "lines": _LINES_A_CHUNK,
    }
    for statement in (_FILE, _BATCH, _CHUNKS):
        session.execute(statement, values)
    queue_marks.mark(session, model=MODEL, priority=Priority.NORMAL.value, tenant_id=tenant_id)


_FILE = text("""
    INSERT INTO file (id, tenant_id, object_key, filename, purpose, size_bytes, num_requests)
    VALUES (:file_id, :tenant_id, :file_id, 'bench.jsonl', 'batch', CAST(:lines AS bigint) * :num_chunks * 500,
        CAST(:lines AS bigint) * :num_chunks)
""")
_BATCH = text("""
    INSERT INTO batch (id, tenant_id, input_file_id, endpoint, model, completion_window, fingerprint, state,
        num_requests, in_progress_at, expires_at)
    VALUES (:batch_id, :tenant_id, :file_id, '/v1/chat/completions', :model, '24h', :batch_id, 'in_progress',
        CAST(:lines AS bigint) * :num_chunks, now(), now() + interval '1 day')
""")
_CHUNKS = text("""
    INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
        byte_start, byte_end, estimated_tokens, state)
    SELECT batch.id, tenant_id, model, priority, expires_at, number * lines, lines, lines, number * lines * 500,
        (number + 1) * lines * 500, 160 * lines, 'ready'
    FROM batch, generate_series(0, :num_chunks - 1) AS number, CAST(:lines AS bigint) AS lines
    WHERE batch.id = :batch_id
""")
