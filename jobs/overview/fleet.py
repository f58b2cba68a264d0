"""The workers of each model: how many live, how many were lost, how busy their engines are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import LIVE_WITHIN
from jobs.lines.document_bodies import PREPARE_MODEL

LOST_FOR = timedelta(hours=1)
"""So long a worker is shown that went silent without signing off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A worker, as its last heartbeat told it."""

    worker_id: str
    model: str
    hostname: str
    pid: int
    is_live: bool
    started_at: datetime
    heartbeat_at: datetime
    num_leased: int
    """Chunks that it has, of `num_slots`."""
    num_slots: int
    num_running: int
    """Requests in its engine's running batch."""
    num_waiting: int
    cache_use: float
    """Of the KV cache, 0 to 1."""
    prefix_hits: float | None
    """Prompt tokens that the prefix cache had, of those looked up; None where none were."""
    max_model_len: int

    @property
    def prepares(self) -> bool:
        return self.model == PREPARE_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFleet:
    """The workers of one model together."""

    model: str
    num_live: int
    num_lost: int
    num_leased: int
    num_slots: int
    num_running: int
    cache_use: float
    """The mean over its live workers."""
    tokens_per_second: float
    """Prompt and output, over the last minute that is counted."""


def workers(session: Session) -> Sequence[WorkerSeen]:
    """Return the workers that live, and those that were lost lately, by model and age."""
    rows = session.execute(_WORKERS, {"within": LIVE_WITHIN, "lost_for": LOST_FOR}).mappings()
    return [_seen(**row) for row in rows]


def by_model(session: Session) -> Sequence[ModelFleet]:
    """Return a summary of every model that has workers."""
    seen = workers(session)
    speeds = {row.label: float(row.speed) for row in session.execute(_SPEEDS)}
    models = dict.fromkeys(worker.model for worker in seen if not worker.prepares)
    return [_summed(model, [one for one in seen if one.model == model], speeds.get(model, 0.0)) for model in models]


def _summed(model: str, seen: Sequence[WorkerSeen], speed: float) -> ModelFleet:
    live = [worker for worker in seen if worker.is_live]
    return ModelFleet(
        model=model,
        num_live=len(live),
        num_lost=len(seen) - len(live),
        num_leased=sum(worker.num_leased for worker in live),
        num_slots=sum(worker.num_slots for worker in live),
        num_running=sum(worker.num_running for worker in live),
        cache_use=sum(worker.cache_use for worker in live) / max(len(live), 1),
        tokens_per_second=speed,
    )


def _seen(*, engine_stats: Mapping[str, Any] | None, **columns: Any) -> WorkerSeen:
    stats = engine_stats or {}
    looked_up = float(stats.get("prefix_cache_queries_total", 0))
    return WorkerSeen(
        **columns,
        num_running=int(stats.get("num_requests_running", 0)),
        num_waiting=int(stats.get("num_requests_waiting", 0)),
        cache_use=float(stats.get("kv_cache_usage_perc", 0.0)),
        prefix_hits=float(stats.get("prefix_cache_hits_total", 0)) / looked_up if looked_up else None,
    )


_WORKERS = text("""
    SELECT worker.id AS worker_id, worker.model, hostname, pid, started_at, heartbeat_at, max_model_len, engine_stats,
        heartbeat_at > now() - CAST(:within AS interval) AS is_live,
        max_chunks AS num_slots, coalesce(held.num, 0) AS num_leased
    FROM worker
    LEFT JOIN (SELECT worker_id, count(*) AS num FROM chunk WHERE state = 'leased' GROUP BY worker_id) AS held
        ON held.worker_id = worker.id
    WHERE stopped_at IS NULL AND heartbeat_at > now() - CAST(:lost_for AS interval)
    ORDER BY worker.model, started_at, worker.id
""")

# The last minute that is whole, of those that plots have.
_SPEEDS = text("""
    SELECT label, sum(value) / 60 AS speed FROM plot_point
    WHERE name IN ('input_tokens', 'output_tokens') AND seconds = 60
        AND at = date_trunc('minute', now()) - interval '1 minute'
    GROUP BY label
""")
