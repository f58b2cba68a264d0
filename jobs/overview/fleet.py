"""Workers of each model: how many live, how many were lost, how busy their engines are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.chunks.fleet import LIVE_WITHIN
from jobs.engines.names import label
from jobs.lines.document_bodies import PREPARE_MODEL

LOST_FOR = timedelta(hours=1)
"""How long a worker that went silent without stopping is shown as lost, if none replaces it.

Each worker of the same model that starts after the lost one's last heartbeat, and is not draining, replaces one lost
worker, longest lost first. A replacement that is lost itself is shown as lost, and the one it replaced is not.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeen:
    """A worker, as of its last heartbeat."""

    worker_id: str
    model: str
    hostname: str
    pid: int
    is_live: bool
    is_draining: bool
    """An operator has drained it: it claims nothing more."""
    out_reason: str | None
    """Its own reason to claim nothing more."""
    started_at: datetime
    heartbeat_at: datetime
    num_leased: int
    """Chunks that it holds, of `num_slots`."""
    num_slots: int
    num_running: int
    """Requests in its engine's running batch."""
    num_waiting: int
    cache_use: float
    """Of the KV cache, 0 to 1."""
    prefix_hits: float | None
    """Share of looked-up prompt tokens found in the prefix cache; None where none were looked up."""
    max_model_len: int
    engine: str
    engine_version: str | None
    is_outside: bool
    """Whether its server is outside the house."""
    may_serve: Sequence[str]
    """All models of a worker that serves one of several at a time."""
    left_out: Mapping[str, str]
    """Those of them that it could not load, with the reasons."""

    @property
    def is_loading(self) -> bool:
        """Tell whether it is about to serve its model, one of several."""
        return bool(self.may_serve) and not self.num_slots and self.model not in self.left_out

    @property
    def engine_label(self) -> str:
        return label(self.engine, self.engine_version, is_outside=self.is_outside)


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
    """Prompt and output, over the last complete minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersCounted:
    """How many workers there are."""

    num_live: int
    num_lost: int

    @property
    def num_all(self) -> int:
        return self.num_live + self.num_lost


def count_workers(session: Session) -> WorkersCounted:
    """Count live workers, and lost ones: `LOST_FOR`."""
    row = session.execute(_COUNT, {"within": LIVE_WITHIN, "lost_for": LOST_FOR}).one()
    return WorkersCounted(num_live=row.num_live, num_lost=row.num_lost)


def workers(session: Session, *, skip: int = 0, most: int) -> Sequence[WorkerSeen]:
    """Return workers, lost ones first, then by model and age: at most this many, after those to skip."""
    values = {"within": LIVE_WITHIN, "lost_for": LOST_FOR, "skip": skip, "most": most}
    return [WorkerSeen(**row) for row in session.execute(_WORKERS, values).mappings()]


def by_model(session: Session) -> Sequence[ModelFleet]:
    """Return a summary of every model that has workers."""
    values = {"within": LIVE_WITHIN, "lost_for": LOST_FOR, "prepare": PREPARE_MODEL}
    return [ModelFleet(**row) for row in session.execute(_BY_MODEL, values).mappings()]


def _told(name: str, type_: str) -> str:
    """Return an engine statistic of a worker, as SQL. Heartbeats are long: only this part is read."""
    return f"coalesce(CAST(CAST(engine_stats ->> '{name}' AS double precision) AS {type_}), 0)"


_RUNNING, _CACHE_USE = _told("num_requests_running", "bigint"), _told("kv_cache_usage_perc", "double precision")

# Starts and losses in order form a queue of places to take: the number left is the maximum of the sums of its suffixes.
# Those left are the latest.
_SEEN = """
    FROM (
        WITH known AS (
            SELECT *, heartbeat_at > now() - CAST(:within AS interval) AS is_live
            FROM worker WHERE stopped_at IS NULL AND heartbeat_at > now() - CAST(:lost_for AS interval)
        ), change AS (
            SELECT model, heartbeat_at AS at, 1 AS places FROM known WHERE NOT is_live
            UNION ALL SELECT model, started_at, -1 FROM known WHERE draining_at IS NULL
        ), vacant AS (
            SELECT model, max(places) AS num
            FROM (SELECT model, sum(places) OVER (PARTITION BY model ORDER BY at DESC) AS places FROM change) AS since
            GROUP BY model
        ), numbered AS (
            SELECT *, row_number() OVER (PARTITION BY model, is_live ORDER BY heartbeat_at DESC, id) AS place FROM known
        )
        SELECT numbered.* FROM numbered LEFT JOIN vacant ON vacant.model = numbered.model
        WHERE is_live OR place <= vacant.num
    ) AS worker
    LEFT JOIN (SELECT worker_id, count(*) AS num FROM chunk WHERE state = 'leased' GROUP BY worker_id) AS held
        ON held.worker_id = worker.id
"""

_COUNT = text(f"""
    SELECT count(*) FILTER (WHERE is_live) AS num_live, count(*) FILTER (WHERE NOT is_live) AS num_lost {_SEEN}
""")

# Engine statistics are read only for workers on the page.
_ORDER = "is_live, worker.model, started_at, worker.id"
_WORKERS = text(f"""
    SELECT worker.id AS worker_id, worker.model, hostname, pid, is_live,
        draining_at IS NOT NULL AS is_draining, engine_stats ->> 'out_reason' AS out_reason,
        started_at, heartbeat_at, max_model_len, engine, engine_version,
        spill_budget_picos IS NOT NULL AS is_outside, may_serve, left_out,
        num_leased, max_chunks AS num_slots,
        {_RUNNING} AS num_running, {_told("num_requests_waiting", "bigint")} AS num_waiting, {_CACHE_USE} AS cache_use,
        {_told("prefix_cache_hits_total", "double precision")}
            / nullif({_told("prefix_cache_queries_total", "double precision")}, 0) AS prefix_hits
    FROM (
        SELECT worker.*, coalesce(held.num, 0) AS num_leased {_SEEN}
        ORDER BY {_ORDER} LIMIT :most OFFSET :skip
    ) AS worker
    ORDER BY {_ORDER}
""")

# Their speed is that of the last complete minute of the plots.
_BY_MODEL = text(f"""
    SELECT seen.*, coalesce(speed.tokens_per_second, 0) AS tokens_per_second
    FROM (
        SELECT worker.model,
            count(*) FILTER (WHERE is_live) AS num_live, count(*) FILTER (WHERE NOT is_live) AS num_lost,
            CAST(coalesce(sum(held.num) FILTER (WHERE is_live), 0) AS bigint) AS num_leased,
            coalesce(sum(max_chunks) FILTER (WHERE is_live), 0) AS num_slots,
            CAST(coalesce(sum({_RUNNING}) FILTER (WHERE is_live), 0) AS bigint) AS num_running,
            coalesce(avg({_CACHE_USE}) FILTER (WHERE is_live), 0) AS cache_use
        {_SEEN} WHERE worker.model <> :prepare
        GROUP BY worker.model
    ) AS seen
    LEFT JOIN (
        SELECT label, sum(value) / 60 AS tokens_per_second FROM plot_point
        WHERE name IN ('total_input_tokens', 'total_output_tokens') AND tenant_id = '' AND seconds = 60
            AND at = date_trunc('minute', now()) - interval '1 minute'
        GROUP BY label
    ) AS speed ON speed.label = seen.model
    ORDER BY seen.model
""")
