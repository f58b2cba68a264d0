"""Results committed per second, end to end through Celery, and the cost of each: processors, WAL, rows, memory.

Meanwhile a client polls the status of a batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import psutil

from benchmarks.processor_time import processor_seconds, spent
from lab.own_stack import OwnStack
from lab.validation import input_parts
from lab.work_queue.percentiles import percentile

MIB = 1 << 20
_LINES_A_BATCH = 50_000
_WARM_LINES = 500
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0
_WATCHED = ("worker", "api")


@dataclass(slots=True)
class Watch:
    """Samples taken while lines were answered."""

    get_seconds: list[float] = field(default_factory=list)
    memory: dict[str, list[int]] = field(default_factory=lambda: {role: [] for role in _WATCHED})
    """Bytes of each role's own process, sampled every second."""


def measure(stack: OwnStack, num_lines: int) -> None:
    """Answer `num_lines`, in batches of at most 50,000 that all exist from the start, and print the measurements."""
    answer(stack, _WARM_LINES, num_batches=1)
    a_batch = min(num_lines, _LINES_A_BATCH)
    num_batches = -(-num_lines // a_batch)
    num_lines = num_batches * a_batch
    before, size, commits = processor_seconds(stack.base_url), _database_bytes(stack), stack.query(_COMMITS)
    position, num_flushes = stack.query("SELECT pg_current_wal_insert_lsn()::text"), stack.query(_FLUSHES)
    with watching(stack) as watch:
        seconds = answer(stack, a_batch, num_batches=num_batches)
    print(f"results: {num_lines:,} lines in {seconds:.1f} s, {num_lines / seconds:,.0f} committed a second", flush=True)
    print(f"  processor ms a line: {spent(before, processor_seconds(stack.base_url), num_lines=num_lines)}")
    wal = stack.query("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", position)
    num_flushes = stack.query(_FLUSHES) - num_flushes
    print(
        f"  a line: {wal / num_lines:,.0f} bytes of WAL, {(_database_bytes(stack) - size) / num_lines:,.0f} of tables "
        f"and indexes, {(stack.query(_COMMITS) - commits) / num_lines:.3f} transactions; {num_lines / num_flushes:.1f} "
        "lines a flush"
    )
    _print_watched(watch)


def answer(stack: OwnStack, num_lines: int, *, num_batches: int) -> float:
    """Run batches of the same lines; return the seconds from their creation to their last result's commit."""
    client = stack.client()
    uploaded = client.files.create(
        file=("bench.jsonl", b"".join(input_parts(num_lines, model="demo"))), purpose="batch"
    )
    began_at = time.monotonic()
    batch_ids = [
        client.batches.create(
            input_file_id=uploaded.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"number": str(number)},  # otherwise it would count as a repetition of the previous call
        ).id
        for number in range(num_batches)
    ]
    while stack.query(_UNANSWERED, batch_ids):
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - began_at
    for batch_id in batch_ids:
        stack.batches().wait_for(batch_id, "completed")
    return seconds


@contextmanager
def watching(stack: OwnStack) -> Iterator[Watch]:
    """Until the block ends, poll the status of the newest batch 20 times a second, and sample memory every second."""
    watch, is_over = Watch(), threading.Event()
    works = (_ask, _weigh)
    threads = [threading.Thread(target=work, args=(stack, watch, is_over), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def _ask(stack: OwnStack, watch: Watch, is_over: threading.Event) -> None:
    with httpx.Client(headers=stack.headers, timeout=60) as client:
        batch_id = client.get(f"{stack.base_url}/batches?limit=1").json()["data"][0]["id"]
        while not is_over.wait(_POLL_SECONDS):
            began_at = time.perf_counter()
            client.get(f"{stack.base_url}/batches/{batch_id}").raise_for_status()
            watch.get_seconds.append(time.perf_counter() - began_at)


def _weigh(stack: OwnStack, watch: Watch, is_over: threading.Event) -> None:
    roles = {role: stack.role(role) for role in _WATCHED}
    while not is_over.wait(_LOOK_SECONDS):
        for role, process in roles.items():
            watch.memory[role].append(_own_bytes(process))


def _own_bytes(process: psutil.Process) -> int:
    """Return its memory that no file backs."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def _print_watched(watch: Watch) -> None:
    times = sorted(watch.get_seconds)
    durations = ", ".join(
        f"p{share:.0%}".rstrip("%") + f" {percentile(times, share) * 1e3:.1f} ms" for share in (0.5, 0.99)
    )
    print(f"  GET /batches/{{id}} meanwhile, {len(times):,} times: {durations}")
    for role, sizes in watch.memory.items():
        if sizes:
            tenth = sizes[len(sizes) // 10]
            print(
                f"  memory of the {role}: {tenth / MIB:.0f} MiB after a tenth of the time, "
                f"{sizes[-1] / MIB:.0f} at the end, {max(sizes) / MIB:.0f} at most"
            )


def _database_bytes(stack: OwnStack) -> int:
    return int(stack.query("SELECT pg_database_size(current_database())"))


_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_FLUSHES = "SELECT count(*) FROM ledger"
_UNANSWERED = (
    "SELECT count(*) FROM batch "
    "WHERE id = ANY(%s) AND (state = 'validating' OR num_completed + num_failed < num_requests)"
)
