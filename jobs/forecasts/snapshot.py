"""Looks at all open batches and keeps what is to be expected of each: one process does it for all who ask.

Costs what is open, as the count for `/metrics` does; what is kept is a row a batch, read by its id.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.chunks.fleet import live_workers
from jobs.chunks.recording import copy_rows
from jobs.database import advisory_lock
from jobs.forecasts import risks
from jobs.forecasts.finish_times import BatchLoad, forecast, seconds_to_serve
from jobs.forecasts.rates import Look, Rate, measured, tokens_of_a_line
from jobs.forecasts.sentences import standing
from jobs.states import Priority
from jobs.tables import ServingRate


def take(session: Session) -> int:
    """Measure the workers, forecast every batch in progress, keep both, and warn of those at risk; return how many."""
    advisory_lock(session, "forecast")
    by_model: dict[str, list[Any]] = defaultdict(list)
    for row in session.execute(_OPEN_BATCHES, {"model": None}).all():
        by_model[row.model].append(row)
    num_workers = Counter(worker.model for worker in live_workers(session))
    ledger_id = session.scalar(_LAST_ENTRY) or 0
    kept: list[tuple[Any, ...]] = []
    for model in sorted(by_model.keys() | num_workers.keys()):
        rate = _measure(session, model, by_model[model], num_workers=num_workers[model], ledger_id=ledger_id)
        kept.extend(_rows(by_model[model], rate, num_workers=num_workers[model]))
    session.execute(text("DELETE FROM forecast"))
    copy_rows(session, "COPY forecast (batch_id, position, seconds, waits_for, running_lines) FROM STDIN", kept)
    risks.warn(session)  # last, as it locks batches
    return len(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQueue:
    """What a model's workers have before them, and how fast they were when they were looked at last."""

    loads: Sequence[BatchLoad]
    rate: Rate
    num_workers: int


def queue_of(session: Session, model: str) -> ModelQueue:
    """Read one model's queue now; it costs what is open of that model. Keeps nothing."""
    found = session.execute(_RATE, {"model": model}).one_or_none()
    rate = Rate() if found is None else _rate(found)
    num_workers = len(live_workers(session, model=model))
    rows = session.execute(_OPEN_BATCHES, {"model": model}).all()
    speed = (rate.tokens_per_second or 0.0) * num_workers
    loads = [_load(row, rate, tokens_per_second=speed) for row in rows]
    return ModelQueue(loads=loads, rate=rate, num_workers=num_workers)


def _measure(session: Session, model: str, rows: Sequence[Any], *, num_workers: int, ledger_id: int) -> Rate:
    """Return the model's rate after this look, which ends with the ledger entry `ledger_id`."""
    found = session.execute(_RATE, {"model": model}).one_or_none()
    before = Rate() if found is None else _rate(found)
    last_id = None if found is None else found.ledger_id
    values = {"model": model, "after": ledger_id if last_id is None else last_id, "until": ledger_id}
    look = Look(
        seconds=0.0 if found is None or last_id is None else float(found.seconds),
        tokens=session.execute(_FINISHED, values).scalar_one(),
        num_workers=num_workers,
        is_saturated=any(row.ready_lines for row in rows),
        is_warm=any(row.leased_lines for row in rows)
        and sum(row.num_finished for row in rows) >= sum(_open_lines(row)[1] for row in rows),
        token_ratio=_token_ratio(rows, otherwise=before.token_ratio),
    )
    after = measured(before, look)
    kept = {
        "tokens_per_second": after.tokens_per_second,
        "token_ratio": after.token_ratio,
        "counters": {"ledger_id": ledger_id},
        "is_saturated": after.is_saturated,
        "measured_at": text("clock_timestamp()"),
    }
    row = insert(ServingRate).values(model=model, **kept)
    session.execute(row.on_conflict_do_update(index_elements=[ServingRate.model], set_=kept))
    return after


def _rate(row: Any) -> Rate:
    return Rate(tokens_per_second=row.tokens_per_second, token_ratio=row.token_ratio, is_saturated=row.is_saturated)


def _token_ratio(rows: Iterable[Any], *, otherwise: float) -> float:
    """Return what finished lines of the open batches used, for each token that was estimated for them."""
    used = sum(row.used for row in rows)
    estimated = sum(_estimated(row) * row.num_finished for row in rows)
    return float(used) / estimated if used and estimated else otherwise


def _estimated(row: Any) -> float:
    """Return the estimate of one line of a batch."""
    return float(row.estimated_tokens) / max(int(row.file_requests), 1)


def _rows(rows: Sequence[Any], rate: Rate, *, num_workers: int) -> list[tuple[Any, ...]]:
    """Return what is kept of each batch of a model, in the order of the columns."""
    speed = None if rate.tokens_per_second is None or not num_workers else rate.tokens_per_second * num_workers
    is_waiting = {row.id for row in rows if row.waits_for_tokens is not None}
    loads = [_load(row, rate, tokens_per_second=speed or 0.0) for row in rows]
    leased_lines = {load.batch_id: load.leased_lines for load in loads}
    return [
        (
            found.batch_id,
            found.position,
            None if found.batch_id in is_waiting else seconds_to_serve(found.tokens, tokens_per_second=speed or 0.0),
            standing(found, num_workers=num_workers, tokens_per_second=speed),
            leased_lines[found.batch_id],
        )
        for found in forecast(loads)
    ]


def _load(row: Any, rate: Rate, *, tokens_per_second: float) -> BatchLoad:
    of_a_line = tokens_of_a_line(
        estimated=_estimated(row),
        token_ratio=rate.token_ratio,
        num_finished=row.num_finished,
        used=float(row.used),
    )
    ready, leased = _open_lines(row)
    return BatchLoad(
        batch_id=row.id,
        tenant_id=row.tenant_id,
        priority=Priority(row.priority),
        weight=row.weight,
        virtual_time=row.virtual_time,
        expires_at=row.expires_at,
        ready_tokens=ready * of_a_line,
        leased_tokens=leased * of_a_line,
        leased_lines=leased,
        served_since_claim=tokens_per_second * float(row.seconds_since_claim or 0.0),
    )


def _open_lines(row: Any) -> tuple[int, int]:
    """Return how many lines of a batch wait, and how many workers have, without those that are finished.

    Of open chunks some lines are finished: what is open is never more than what the batch lacks.
    """
    lacking = max(row.num_requests - row.num_finished, 0)
    ready = min(int(row.ready_lines), lacking)
    return ready, min(int(row.leased_lines), lacking - ready)


# The chunks once, by the indexes of open ones; everything else is a row a batch.
_OPEN_BATCHES = text("""
    SELECT batch.id, batch.tenant_id, batch.model, batch.priority, batch.expires_at, batch.num_requests,
        batch.num_completed + batch.num_failed AS num_finished, batch.waits_for_tokens,
        batch.input_tokens + batch.output_tokens AS used,
        coalesce(file.num_requests, 0) AS file_requests,
        coalesce(file.estimated_input_tokens, 0) + coalesce(file.estimated_output_tokens, 0) AS estimated_tokens,
        tenant.weight, coalesce(share.virtual_time, 0) AS virtual_time,
        open.ready_lines, open.leased_lines,
        extract(epoch FROM clock_timestamp() - claimed.last_at) AS seconds_since_claim
    FROM (
        SELECT batch_id, coalesce(sum(num_requests) FILTER (WHERE state = 'ready'), 0) AS ready_lines,
            coalesce(sum(num_requests) FILTER (WHERE state = 'leased'), 0) AS leased_lines
        FROM chunk WHERE state IN ('ready', 'leased') AND (CAST(:model AS text) IS NULL OR model = :model)
        GROUP BY batch_id
    ) AS open
    JOIN batch ON batch.id = open.batch_id AND batch.state = 'in_progress'
    JOIN file ON file.id = batch.input_file_id
    JOIN tenant ON tenant.id = batch.tenant_id
    LEFT JOIN fair_share AS share ON share.model = batch.model AND share.priority = batch.priority
        AND share.tenant_id = batch.tenant_id
    LEFT JOIN LATERAL (
        SELECT max(last_at) AS last_at FROM decision WHERE decision.batch_id = batch.id AND kind = 'claimed'
    ) AS claimed ON TRUE
""")

# The entry to go on after: null where none was noted, or so long ago that `_FINISHED` would not count all since then.
_RATE = text("""
    SELECT tokens_per_second, token_ratio, is_saturated,
        CASE WHEN measured_at > clock_timestamp() - interval '1 hour' THEN CAST(counters->>'ledger_id' AS bigint) END
            AS ledger_id,
        extract(epoch FROM clock_timestamp() - measured_at) AS seconds
    FROM serving_rate WHERE model = :model
""")

_LAST_ENTRY = text("SELECT max(id) FROM ledger")

# By the key, so it reads what is new. What was rolled up since is older; what is committed after a later entry was
# read is missed, a flush at most.
_FINISHED = text("""
    SELECT coalesce(sum(input_tokens + output_tokens), 0)::bigint FROM ledger
    WHERE id > :after AND id <= :until AND model = :model AND created_at > now() - interval '1 hour'
""")
