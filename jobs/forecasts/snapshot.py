"""Looks at all open batches and keeps what is to be expected of each: one process does it for all who ask.

Costs what is open, as the count for `/metrics` does; what is kept is a row a batch, read by its id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.chunks.fleet import live_workers
from jobs.chunks.recording import copy_rows
from jobs.database import advisory_lock
from jobs.forecasts.finish_times import BatchLoad, forecast
from jobs.forecasts.rates import Rate, measured, tokens_of_a_line
from jobs.forecasts.sentences import standing
from jobs.states import Priority
from jobs.tables import ServingRate, Worker

_COUNTERS = ("prompt_tokens_total", "generation_tokens_total")


def take(session: Session) -> int:
    """Measure the workers, forecast every batch in progress, and keep both; return the number of batches."""
    advisory_lock(session, "forecast")
    by_model: dict[str, list[Any]] = defaultdict(list)
    for row in session.execute(_OPEN_BATCHES).all():
        by_model[row.model].append(row)
    workers: dict[str, list[Worker]] = defaultdict(list)
    for worker in live_workers(session):
        workers[worker.model].append(worker)
    kept: list[tuple[Any, ...]] = []
    for model in sorted(by_model.keys() | workers.keys()):
        rate = _measure(session, model, workers[model], by_model[model])
        kept.extend(_rows(by_model[model], rate, num_workers=len(workers[model])))
    session.execute(text("DELETE FROM forecast"))
    copy_rows(session, "COPY forecast (batch_id, position, seconds, waits_for) FROM STDIN", kept)
    return len(kept)


def _measure(session: Session, model: str, workers: Iterable[Worker], rows: Sequence[Any]) -> Rate:
    """Return the model's rate, after this look at its workers."""
    found = session.execute(_RATE, {"model": model}).one_or_none()
    before = Rate() if found is None else _rate(found)
    after = measured(
        before,
        {worker.id: _tokens(worker.engine_stats) for worker in workers if worker.engine_stats},
        seconds=0.0 if found is None else float(found.seconds),
        is_busy=any(row.leased_lines for row in rows),
        is_saturated=any(row.ready_lines for row in rows),
        token_ratio=_token_ratio(rows, otherwise=before.token_ratio),
    )
    values = {
        "tokens_per_second": after.tokens_per_second,
        "token_ratio": after.token_ratio,
        "counters": dict(after.counters),
        "is_saturated": after.is_saturated,
    }
    row = insert(ServingRate).values(model=model, measured_at=text("clock_timestamp()"), **values)
    changed = {**values, "measured_at": text("clock_timestamp()")}
    session.execute(row.on_conflict_do_update(index_elements=[ServingRate.model], set_=changed))
    return after


def _rate(row: Any) -> Rate:
    return Rate(
        tokens_per_second=row.tokens_per_second,
        token_ratio=row.token_ratio,
        counters=row.counters,
        is_saturated=row.is_saturated,
    )


def _tokens(engine_stats: Mapping[str, Any] | None) -> int:
    return sum(int((engine_stats or {}).get(name, 0)) for name in _COUNTERS)


def _token_ratio(rows: Iterable[Any], *, otherwise: float) -> float:
    """Return what finished lines of the open batches used, for each token that was estimated for them."""
    used = sum(row.used for row in rows)
    estimated = sum(_estimated(row) * row.num_finished for row in rows)
    return float(used) / estimated if used and estimated else otherwise


def _estimated(row: Any) -> float:
    """Return the estimate of one line of a batch."""
    return float(row.estimated_tokens) / max(int(row.file_requests), 1)


def _rows(rows: Sequence[Any], rate: Rate, *, num_workers: int) -> list[tuple[Any, ...]]:
    """Return what is kept of each batch of a model: (id, position, seconds to its end or None, sentence or None)."""
    speed = None if rate.tokens_per_second is None or not num_workers else rate.tokens_per_second * num_workers
    is_waiting = {row.id for row in rows if row.waits_for_tokens is not None}
    return [
        (
            found.batch_id,
            found.position,
            None if speed is None or found.batch_id in is_waiting else found.tokens / speed,
            standing(found, num_workers=num_workers, tokens_per_second=speed),
        )
        for found in forecast([_load(row, rate) for row in rows])
    ]


def _load(row: Any, rate: Rate) -> BatchLoad:
    of_a_line = tokens_of_a_line(
        estimated=_estimated(row),
        token_ratio=rate.token_ratio,
        num_finished=row.num_finished,
        used=float(row.used),
    )
    ready, leased = float(row.ready_lines), float(row.leased_lines)
    # Of a chunk that came back some lines are finished: what is open is never more than what the batch lacks.
    lacking = max(row.num_requests - row.num_finished, 0)
    ready = min(ready, lacking)
    leased = min(leased, lacking - ready)
    return BatchLoad(
        batch_id=row.id,
        tenant_id=row.tenant_id,
        priority=Priority(row.priority),
        weight=row.weight,
        virtual_time=row.virtual_time,
        expires_at=row.expires_at,
        ready_tokens=ready * of_a_line,
        leased_tokens=leased * of_a_line,
        leased_lines=int(leased),
    )


# The chunks once, by the indexes of open ones; everything else is a row a batch.
_OPEN_BATCHES = text("""
    SELECT batch.id, batch.tenant_id, batch.model, batch.priority, batch.expires_at, batch.num_requests,
        batch.num_completed + batch.num_failed AS num_finished, batch.waits_for_tokens,
        batch.input_tokens + batch.output_tokens AS used,
        coalesce(file.num_requests, 0) AS file_requests,
        coalesce(file.estimated_input_tokens, 0) + coalesce(file.estimated_output_tokens, 0) AS estimated_tokens,
        tenant.weight, coalesce(share.virtual_time, 0) AS virtual_time,
        open.ready_lines, open.leased_lines
    FROM (
        SELECT batch_id, coalesce(sum(num_requests) FILTER (WHERE state = 'ready'), 0) AS ready_lines,
            coalesce(sum(num_requests) FILTER (WHERE state = 'leased'), 0) AS leased_lines
        FROM chunk WHERE state IN ('ready', 'leased') GROUP BY batch_id
    ) AS open
    JOIN batch ON batch.id = open.batch_id AND batch.state = 'in_progress'
    JOIN file ON file.id = batch.input_file_id
    JOIN tenant ON tenant.id = batch.tenant_id
    LEFT JOIN fair_share AS share ON share.model = batch.model AND share.priority = batch.priority
        AND share.tenant_id = batch.tenant_id
""")

_RATE = text("""
    SELECT tokens_per_second, token_ratio, counters, is_saturated,
        extract(epoch FROM clock_timestamp() - measured_at) AS seconds
    FROM serving_rate WHERE model = :model FOR UPDATE
""")
