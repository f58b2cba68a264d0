"""Numbers of the queue for `/metrics`, read in a few cheap queries over indexes and small tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, literal_column, select, text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import live_workers
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.tables import Batch, Budget


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


def read_samples(session: Session) -> list[Sample | HistogramSample]:
    """Return the state of queue, budgets and fleet. Cost grows with live batches and open chunks, not with history."""
    return [*_batches(session), *_chunks(session), *_budgets(session), *_workers(session)]


_LIVE = tuple(state for state in BatchState if state not in TERMINAL_BATCH_STATES)

# Two reads: no one index has all three states, and the table has every chunk there ever was.
_OPEN_CHUNKS = text("""
    SELECT model, priority, state, count(*) AS num_chunks, sum(num_requests) AS num_lines,
        sum(estimated_tokens) AS num_tokens, extract(epoch FROM now() - min(created_at)) AS oldest_seconds
    FROM (
        SELECT model, priority, state, num_requests, estimated_tokens, created_at
        FROM chunk WHERE state IN ('ready', 'leased')
        UNION ALL
        SELECT model, priority, state, num_requests, estimated_tokens, created_at FROM chunk WHERE state = 'waiting'
    ) AS open
    GROUP BY model, priority, state ORDER BY model, priority, state
""")


def _batches(session: Session) -> Iterator[Sample]:
    is_live = Batch.state.in_([literal_column(f"'{state.value}'") for state in _LIVE])
    counts = dict(session.execute(select(Batch.state, func.count()).where(is_live).group_by(Batch.state)).all())
    for state in _LIVE:
        count = counts.get(state.value, 0)
        yield Sample(
            name="tokenmill_batches", help="Batches that have not ended.", labels={"state": state.value}, value=count
        )


def _chunks(session: Session) -> Iterator[Sample]:
    for row in session.execute(_OPEN_CHUNKS):
        labels = {"model": row.model, "priority": row.priority, "state": row.state}
        yield Sample(name="tokenmill_chunks", help="Open chunks.", labels=labels, value=row.num_chunks)
        yield Sample(name="tokenmill_chunk_lines", help="Lines in open chunks.", labels=labels, value=row.num_lines)
        yield Sample(
            name="tokenmill_chunk_tokens", help="Estimated tokens of open chunks.", labels=labels, value=row.num_tokens
        )
        yield Sample(
            name="tokenmill_chunk_oldest_seconds",
            help="Age of the oldest open chunk.",
            labels=labels,
            value=float(row.oldest_seconds),
        )


def _budgets(session: Session) -> Iterator[Sample]:
    """Sum over all tenants: the endpoint asks for no key, and what a tenant spends is its own affair."""
    spent, reserved = session.execute(
        select(func.coalesce(func.sum(Budget.spent_tokens), 0), func.coalesce(func.sum(Budget.reserved_tokens), 0))
    ).one()
    yield Sample(name="tokenmill_tokens_spent", help="Tokens billed to all tenants.", labels={}, value=int(spent))
    yield Sample(
        name="tokenmill_tokens_reserved", help="Tokens set aside for live batches.", labels={}, value=int(reserved)
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
