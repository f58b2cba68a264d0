"""Time of one question at many open batches, on a Postgres of its own: a fresh connection, and the call alone."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import psutil
import psycopg

from jobs import served_models
from jobs.accounts import tenants
from jobs.database import connect, sessions, transaction
from jobs.forecasts import snapshot
from jobs.ids import new_id
from jobs.scaling.limits import Limits, set_limits
from lab import no_compute
from lab.own_stack import own_stack, tokenmill_here

MODEL = "timed"
_REPEATS = 400


def measure(num_batches: int) -> None:
    """Print the times of a question at this many open batches, each with a deadline of its own."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before", flush=True)
    with own_stack(tokenmill_here(), "--workers", "0", environment=no_compute.environment()) as stack:
        fill(stack.database_url, num_batches)
        began = time.perf_counter()
        take(stack.database_url)
        print(f"a measurement of {num_batches:,} open batches takes {time.perf_counter() - began:.2f} s")
        num_deadlines = stack.query("SELECT cardinality(deadlines) FROM due_work WHERE model = %s", MODEL)
        print(f"the function reads {num_deadlines:,} deadlines")
        with psycopg.connect(stack.database_url, autocommit=True) as connection:
            server = psutil.Process(connection.info.backend_pid)
            before = _processor_seconds(server)
            print(f"a call: {_times(lambda: _ask(connection))}")
            milliseconds = (_processor_seconds(server) - before) / _REPEATS * 1e3
            print(f"processor time of Postgres: {milliseconds:.2f} ms a call")
        print(f"a call by a fresh connection: {_times(lambda: _ask_anew(stack.database_url))}")


def fill(database_url: str, num_batches: int) -> None:
    """Add a model, and batches of one chunk each for it whose deadlines and classes differ: the worst of orders."""
    engine = connect(database_url)
    with transaction(sessions(engine)) as session:
        served_models.add_model(session, MODEL, "/models/timed")
        set_limits(session, MODEL, Limits(max_workers=100, expected_rate=1000.0))
        tenant_id = tenants.create_tenant(session, "timed").id
    engine.dispose()
    start = datetime.now(UTC) + timedelta(hours=1)
    with psycopg.connect(database_url) as connection:
        _copy(connection, tenant_id, start, num_batches)


def take(database_url: str) -> None:
    """Measure once, as the dispatcher does."""
    engine = connect(database_url)
    with transaction(sessions(engine)) as session:
        snapshot.take(session)
    engine.dispose()


def _copy(connection: psycopg.Connection[object], tenant_id: str, start: datetime, num_batches: int) -> None:
    for number in range(num_batches):
        file_id, batch_id = new_id("file"), new_id("batch")
        connection.execute(_FILE, (file_id, tenant_id, file_id))
        expires_at = start + timedelta(seconds=number)
        connection.execute(_BATCH, (batch_id, tenant_id, file_id, MODEL, batch_id, expires_at))
        connection.execute(_CHUNK, (batch_id, tenant_id, MODEL, expires_at))


def _ask(connection: psycopg.Connection[object]) -> None:
    connection.execute("SELECT tokenmill_wanted_workers(%s)", [MODEL]).fetchone()


def _ask_anew(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        _ask(connection)


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _times(ask: Callable[[], None]) -> str:
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        ask()
        seconds.append(time.perf_counter() - began)
    p50, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    return f"{p50 * 1e3:.2f} ms (p50), {p95 * 1e3:.2f} ms (p95) of {_REPEATS}"


_FILE = """
    INSERT INTO file (id, tenant_id, purpose, filename, size_bytes, object_key, num_requests, estimated_input_tokens,
        estimated_output_tokens)
    VALUES (%s, %s, 'batch', 'in.jsonl', 1, %s, 10, 1000, 1000)
"""
_BATCH = """
    INSERT INTO batch (id, tenant_id, input_file_id, model, fingerprint, endpoint, completion_window, state, expires_at,
        num_requests)
    VALUES (%s, %s, %s, %s, %s, '/v1/chat/completions', '24h', 'in_progress', %s, 10)
"""
_CHUNK = """
    INSERT INTO chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests,
        byte_start, byte_end, estimated_tokens)
    VALUES (%s, %s, %s, 'normal', %s, 0, 10, 10, 0, 9, 2000)
"""
