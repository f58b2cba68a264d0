"""Live GPU workers, and how many hints they can use. The heartbeat row is the only sign of life."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Interval, bindparam, case, false, func, select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.engines import served
from jobs.engines.engine import OWN_ENGINE, ServingEngine, Spill
from jobs.engines.out import OUT_REASON
from jobs.errors import NotFoundError
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.lines.needs import Need
from jobs.tables import Batch, Model, Worker

# Seven heartbeats of the default 2 s: longer than a Postgres restart, shorter than a lease.
LIVE_WITHIN = timedelta(seconds=15)


def register(
    session: Session,
    *,
    worker_id: str,
    model: str,
    max_chunks: int,
    max_model_len: int,
    engine: ServingEngine = OWN_ENGINE,
    out_reason: str | None = None,
) -> None:
    """Register a worker of this host and process, and its engine; the same id again takes the row over.

    Batches may name its model from now on, as its engine is ready, unless `out_reason` says why it is not.
    """
    values: dict[str, Any] = {
        "model": model,
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "max_chunks": max_chunks,
        "max_model_len": max_model_len,
        "engine_stats": None if out_reason is None else {OUT_REASON: out_reason},
        "running_lines": {},
        "started_at": func.clock_timestamp(),
        "heartbeat_at": func.clock_timestamp(),
        "stopped_at": None,
        "num_tokens": 0,
        "speed": None,
        **_of_engine(engine),
    }
    row = insert(Worker).values(id=worker_id, **values)
    session.execute(row.on_conflict_do_update(index_elements=[Worker.id], set_=values))
    if model != PREPARE_MODEL and out_reason is None:  # no row has it, and prepare workers may change none
        if engine.is_own:  # others are noted with what is seen of them
            served.note(session, model, engine)
        unchecked = update(Model).where(Model.name == model, Model.checked_at.is_(None))
        session.execute(unchecked.values(checked_at=func.clock_timestamp()))


def _of_engine(engine: ServingEngine) -> dict[str, Any]:
    return {
        "engine": engine.kind,
        "engine_version": engine.version,
        "engine_dtype": engine.dtype,
        "meets": int(engine.meets),
        "spill_budget_picos": None if engine.spill is None else engine.spill.budget_picos,
        "adapters": sorted(engine.adapters),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLines:
    """Lines of one batch that a worker is computing."""

    num_lines: int
    """In the engine; lines queued before it do not count."""
    num_output_tokens: int = 0
    """Generated so far for unfinished lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Reply to a worker's heartbeat."""

    is_known: bool
    """False where its row was deleted: `register` again."""
    is_draining: bool
    """Whether an operator has drained it: it claims nothing more."""


def heartbeat(
    session: Session,
    worker_id: str,
    *,
    engine_stats: Mapping[str, Any] | None = None,
    running_lines: Mapping[str, RunningLines] | None = None,
    out_reason: str | None = None,
    engine: ServingEngine | None = None,
    num_tokens: int | None = None,
) -> Beat:
    """Record a sign of life: the engine, its latest stats, running lines by batch, why it claims nothing.

    `num_tokens` are those computed since the worker started.
    """
    values: dict[str, Any] = {"heartbeat_at": func.clock_timestamp()}
    if engine is not None:
        values |= _of_engine(engine)
    if num_tokens is not None:
        values["num_tokens"] = num_tokens
    if running_lines is not None:
        values["running_lines"] = {
            batch_id: [running.num_lines, running.num_output_tokens] for batch_id, running in running_lines.items()
        }
    if engine_stats is not None or out_reason is not None:
        out = {} if out_reason is None else {OUT_REASON: out_reason}
        values["engine_stats"] = {**(engine_stats or {}), **out}
    here = (Worker.id == worker_id) & Worker.stopped_at.is_(None)
    beaten = session.execute(update(Worker).where(here).values(values).returning(Worker.draining_at)).one_or_none()
    return Beat(is_known=beaten is not None, is_draining=beaten is not None and beaten.draining_at is not None)


def engine_of(worker: Any) -> ServingEngine:
    """Return the engine of a worker's row."""
    return ServingEngine(
        kind=worker.engine,
        version=worker.engine_version,
        dtype=worker.engine_dtype,
        meets=Need(worker.meets),
        spill=None if worker.spill_budget_picos is None else Spill(budget_picos=int(worker.spill_budget_picos)),
        adapters=frozenset(worker.adapters),
    )


def out_reason_of(worker: Worker) -> str | None:
    """Return why a worker has stopped claiming on its own; None where it has not."""
    reason: str | None = (worker.engine_stats or {}).get(OUT_REASON)
    return reason


def stop(session: Session, worker_id: str) -> None:
    """Record that the worker has stopped on purpose."""
    session.execute(update(Worker).where(Worker.id == worker_id).values(stopped_at=func.clock_timestamp()))


def find_worker(session: Session, worker_id: str) -> Worker:
    """Return a worker that has not stopped. Raises NotFoundError."""
    worker = session.get(Worker, worker_id)
    if worker is None or worker.stopped_at is not None:
        raise NotFoundError(f"there is no worker {worker_id[:80]!r}; `tokenmill workers list` shows those there are")
    return worker


def set_draining(session: Session, worker: Worker, *, is_draining: bool) -> None:
    """Drain a worker from its next heartbeat on, or end that; a repeated drain keeps the first time."""
    if is_draining != (worker.draining_at is not None):
        worker.draining_at = session.scalar(select(func.now())) if is_draining else None
        session.flush()


def live_workers(session: Session, *, model: str | None = None, within: timedelta = LIVE_WITHIN) -> Sequence[Worker]:
    """Return the workers, of one model or all, with a heartbeat `within` this time, oldest first."""
    query = select(Worker).where(IS_LIVE).order_by(Worker.started_at, Worker.id)
    if model is not None:
        query = query.where(Worker.model == model)
    return session.scalars(query, {"within": within}, execution_options={"populate_existing": True}).all()


def live_models(session: Session, *, within: timedelta = LIVE_WITHIN) -> list[str]:
    """Return the models that a live worker serves, by name; a worker that has stopped claiming serves none."""
    return list(session.scalars(_LIVE_MODELS, {"within": within}))


def contexts(session: Session, *, within: timedelta = LIVE_WITHIN) -> dict[str, int]:
    """Return the longest context, in tokens, among the live workers of each model; adapters have their base's."""
    rows = session.execute(_LONGEST, {"within": within})
    return {name: int(length) for model, length, adapters in rows for name in (model, *adapters)}


def running_lines(session: Session, batches: Sequence[Batch], *, within: timedelta = LIVE_WITHIN) -> dict[str, int]:
    """Return how many lines of each batch are in an engine now."""
    rows = session.execute(_RUNNING, {"ids": [batch.id for batch in batches], "within": within})
    num_lines = {row.batch_id: int(row.num_lines) for row in rows}
    return {batch.id: min(num_lines.get(batch.id, 0), _num_unfinished(batch)) for batch in batches}


def _num_unfinished(batch: Batch) -> int:
    return max(0, batch.num_requests - batch.num_completed - batch.num_failed)


def hint_allowance(
    session: Session, model: str, *, again_seconds: float = 10.0, within: timedelta = LIVE_WITHIN
) -> int:
    """Return how many more hints the live workers of a model can use: free slots minus unanswered hints.

    A full worker needs none: it claims when a chunk ends, and polls for better work meanwhile. Chunks beyond its slots
    do not reduce the others' hints. A hint older than `again_seconds` counts as lost, so that it does not use up the
    allowance for ever.
    """
    values = {"model": model, "within": within, "again": timedelta(seconds=again_seconds)}
    counts = session.execute(_FREE_AND_UNANSWERED, values).one()
    return max(0, int(counts.free_slots) - int(counts.unanswered))


# Built once: building these queries, which run at every tick, takes longer than sending them.
IS_LIVE = Worker.stopped_at.is_(None) & (Worker.heartbeat_at > func.now() - bindparam("within", type_=Interval))

# Engine stats of our own engine are long, so they are read only for workers that drain.
_IS_TAKING = Worker.draining_at.is_(None) & (Worker.engine == OWN_ENGINE.kind)
IS_OUT = func.coalesce(case((_IS_TAKING, false()), else_=Worker.engine_stats.has_key(OUT_REASON)), false())
_LONGEST = (
    select(Worker.model, func.max(Worker.max_model_len), served.adapters_of(Worker.model))
    .where(IS_LIVE, Worker.model != PREPARE_MODEL, Worker.max_model_len > 0)
    .group_by(Worker.model)
)
_LIVE_MODELS = select(Worker.model).where(IS_LIVE, ~IS_OUT).distinct().order_by(Worker.model)

_LIVE = "worker.stopped_at IS NULL AND worker.heartbeat_at > now() - CAST(:within AS interval)"

RUNNING = """
    SELECT own.key AS batch_id, sum(CAST(own.value ->> 0 AS bigint)) AS num_lines,
        sum(CAST(own.value ->> 1 AS bigint)) AS num_output_tokens
    FROM worker CROSS JOIN LATERAL jsonb_each(worker.running_lines) AS own
    WHERE worker.stopped_at IS NULL AND worker.heartbeat_at > now() - CAST(:within AS interval)
    GROUP BY own.key
"""
"""By batch, how many lines live workers compute, and how many tokens they have generated for unfinished lines."""

_RUNNING = text(f"""
    SELECT own.key AS batch_id, sum(CAST(own.value ->> 0 AS bigint)) AS num_lines
    FROM worker CROSS JOIN LATERAL jsonb_each(worker.running_lines) AS own
    WHERE {_LIVE} AND own.key = ANY(CAST(:ids AS text[])) GROUP BY own.key
""")

_HELD = "held AS (SELECT worker_id, count(*) AS num FROM chunk WHERE state = 'leased' GROUP BY worker_id)"
_FREE_SLOTS = f"""(
    SELECT coalesce(sum(greatest(0, worker.max_chunks - coalesce(held.num, 0))), 0)
    FROM worker LEFT JOIN held ON held.worker_id = worker.id
    WHERE worker.model = {{model}} AND worker.draining_at IS NULL AND worker.spill_budget_picos IS NULL AND {_LIVE}
)"""
_UNANSWERED = """(
    SELECT count(*) FROM chunk
    WHERE model = {model} AND state = 'ready' AND hinted_at IS NOT NULL
        AND hinted_at >= now() - CAST(:again AS interval)
)"""

_FREE_AND_UNANSWERED = text(f"""
    WITH {_HELD}
    SELECT {_FREE_SLOTS.format(model=":model")} AS free_slots, {_UNANSWERED.format(model=":model")} AS unanswered
""")

HAS_USE_FOR_HINTS = f"""EXISTS (
    WITH {_HELD}
    SELECT FROM (SELECT DISTINCT model FROM worker WHERE {_LIVE}) AS served
    WHERE (
        SELECT id FROM chunk
        WHERE state = 'ready' AND model = served.model
            AND (hinted_at IS NULL OR hinted_at < now() - CAST(:again AS interval))
        ORDER BY priority, tenant_id, expires_at, id LIMIT 1
    ) IS NOT NULL
        AND {_FREE_SLOTS.format(model="served.model")} > {_UNANSWERED.format(model="served.model")}
)"""
"""Whether `hint_allowance` is positive for a model that has chunks to hint."""
