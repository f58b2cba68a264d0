"""Queue metrics for `/metrics`. Counts over all open work are made periodically, by one process for all.

A scrape costs as much as the fleet is large, however much is queued.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import live_workers, out_reason_of
from jobs.engines.out import OUT_REASON
from jobs.forecasts.outlooks import KEPT_FOR, LAST_ENDS
from jobs.hooks import queue_counts
from jobs.states import LIVE_BATCH_STATES
from jobs.tables import Worker
from jobs.tables.base import one_of
from jobs.telemetry import declared
from jobs.telemetry.meters import HistogramSample, Kind, Meter, Sample

COUNTED_WITHIN = timedelta(minutes=5)
"""Older counts are made again by the scraped process: then nobody else makes them."""


def read_samples(session: Session) -> list[Sample | HistogramSample]:
    """Return the state of queue, budgets and fleet, including the age of the counts."""
    return [*_queue(session), *_ends(session), *_workers(session)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A live worker, as of its last heartbeat."""

    worker_id: str
    num_running: int
    """Requests in its engine's running batch."""
    output_tokens: int
    """Since its engine started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Open work and its workers."""

    num_batches: int
    """Batches that have not ended."""
    num_lines: int
    """Lines of those; a batch in validation has none yet."""
    num_done: int
    """Completed and failed lines among them."""
    workers: Sequence[WorkerSeen]


def overview(session: Session) -> Overview:
    """Return the open batches and the live workers as they are now."""
    open_batches = session.execute(_OPEN_BATCHES).one()
    workers = [_seen(worker.id, worker.engine_stats or {}) for worker in live_workers(session)]
    return Overview(
        num_batches=int(open_batches.num_batches),
        num_lines=int(open_batches.num_lines),
        num_done=int(open_batches.num_done),
        workers=workers,
    )


def _seen(worker_id: str, stats: dict[str, Any]) -> WorkerSeen:
    return WorkerSeen(
        worker_id=worker_id,
        num_running=int(stats.get("num_requests_running", 0)),
        output_tokens=int(stats.get("generation_tokens_total", 0)),
    )


def count_queue(session: Session) -> None:
    """Count the batches, chunks, budgets and features' numbers for later calls of `read_samples`."""
    session.execute(_count())


# Three reads: no one index has all four states, and the table has every chunk there ever was.
_OPEN_CHUNKS = """
    SELECT model, priority, state, count(*) AS num_chunks, sum(num_requests) AS num_lines,
        sum(estimated_tokens) AS num_tokens, extract(epoch FROM min(created_at)) AS oldest_at
    FROM (
        SELECT model, priority, state, num_requests, estimated_tokens, created_at
        FROM chunk WHERE state IN ('ready', 'leased')
        UNION ALL
        SELECT model, priority, state, num_requests, estimated_tokens, created_at FROM chunk WHERE state = 'waiting'
        UNION ALL
        SELECT model, priority, state, num_requests, estimated_tokens, created_at FROM chunk WHERE state = 'deferred'
    ) AS open
    GROUP BY model, priority, state ORDER BY model, priority, state
"""

# Budgets over all tenants: the endpoint needs no key, and a tenant's spending is private.
_NUMBERS = {
    "batches": f"""
        SELECT coalesce(jsonb_object_agg(state, num), '{{}}') FROM (
            SELECT state, count(*) AS num FROM batch WHERE {one_of("state", LIVE_BATCH_STATES)} GROUP BY state
        ) AS live
    """,
    "chunks": f"SELECT coalesce(jsonb_agg(counted), '[]') FROM ({_OPEN_CHUNKS}) AS counted",
    "spent": "SELECT coalesce(sum(spent_tokens), 0) FROM budget",
    "reserved": "SELECT coalesce(sum(reserved_tokens), 0) FROM budget",
}


@cache
def _count() -> TextClause:
    queries = _NUMBERS | {count.name: count.query for count in queue_counts()}
    numbers = ", ".join(f"'{name}', ({query})" for name, query in queries.items())
    return text(f"""
        INSERT INTO queue_count (id, counted_at, numbers) SELECT 1, clock_timestamp(), jsonb_build_object({numbers})
        ON CONFLICT (id) DO UPDATE SET counted_at = excluded.counted_at, numbers = excluded.numbers
    """)


_OPEN_BATCHES = text(f"""
    SELECT count(*) AS num_batches, coalesce(sum(num_requests), 0) AS num_lines,
        coalesce(sum(num_completed + num_failed), 0) AS num_done
    FROM batch WHERE {one_of("state", LIVE_BATCH_STATES)}
""")

_COUNTED = text("""
    SELECT numbers, extract(epoch FROM clock_timestamp()) AS now, extract(epoch FROM counted_at) AS counted_at
    FROM queue_count
""")


def _queue(session: Session) -> Iterator[Sample]:
    row = session.execute(_COUNTED).one_or_none()
    if row is None or row.now - row.counted_at > COUNTED_WITHIN.total_seconds():
        count_queue(session)
        row = session.execute(_COUNTED).one()
    numbers = row.numbers
    yield from _batches(numbers["batches"])
    for counted in numbers["chunks"]:
        yield from _chunks(counted, now=float(row.now))
    for count in queue_counts():
        if count.name in numbers:  # else an earlier release has counted, which lacks the feature
            yield from count.samples(numbers[count.name])
    yield Sample(meter=declared.TOKENS_SPENT, value=numbers["spent"])
    yield Sample(meter=declared.TOKENS_RESERVED, value=numbers["reserved"])
    yield Sample(meter=declared.QUEUE_COUNTED, value=max(0.0, float(row.now - row.counted_at)))


def _batches(counts: dict[str, int]) -> Iterator[Sample]:
    for state in LIVE_BATCH_STATES:
        yield Sample(meter=declared.BATCHES, labels={"state": state.value}, value=counts.get(state.value, 0))


def _chunks(counted: dict[str, Any], *, now: float) -> Iterator[Sample]:
    labels = {name: counted[name] for name in declared.CHUNKS.labels}
    yield Sample(meter=declared.CHUNKS, labels=labels, value=counted["num_chunks"])
    yield Sample(meter=declared.CHUNK_LINES, labels=labels, value=counted["num_lines"])
    yield Sample(meter=declared.CHUNK_TOKENS, labels=labels, value=counted["num_tokens"])
    yield Sample(meter=declared.CHUNK_OLDEST, labels=labels, value=max(0.0, now - counted["oldest_at"]))


def _ends(session: Session) -> Iterator[Sample]:
    for row in session.execute(LAST_ENDS, {"kept": KEPT_FOR}):
        for bound in ("earliest", "expected", "latest"):
            labels = {"model": row.model, "priority": row.priority, "bound": bound}
            yield Sample(meter=declared.QUEUE_END, labels=labels, value=float(row._mapping[bound]))


def _workers(session: Session) -> Iterator[Sample | HistogramSample]:
    workers = live_workers(session)
    # One for each model that a worker may serve, so that work for one that waits for its turn is not without workers.
    may_serve = {model for worker in workers for model in worker.may_serve if model not in worker.left_out}
    for model in sorted(may_serve | {worker.model for worker in workers if not _is_announced(worker)}):
        mine = [worker for worker in workers if worker.model == model and not _is_announced(worker)]
        labels = {"model": model}
        yield Sample(meter=declared.WORKERS, labels=labels, value=len(mine))
        yield Sample(meter=declared.WORKER_SLOTS, labels=labels, value=sum(worker.max_chunks for worker in mine))
    for worker in workers:
        for model, reason in worker.left_out.items():
            labels = {"model": model, "worker": worker.id, "reason": reason}
            yield Sample(meter=declared.WORKERS_OUT, labels=labels, value=1)
        if _is_announced(worker):
            continue  # it has no engine yet
        if (reason := out_reason_of(worker)) is not None:
            labels = {"model": worker.model, "worker": worker.id, "reason": reason}
            yield Sample(meter=declared.WORKERS_OUT, labels=labels, value=1)
        labels = {"model": worker.model, "worker": worker.id}
        place = "house" if worker.spill_budget_picos is None else "outside"
        engine = {"engine": worker.engine, "version": worker.engine_version or "", "place": place}
        yield Sample(meter=declared.WORKER_ENGINE, labels=labels | engine, value=1)
        yield from engine_samples(worker.engine_stats or {}, model=worker.model, worker_id=worker.id)


def _is_announced(worker: Worker) -> bool:
    """Return whether a worker of several models is about to serve this one."""
    return bool(worker.may_serve) and not worker.max_chunks


def engine_samples(stats: Mapping[str, Any], *, model: str, worker_id: str) -> Iterator[Sample | HistogramSample]:
    """Yield a worker's engine statistics: numbers, and histograms as `bounds`, `counts` and `sum`."""
    labels = {"model": model, "worker": worker_id}
    for name, value in sorted((name, value) for name, value in stats.items() if name != OUT_REASON):
        if isinstance(value, Mapping):
            yield HistogramSample(meter=_engine_meter(name, Kind.HISTOGRAM), labels=labels, **value)
        else:
            kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
            yield Sample(meter=_engine_meter(name, kind), labels=labels, value=value)


def _engine_meter(name: str, kind: Kind) -> Meter:
    says = "As the worker last reported it; it restarts with the engine."
    return Meter(name=f"tokenmill_engine_{name}", kind=kind, says=says, labels=("model", "worker"))
