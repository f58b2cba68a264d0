"""Measure all open batches, store their forecasts and the work that is due: one process does it for all readers.

Costs as much as there is open work, like the count for `/metrics`; the result is a row per batch, read by its id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.chunks import fleet
from jobs.chunks.fleet import live_workers
from jobs.chunks.recording import copy_rows
from jobs.database import advisory_lock
from jobs.engines import able
from jobs.engines.engine import OWN_ENGINE
from jobs.forecasts import keeping, risks
from jobs.forecasts.finish_times import BatchLoad
from jobs.forecasts.lateness import House, is_late
from jobs.forecasts.looks import ModelState, Outcome, look
from jobs.forecasts.rates import Rate, aged
from jobs.forecasts.running import Running, able_ones, measured, worth
from jobs.forecasts.seen import BatchSeen, Ended, Seen
from jobs.forecasts.sentences import standing
from jobs.forecasts.time_left import load_of
from jobs.scaling import due_work
from jobs.scaling.due_work import OpenDue, OpenWork
from jobs.scaling.rule import Due
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
        if worker.max_chunks:  # it serves: it does not wait for its server, or load its model
            workers[worker.model].append(worker)
    gone = {row.model: float(row.seconds) for row in session.execute(_GONE)}
    ledger_id = session.scalar(_LAST_ENTRY) or 0
    rows_to_store: list[tuple[Any, ...]] = []
    work: dict[str, OpenWork] = {}
    for model in sorted(by_model.keys() | workers.keys() | ended.keys()):
        rows = by_model[model]
        running = measured(session, workers[model], is_saturated=any(row.ready_lines for row in rows))
        house = [worker for worker in running if worker.engine.spill is None]
        found = _Found(rows=rows, ended=ended[model], workers=house, ledger_id=ledger_id, gone_seconds=gone.get(model))
        state, outcomes = _look(session, model, found)
        rows_to_store.extend(_rows(outcomes, state.rate, found))
        work[model] = _work(rows, outcomes, state.rate, house=house)
    due_work.keep(session, work)
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
    """Of the house."""
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
    running = [Running.of(worker) for worker in live_workers(session, model=model) if worker.max_chunks]
    workers = [worker for worker in running if worker.engine.spill is None]
    return ModelQueue(
        loads=[load_of(_seen(row), rate) for row in rows],
        rate=rate,
        num_workers=len(workers),
        worth=worth(workers, rate),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Observations of a model in this measurement."""

    rows: Sequence[Any]
    ended: Sequence[Ended]
    workers: Sequence[Running]
    ledger_id: int
    """The last entry of the ledger: later entries belong to the next measurement."""
    gone_seconds: float | None
    """As in `House`."""

    def house_of(self, row: Any) -> House:
        """Return the workers of the house, as an open batch sees them."""
        claiming = [worker for worker in self.workers if worker.is_claiming]
        num_able = sum(able.may_answer_batch(row, worker.engine) for worker in claiming)
        return House(num_claiming=len(claiming), num_able=num_able, gone_seconds=self.gone_seconds)


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
        num_workers=worth(found.workers, before.rate),
        batches=[_seen(row, num_workers=worth(able_ones(row, found.workers), before.rate)) for row in found.rows],
        ended=found.ended,
    )
    state, outcomes = look(before, seen)
    columns = keeping.kept(state, ledger_id=found.ledger_id) | {"measured_at": text("clock_timestamp()")}
    statement = insert(ServingRate).values(model=model, **columns)
    session.execute(statement.on_conflict_do_update(index_elements=[ServingRate.model], set_=columns))
    return state, outcomes


def _work(rows: Sequence[Any], outcomes: Sequence[Outcome], rate: Rate, *, house: Sequence[Running]) -> OpenWork:
    """Return what the number of workers of a model depends on."""
    tokens = {outcome.found.batch_id: outcome.found.tokens for outcome in outcomes}
    return OpenWork(
        dues=[
            OpenDue(
                priority=Priority(row.priority),
                due=Due(at=row.expires_at.timestamp(), tokens=tokens[row.id]),
                is_for_own=able.may_answer_batch(row, OWN_ENGINE),
            )
            for row in rows
            if row.id in tokens
        ],
        rate=rate.tokens_per_second,
        live=sum(worker.is_claiming for worker in house),
    )


def _rows(outcomes: Sequence[Outcome], rate: Rate, found: _Found) -> list[tuple[Any, ...]]:
    """Return the stored values of each batch of a model, in the order of the columns."""
    workers, by_id = found.workers, {row.id: row for row in found.rows}
    speed = None if rate.tokens_per_second is None or not workers else rate.tokens_per_second * worth(workers, rate)
    return [
        (
            outcome.found.batch_id,
            outcome.found.position,
            outcome.seconds,
            outcome.earliest_seconds,
            outcome.latest_seconds,
            standing(outcome.found, num_workers=len(workers), tokens_per_second=speed),
            keeping.history_as_json(outcome.history),
            _is_late(outcome, by_id[outcome.found.batch_id], found),
        )
        for outcome in outcomes
    ]


def _is_late(outcome: Outcome, row: Any, found: _Found) -> bool:
    left, window = float(row.left_seconds), float(row.window_seconds)
    return is_late(outcome.seconds, found.house_of(row), left_seconds=left, window_seconds=window)


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
        batch.server_model,
        batch.input_tokens - batch.cached_tokens + batch.output_tokens AS used,
        coalesce(file.num_requests, 0) AS file_requests,
        coalesce(file.estimated_input_tokens, 0) AS estimated_input_tokens,
        coalesce(file.estimated_output_tokens, 0) AS estimated_output_tokens,
        extract(epoch FROM batch.expires_at - clock_timestamp()) AS left_seconds,
        extract(epoch FROM batch.expires_at - batch.created_at) AS window_seconds,
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
    WHERE id > :after AND id <= :until AND created_at > now() - interval '1 hour'
        AND model IN (SELECT :model UNION ALL SELECT name FROM model AS adapter WHERE adapter.base = :model)
        AND spill_picos IS NULL
""")

# A drained worker is there as long as it beats. A model that is scaled gets one, though none was there lately.
# A worker that may serve a model, and serves another one now, is not gone, unless it could not load it.
_GONE = text("""
    SELECT model, min(seconds) AS seconds FROM (
        SELECT served.model, CAST(extract(epoch FROM clock_timestamp() - heartbeat_at) AS double precision) AS seconds
        FROM worker, unnest(array_append(may_serve, worker.model)) AS served (model)
        WHERE spill_budget_picos IS NULL AND NOT jsonb_exists(left_out, served.model)
        UNION ALL SELECT model, 'Infinity' FROM scaling
    ) AS seen GROUP BY model
""")

_COPY = (
    "COPY forecast (batch_id, position, seconds, earliest_seconds, latest_seconds, waits_for, told, is_late) FROM STDIN"
)
