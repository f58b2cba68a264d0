"""Numbers of the queue for `/metrics`. What looks at all that is open is counted now and then, by one process for all.

Asking costs what the fleet has, however much is queued.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import live_workers
from jobs.states import TERMINAL_BATCH_STATES, BatchState


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One number of the Prometheus text format."""

    name: str
    """That of a counter ends in `_total`; the others are gauges."""
    help: str
    value: float
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def is_counter(self) -> bool:
        """Tell whether the value only grows, but for restarts."""
        return self.name.endswith("_total")


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSample:
    """One histogram: `counts[i]` observations above the bound before and up to `bounds[i]`; the last has no bound."""

    name: str
    help: str
    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float
    labels: dict[str, str] = field(default_factory=dict)


COUNTED_WITHIN = timedelta(minutes=5)
"""Numbers that are older are counted by whoever asks: then nobody else does."""


def read_samples(session: Session) -> list[Sample | HistogramSample]:
    """Return the state of queue, budgets and fleet; the age of what was counted is among it."""
    return [*_queue(session), *_workers(session)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A live worker, as its last heartbeat told it."""

    worker_id: str
    num_running: int
    """Requests in its engine's running batch."""
    output_tokens: int
    """Since its engine started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What is open, and who works on it."""

    num_batches: int
    """That have not ended."""
    num_lines: int
    """Of those; a batch that is being validated has none yet."""
    num_done: int
    """Of these: completed or failed."""
    workers: Sequence[WorkerSeen]


def overview(session: Session) -> Overview:
    """Look at the open batches and the live workers, as they are now."""
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
    """Count the batches, chunks and budgets that `read_samples` shows from now on."""
    session.execute(_COUNT)


_LIVE = tuple(state for state in BatchState if state not in TERMINAL_BATCH_STATES)

# Two reads: no one index has all three states, and the table has every chunk there ever was.
_OPEN_CHUNKS = """
    SELECT model, priority, state, count(*) AS num_chunks, sum(num_requests) AS num_lines,
        sum(estimated_tokens) AS num_tokens, extract(epoch FROM min(created_at)) AS oldest_at
    FROM (
        SELECT model, priority, state, num_requests, estimated_tokens, created_at
        FROM chunk WHERE state IN ('ready', 'leased')
        UNION ALL
        SELECT model, priority, state, num_requests, estimated_tokens, created_at FROM chunk WHERE state = 'waiting'
    ) AS open
    GROUP BY model, priority, state ORDER BY model, priority, state
"""

# Budgets over all tenants: the endpoint asks for no key, and what a tenant spends is its own affair.
_COUNT = text(f"""
    INSERT INTO queue_count (id, counted_at, numbers)
    SELECT 1, clock_timestamp(), jsonb_build_object(
        'batches', (
            SELECT coalesce(jsonb_object_agg(state, num), '{{}}') FROM (
                SELECT state, count(*) AS num FROM batch
                WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling') GROUP BY state
            ) AS live
        ),
        'chunks', (SELECT coalesce(jsonb_agg(counted), '[]') FROM ({_OPEN_CHUNKS}) AS counted),
        'spent', (SELECT coalesce(sum(spent_tokens), 0) FROM budget),
        'reserved', (SELECT coalesce(sum(reserved_tokens), 0) FROM budget)
    )
    ON CONFLICT (id) DO UPDATE SET counted_at = excluded.counted_at, numbers = excluded.numbers
""")

_OPEN_BATCHES = text("""
    SELECT count(*) AS num_batches, coalesce(sum(num_requests), 0) AS num_lines,
        coalesce(sum(num_completed + num_failed), 0) AS num_done
    FROM batch WHERE state IN ('validating', 'in_progress', 'finalizing', 'cancelling')
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
    yield Sample(name="tokenmill_tokens_spent", help="Tokens billed to all tenants.", value=numbers["spent"])
    yield Sample(name="tokenmill_tokens_reserved", help="Tokens set aside for live batches.", value=numbers["reserved"])
    age = max(0.0, float(row.now - row.counted_at))
    yield Sample(name="tokenmill_queue_counted_seconds", help="Age of the numbers of batches and chunks.", value=age)


def _batches(counts: dict[str, int]) -> Iterator[Sample]:
    for state in _LIVE:
        count = counts.get(state.value, 0)
        yield Sample(
            name="tokenmill_batches", help="Batches that have not ended.", labels={"state": state.value}, value=count
        )


def _chunks(counted: dict[str, Any], *, now: float) -> Iterator[Sample]:
    labels = {name: counted[name] for name in ("model", "priority", "state")}
    yield Sample(name="tokenmill_chunks", help="Open chunks.", labels=labels, value=counted["num_chunks"])
    yield Sample(name="tokenmill_chunk_lines", help="Lines in open chunks.", labels=labels, value=counted["num_lines"])
    yield Sample(
        name="tokenmill_chunk_tokens",
        help="Estimated tokens of open chunks.",
        labels=labels,
        value=counted["num_tokens"],
    )
    yield Sample(
        name="tokenmill_chunk_oldest_seconds",
        help="Age of the oldest open chunk.",
        labels=labels,
        value=max(0.0, now - counted["oldest_at"]),
    )


def _workers(session: Session) -> Iterator[Sample | HistogramSample]:
    workers = live_workers(session)
    for model in sorted({worker.model for worker in workers}):
        mine = [worker for worker in workers if worker.model == model]
        labels = {"model": model}
        yield Sample(name="tokenmill_workers", help="Live workers.", labels=labels, value=len(mine))
        yield Sample(
            name="tokenmill_worker_slots",
            help="Chunks that the live workers keep open at most.",
            labels=labels,
            value=sum(worker.max_chunks for worker in mine),
        )
    for worker in workers:
        labels = {"model": worker.model, "worker": worker.id}
        for name, value in sorted((worker.engine_stats or {}).items()):
            yield _engine_sample(f"tokenmill_engine_{name}", value, labels)


def _engine_sample(name: str, value: Any, labels: dict[str, str]) -> Sample | HistogramSample:
    """Read one entry of a heartbeat: a number, or a histogram as `bounds`, `counts` and `sum`."""
    help_text = "As the worker's last heartbeat told it; it starts anew with the worker."
    if isinstance(value, dict):
        return HistogramSample(name=name, help=help_text, labels=labels, **value)
    return Sample(name=name, help=help_text, labels=labels, value=value)
