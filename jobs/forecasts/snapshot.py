"""Measure all open batches and store their forecasts: one process does it for all readers.

Costs as much as there is open work, like the count for `/metrics`; the result is a row per batch, read by its id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sqlalchemy import text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.chunks.fleet import live_workers
from jobs.chunks.recording import copy_rows
from jobs.database import advisory_lock
from jobs.engines import able
from jobs.engines.engine import ServingEngine
from jobs.forecasts import keeping, risks
from jobs.forecasts.finish_times import BatchLoad
from jobs.forecasts.looks import ModelState, Outcome, look
from jobs.forecasts.rates import Rate, aged
from jobs.forecasts.seen import BatchSeen, Ended, Seen
from jobs.forecasts.sentences import standing
from jobs.forecasts.speeds import WorkerCount, as_workers, measure
from jobs.forecasts.time_left import load_of
from jobs.lines.needs import Need
from jobs.states import Priority
from jobs.tables import ServingRate, Worker


def take(session: Session) -> int:
    """Measure workers, forecast every batch in progress, store both, report risks; return how many
    batches."""
    advisory_lock(session, "forecast")
    by_model: dict[str, list[Any]] = defaultdict(list)
    for row in session.execute(_OPEN_BATCHES, _open_ones(None)).all():
        by_model[row.model].append(row)
    ended: dict[str, list[Ended]] = defaultdict(list)
    for row in session.execute(_ENDED).all():
        ended[row.model].append(Ended(history=keeping.history_of(row.told), ended_at=float(row.ended_at)))
    workers: dict[str, list[Worker]] = defaultdict(list)
    for worker in live_workers(session):
        workers[worker.model].append(worker)
    ledger_id = session.scalar(_LAST_ENTRY) or 0
    rows_to_store: list[tuple[Any, ...]] = []
    for model in sorted(by_model.keys() | workers.keys() | ended.keys()):
        rows = by_model[model]
        own = _measured(session, workers[model], is_saturated=any(row.ready_lines for row in rows))
        found = _Found(rows=rows, ended=ended[model], workers=own, ledger_id=ledger_id)
        state, outcomes = _look(session, model, found)
        rows_to_store.extend(_rows(outcomes, state.rate, workers=own))
    session.execute(text("DELETE FROM forecast"))
    copy_rows(session, _COPY, rows_to_store)
    risks.warn(session)  # last, as it locks batches
    return len(rows_to_store)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelQueue:
    """Queue of a model's workers, and their speed at the last measurement."""

    loads: Sequence[BatchLoad]
    rate: Rate
    num_workers: int
    worth: float
    """Of these workers, in average ones."""

    @property
    def tokens_per_second(self) -> float | None:
        """Return the speed of all workers together; None where it was not measured."""
        return None if self.rate.tokens_per_second is None else self.rate.tokens_per_second * self.worth


def queue_of(session: Session, model: str) -> ModelQueue:
    """Read one model's queue now; costs as much as that model has open work. Stores nothing."""
    rate_row = session.execute(_RATE, {"model": model}).one_or_none()
    rate = Rate() if rate_row is None else aged(keeping.state_of(rate_row).rate, float(rate_row.seconds))
    rows = session.execute(_OPEN_BATCHES, _open_ones(model)).all()
    workers = [_Running.of(worker) for worker in live_workers(session, model=model)]
    return ModelQueue(
        loads=[load_of(_seen(row), rate) for row in rows],
        rate=rate,
        num_workers=len(workers),
        worth=_worth(workers, rate),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A live worker: what it can run, and how fast."""

    engine: ServingEngine
    tokens_per_second: float | None

    @classmethod
    def of(cls, worker: Worker) -> Self:
        return cls(engine=fleet.engine_of(worker), tokens_per_second=(worker.speed or {}).get("tokens_per_second"))


def _measured(session: Session, workers: Sequence[Worker], *, is_saturated: bool) -> list[_Running]:
    """Measure the workers of a model, and store their speeds."""
    now = float(session.execute(_NOW).scalar_one())
    running = []
    for worker in workers:
        num_running = sum(int(lines) for lines, _ in worker.running_lines.values())
        seen = WorkerCount(id=worker.id, num_tokens=worker.num_tokens, running_lines=num_running, before=worker.speed)
        speed = measure(seen, now=now, is_saturated=is_saturated)
        session.execute(update(Worker).where(Worker.id == worker.id).values(speed=speed.state))
        running.append(_Running(engine=fleet.engine_of(worker), tokens_per_second=speed.tokens_per_second))
    return running


def _worth(workers: Sequence[_Running], rate: Rate) -> float:
    return as_workers([worker.tokens_per_second for worker in workers], average=rate.tokens_per_second)


def _able(row: Any, workers: Sequence[_Running]) -> list[_Running]:
    """Return the workers that may run an open batch: all its lines, or at least some where none may run all."""
    some = [worker for worker in workers if able.may_answer_batch(row, worker.engine)]
    return [worker for worker in some if Need(row.needs) in worker.engine.meets] or some


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Observations of a model in this measurement."""

    rows: Sequence[Any]
    ended: Sequence[Ended]
    workers: Sequence[_Running]
    ledger_id: int
    """The last entry of the ledger: later entries belong to the next measurement."""


def _look(session: Session, model: str, found: _Found) -> tuple[ModelState, Sequence[Outcome]]:
    """Measure a model's queue and store the state for the next measurement."""
    row = session.execute(_RATE, {"model": model}).one_or_none()
    last_id = None if row is None else row.ledger_id
    values = {"model": model, "after": found.ledger_id if last_id is None else last_id, "until": found.ledger_id}
    before = ModelState() if row is None else keeping.state_of(row)
    seconds = 0.0 if row is None else float(row.seconds)
    if last_id is None:  # earlier measurements age all the same; the work done since then is unknown
        before, seconds = replace(before, rate=aged(before.rate, seconds)), 0.0
    seen = Seen(
        now=float(session.execute(_NOW).scalar_one()),
        seconds=seconds,
        ended_tokens=float(session.execute(_FINISHED, values).scalar_one()),
        num_workers=_worth(found.workers, before.rate),
        batches=[_seen(row, num_workers=_worth(_able(row, found.workers), before.rate)) for row in found.rows],
        ended=found.ended,
    )
    state, outcomes = look(before, seen)
    columns = keeping.kept(state, ledger_id=found.ledger_id) | {"measured_at": text("clock_timestamp()")}
    statement = insert(ServingRate).values(model=model, **columns)
    session.execute(statement.on_conflict_do_update(index_elements=[ServingRate.model], set_=columns))
    return state, outcomes


def _rows(outcomes: Sequence[Outcome], rate: Rate, *, workers: Sequence[_Running]) -> list[tuple[Any, ...]]:
    """Return the stored values of each batch of a model, in the order of the columns."""
    speed = None if rate.tokens_per_second is None or not workers else rate.tokens_per_second * _worth(workers, rate)
    return [
        (
            outcome.found.batch_id,
            outcome.found.position,
            outcome.seconds,
            outcome.earliest_seconds,
            outcome.latest_seconds,
            standing(outcome.found, num_workers=len(workers), tokens_per_second=speed),
            keeping.history_as_json(outcome.history),
        )
        for outcome in outcomes
    ]


def _open_ones(model: str | None) -> dict[str, object]:
    return {"model": model, "within": fleet.LIVE_WITHIN}


def _seen(row: Any, *, num_workers: float | None = None) -> BatchSeen:
    """Return the observations of an open batch.

    Some lines of open chunks are finished: the open ones are never more than the batch lacks.
    """
    lacking = max(row.num_requests - row.num_finished, 0)
    ready = min(int(row.ready_lines), lacking)
    leased = min(int(row.leased_lines), lacking - ready)
    lines_of_file = max(int(row.file_requests), 1)
    return BatchSeen(
        load=BatchLoad(
            batch_id=row.id,
            tenant_id=row.tenant_id,
            priority=Priority(row.priority),
            weight=row.weight,
            virtual_time=row.virtual_time,
            expires_at=row.expires_at,
        ),
        estimated_tokens=float(row.estimated_input_tokens + row.estimated_output_tokens) / lines_of_file,
        estimated_output_tokens=float(row.estimated_output_tokens) / lines_of_file,
        num_computed=row.num_computed,
        used_tokens=float(row.used),
        output_tokens=float(row.output_tokens),
        ready_lines=ready,
        leased_lines=leased,
        # all lines of a worker that has not reported yet count as running
        running_lines=leased if row.running_lines is None else min(int(row.running_lines), leased),
        begun_output_tokens=float(row.begun_output_tokens),
        part_done=row.num_finished / max(row.num_requests, 1),
        is_waiting=row.waits_for_tokens is not None,
        history=None if row.told is None else keeping.history_of(row.told),
        num_workers=num_workers,
    )


# The chunks once, by the indexes of open ones; everything else is a row per batch. Copies of identical lines are left
# out: nobody computes them.
_OPEN_BATCHES = text(f"""
    SELECT batch.id, batch.tenant_id, batch.model, batch.priority, batch.expires_at, batch.num_requests,
        batch.num_completed + batch.num_failed AS num_finished, batch.waits_for_tokens, batch.output_tokens,
        batch.num_computed, batch.needs, batch.engine, batch.engine_dtype, batch.engine_choice, batch.is_reproducible,
        batch.input_tokens - batch.cached_tokens + batch.output_tokens AS used,
        coalesce(file.num_requests, 0) AS file_requests,
        coalesce(file.estimated_input_tokens, 0) AS estimated_input_tokens,
        coalesce(file.estimated_output_tokens, 0) AS estimated_output_tokens,
        tenant.weight, coalesce(share.virtual_time, 0) AS virtual_time,
        open.ready_lines, open.leased_lines, running.num_lines AS running_lines,
        coalesce(running.num_output_tokens, 0) AS begun_output_tokens, forecast.told
    FROM (
        SELECT batch_id, coalesce(sum(num_lines) FILTER (WHERE state = 'ready'), 0) AS ready_lines,
            coalesce(sum(num_lines) FILTER (WHERE state = 'leased'), 0) AS leased_lines
        FROM (
            SELECT batch_id, state, num_requests - coalesce(cardinality(copies), 0) / 2 AS num_lines
            FROM chunk WHERE state IN ('ready', 'leased') AND (CAST(:model AS text) IS NULL OR model = :model)
        ) AS chunk GROUP BY batch_id
    ) AS open
    JOIN batch ON batch.id = open.batch_id AND batch.state = 'in_progress'
    JOIN file ON file.id = batch.input_file_id
    JOIN tenant ON tenant.id = batch.tenant_id
    LEFT JOIN fair_share AS share ON share.model = batch.model AND share.priority = batch.priority
        AND share.tenant_id = batch.tenant_id
    LEFT JOIN ({fleet.RUNNING}) AS running ON running.batch_id = batch.id
    LEFT JOIN forecast ON forecast.batch_id = batch.id
""")

# Batches with a forecast that are no longer in progress. One that was cut short has not ended as forecast.
_ENDED = text("""
    SELECT batch.model, forecast.told, extract(epoch FROM batch.finalizing_at) AS ended_at
    FROM forecast JOIN batch ON batch.id = forecast.batch_id
    WHERE batch.state <> 'in_progress' AND batch.outcome = 'completed' AND forecast.told IS NOT NULL
        AND batch.finalizing_at IS NOT NULL
""")

_NOW = text("SELECT extract(epoch FROM clock_timestamp())")

# The entry after which to continue: null where there is none, or so old that `_FINISHED` would miss entries since.
_RATE = text("""
    SELECT tokens_per_second, token_ratio, is_saturated, counters,
        CASE WHEN measured_at > clock_timestamp() - interval '1 hour' THEN CAST(counters->>'ledger_id' AS bigint) END
            AS ledger_id,
        extract(epoch FROM clock_timestamp() - measured_at) AS seconds
    FROM serving_rate WHERE model = :model
""")

_LAST_ENTRY = text("SELECT max(id) FROM ledger")

# By the key, so it reads new entries only. Entries rolled up since are older; one committed after a later entry was
# read is missed, a flush at most.
_FINISHED = text("""
    SELECT coalesce(sum(input_tokens - cached_tokens + output_tokens), 0)::bigint FROM ledger
    WHERE id > :after AND id <= :until AND model = :model AND created_at > now() - interval '1 hour'
""")

_COPY = "COPY forecast (batch_id, position, seconds, earliest_seconds, latest_seconds, waits_for, told) FROM STDIN"
