"""Sweeps over all tenants' batches: move those that are due, find those that wait for a control worker.

The dispatcher sweeps at each tick; a sweep handles a bounded number of batches, the rest follows in the next one.
Control workers read the due batches and choose themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    Text,
    all_,
    bindparam,
    exists,
    func,
    literal_column,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from jobs.batches.following import may_start
from jobs.batches.lifecycle import move_batch
from jobs.chunks import leasing
from jobs.claims.statements import ClaimSql, condition
from jobs.states import LIVE_BATCH_STATES, BatchState, ChunkState, Priority
from jobs.tables import Batch, Chunk
from jobs.tables.base import one_of

_IS_ANY_OPEN = f"SELECT EXISTS (SELECT FROM batch WHERE {one_of('state', LIVE_BATCH_STATES)})"
_SWEEP_LIMIT = 100  # batches
_DUE_A_QUEUE = 4  # batches: a worker takes one at a time, and others may already have the first ones
_WAITS_SINCE = func.coalesce(Batch.finalizing_at, Batch.cancelling_at, Batch.created_at)


def is_any_open(session: Session) -> bool:
    """Return whether any batch has not ended: otherwise there is nothing to sweep, and no open chunk."""
    return bool(session.connection().exec_driver_sql(_IS_ANY_OPEN).scalar())


def expire_overdue(session: Session) -> list[str]:
    """Move batches whose window is over towards expired; their finished lines are written out first."""
    moved = _lock(session, _LOCK_OVERDUE)
    for batch in moved:
        move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.EXPIRED)
        leasing.withdraw_open(session, batch.id)
    return [batch.id for batch in moved]


def finish_ready(session: Session) -> list[str]:
    """Move batches in progress whose every line has a result to finalizing."""
    moved = _lock(session, _LOCK_ANSWERED)
    for batch in moved:
        move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.COMPLETED)
    return [batch.id for batch in moved]


def pick_for_validation(session: Session, *, again_seconds: float) -> list[str]:
    """Return batches to hint for validation and record the hint; those hinted within `again_seconds` are left out."""
    return _pick(session, _LOCK_TO_VALIDATE, again_seconds=again_seconds)


def pick_for_finalizing(session: Session, *, again_seconds: float) -> list[str]:
    """Return batches whose files can be written, and record the hint; those hinted within `again_seconds` are left out.

    An expired or cancelled batch waits until its workers have given back or lost their chunks; chunks that returned to
    the queue since are withdrawn here.
    """
    for batch_id in session.scalars(_IDS_ENDING_WITH_CHUNKS):
        leasing.withdraw_open(session, batch_id)
    return _pick(session, _LOCK_TO_WRITE_OUT, again_seconds=again_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueBatch:
    """A batch that waits for a control worker."""

    batch_id: str
    tenant_id: str
    priority: Priority
    state: BatchState
    """Validating: to be validated; otherwise its files are to be written."""
    waited: timedelta


def due_batches(session: Session, *, but_for: Collection[tuple[str, BatchState]] = ()) -> list[DueBatch]:
    """Return batches to validate or to write out, hinted or not: per tenant and class the few that wait longest.

    Leaves out those of `but_for`, as (id, state), and claimed ones.
    """
    left = [f"{batch_id} {state.value}" for batch_id, state in but_for]
    rows = session.execute(_DUE, {"left": left})
    return [
        DueBatch(
            batch_id=row.id,
            tenant_id=row.tenant_id,
            # overflow is validated as bulk work, which ages
            priority=Priority.BULK if row.priority == Priority.OVERFLOW else Priority(row.priority),
            state=BatchState(row.state),
            waited=row.waited,
        )
        for row in rows
    ]


def _due() -> Select[Any]:
    """Return the query of `due_batches`; parameter `left`: ids with states."""
    columns = (Batch.id, Batch.tenant_id, Batch.priority, Batch.state, _WAITS_SINCE.label("since"))
    key = Batch.id + literal_column("' '") + Batch.state
    is_free = (key != all_(bindparam("left", type_=ARRAY(Text)))) & _is_unclaimed()
    due = union_all(
        select(*columns).where(_is_in(BatchState.VALIDATING), is_free, may_start()),
        select(*columns).where(_awaits_files(), is_free),
    ).subquery()
    number = func.row_number().over(partition_by=(due.c.priority, due.c.tenant_id), order_by=(due.c.since, due.c.id))
    numbered = select(due, number.label("number")).subquery()
    waited = func.clock_timestamp() - numbered.c.since
    return select(numbered, waited.label("waited")).where(numbered.c.number <= _DUE_A_QUEUE)


def _lock(session: Session, idle: Select[Batch], **values: object) -> Sequence[Batch]:
    return session.scalars(idle, values, execution_options={"populate_existing": True}).all()


def _pick(session: Session, due: Select[Batch], *, again_seconds: float) -> list[str]:
    ids = [batch.id for batch in _lock(session, due, again_seconds=again_seconds)]
    if ids:  # in most ticks there are none
        session.execute(update(Batch).where(Batch.id.in_(ids)).values(hinted_at=func.now()))
    return ids


def _idle(batches: Select[Batch]) -> Select[Batch]:
    """Return a query that locks only unlocked batches: a busy one is left for a later tick."""
    return batches.order_by(Batch.id).limit(_SWEEP_LIMIT).with_for_update(skip_locked=True, key_share=True)


def _is_ending() -> ColumnElement[bool]:
    return _is_in(BatchState.FINALIZING, BatchState.CANCELLING)


def _awaits_files() -> ColumnElement[bool]:
    return _is_ending() & ~_has_open_chunk()


def _is_unclaimed() -> ColumnElement[bool]:
    return condition(ClaimSql("batch").is_free) & Batch.deferred_until.is_(None)


def _has_open_chunk() -> ColumnElement[bool]:
    # Three conditions, as there are three indexes.
    return _has_chunk(ChunkState.READY, ChunkState.LEASED) | _has_waiting_chunk()


def _has_waiting_chunk() -> ColumnElement[bool]:
    return _has_chunk(ChunkState.WAITING) | _has_chunk(ChunkState.DEFERRED)


def _is_in(*states: BatchState) -> ColumnElement[bool]:
    return Batch.state.in_(_literals(states))


def _has_chunk(*states: ChunkState) -> ColumnElement[bool]:
    return exists().where(Chunk.batch_id == Batch.id, Chunk.state.in_(_literals(states)))


def _literals(states: Iterable[BatchState | ChunkState]) -> list[ColumnElement[str]]:
    """Return literals in place of parameters: the planner matches them with the predicates of the partial indexes."""
    return [literal_column(f"'{state}'") for state in states]


# Built once: building a query takes several times as long as running it, and the dispatcher runs it at every tick.
_WAS_HINTED_LONG_AGO = Batch.hinted_at.is_(None) | (
    Batch.hinted_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, bindparam("again_seconds"))
)
_OVERDUE = select(Batch).where(_is_in(BatchState.VALIDATING, BatchState.IN_PROGRESS), Batch.expires_at <= func.now())
_ANSWERED = select(Batch).where(
    _is_in(BatchState.IN_PROGRESS), Batch.is_answered, ~Batch.is_growing, ~_has_open_chunk()
)
_TO_VALIDATE = select(Batch).where(_is_in(BatchState.VALIDATING), _is_unclaimed(), may_start(), _WAS_HINTED_LONG_AGO)
_TO_WRITE_OUT = select(Batch).where(_awaits_files(), _is_unclaimed(), _WAS_HINTED_LONG_AGO)
_ENDING_WITH_CHUNKS = select(Batch).where(_is_ending(), _has_chunk(ChunkState.READY) | _has_waiting_chunk())
SWEPT = (_OVERDUE, _ANSWERED, _TO_VALIDATE, _TO_WRITE_OUT, _ENDING_WITH_CHUNKS)
"""Queries of the batches that this module's sweeps would find; parameter `again_seconds`."""

_LOCK_OVERDUE = _idle(_OVERDUE.order_by(Batch.expires_at))
_LOCK_ANSWERED, _LOCK_TO_VALIDATE, _LOCK_TO_WRITE_OUT = map(_idle, (_ANSWERED, _TO_VALIDATE, _TO_WRITE_OUT))
_IDS_ENDING_WITH_CHUNKS = _ENDING_WITH_CHUNKS.with_only_columns(Batch.id).limit(_SWEEP_LIMIT)
_DUE = _due()
