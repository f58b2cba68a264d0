"""Batches: create, look at, list, cancel, the one writer of their state, and the sweeps that move them on.

Knows no HTTP and no contents of lines. Locks in the order chunk → batch → budget.
"""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import ColumnElement, Select, exists, func, literal_column, select, text, update
from sqlalchemy.orm import Session

from jobs import budgets, chunks
from jobs.database import advisory_lock
from jobs.errors import ConflictError, NotFoundError
from jobs.files import share_file
from jobs.ids import new_id
from jobs.pages import Page, read_page
from jobs.partitions import batch_day, ensure_result_partition
from jobs.settings import Settings
from jobs.states import BatchState, IllegalMoveError, require_move, sources_of
from jobs.submission import CreateBatch, check_file, check_request, parse_window
from jobs.tables import Batch, Chunk, Tenant

__all__ = [
    "CreateBatch",
    "cancel_batch",
    "create_batch",
    "due_for_finalizing",
    "due_for_validation",
    "expire_overdue",
    "finish_ready",
    "get_batch",
    "list_batches",
    "lock_batch",
    "move_batch",
    "overdue_finalizing",
    "overdue_validation",
]

_SWEEP_LIMIT: Final = 100  # batches moved or hinted in one tick
_RETRY_MINUTES: Final = 10  # a client's key-less retries come within seconds; ten minutes outlast its longest wait
_MOMENT: Final[dict[BatchState, str]] = {
    state: f"{state.value}_at" for state in BatchState if state is not BatchState.VALIDATING
}
_NEEDS_OUTCOME: Final = BatchState.FINALIZING


def create_batch(session: Session, tenant: Tenant, wanted: CreateBatch, settings: Settings) -> Batch:
    """Accept a batch and reserve its estimated tokens, or refuse it for good: no limit fails it later.

    Sent again, it returns the batch made before: with the same idempotency key, or without a key when the client says
    that it retries. Raises InputError, TooLargeError, OverBudgetError, NotFoundError, or ConflictError where the key
    was used for another request.
    """
    check_request(wanted)
    fingerprint = wanted.fingerprint()
    _wait_for_twins(session, tenant.id, wanted, fingerprint=fingerprint)
    earlier = _find_earlier(session, tenant.id, wanted, fingerprint=fingerprint)
    if earlier is not None:
        return earlier
    file = share_file(session, tenant.id, wanted.input_file_id)
    if file is None:
        raise NotFoundError(
            f"No such File object: {wanted.input_file_id!r}. It may have been deleted or have expired.",
            param="input_file_id",
        )
    check_file(file, settings)
    now = session.scalar(select(func.now()))
    assert now is not None
    ensure_result_partition(session, batch_day(now))
    tokens = (file.estimated_input_tokens or 0) + (file.estimated_output_tokens or 0)
    budgets.reserve(session, tenant.id, tokens)
    batch = Batch(
        id=new_id("batch"),
        tenant_id=tenant.id,
        input_file_id=file.id,
        endpoint=wanted.endpoint,
        completion_window=wanted.completion_window,
        priority=wanted.priority.value,
        invalid_lines=wanted.invalid_lines.value,
        request_metadata=None if wanted.metadata is None else dict(wanted.metadata),
        output_expires_after_seconds=wanted.output_expires_after_seconds,
        idempotency_key=wanted.idempotency_key,
        fingerprint=fingerprint,
        reserved_tokens=tokens,
        created_at=now,
        expires_at=now + parse_window(wanted.completion_window),
    )
    session.add(batch)
    session.flush()
    session.refresh(batch)
    return batch


def get_batch(session: Session, tenant_id: str, batch_id: str) -> Batch:
    """Return a batch of this tenant. Raises NotFoundError, also for another tenant's."""
    batch = session.scalar(select(Batch).where(Batch.id == batch_id, Batch.tenant_id == tenant_id))
    if batch is None:
        raise _not_found(batch_id)
    return batch


def list_batches(session: Session, tenant_id: str, *, after: str | None = None, limit: int = 20) -> Page[Batch]:
    """Return a page of a tenant's batches, newest first. Raises InputError on an unknown `after`."""
    query = select(Batch).where(Batch.tenant_id == tenant_id)
    return read_page(session, query, table=Batch, tenant_id=tenant_id, after=after, limit=limit)


def cancel_batch(session: Session, tenant_id: str, batch_id: str) -> Batch:
    """Ask a validating or running batch to stop; finished lines stay and are billed.

    Repeating it is no error. Raises ConflictError where the batch has ended or is writing its files.
    """
    get_batch(session, tenant_id, batch_id)
    batch = lock_batch(session, batch_id)
    assert batch is not None, "batches are never deleted"
    if batch.state == BatchState.CANCELLING:
        return batch
    if batch.state not in sources_of(BatchState.CANCELLING):
        raise ConflictError(f"Cannot cancel a batch with status '{batch.state}'.", code="batch_not_cancellable")
    move_batch(session, batch, BatchState.CANCELLING)
    chunks.withdraw_open(session, batch.id)
    return batch


def lock_batch(session: Session, batch_id: str) -> Batch | None:
    """Return the batch, fresh and locked until the transaction ends, or None."""
    return session.scalar(
        select(Batch)
        .where(Batch.id == batch_id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )


def move_batch(session: Session, batch: Batch, after: BatchState, *, outcome: BatchState | None = None) -> None:
    """Move a batch to its next state and note the moment; nobody else writes `batch.state`.

    A move to finalizing names its `outcome` (completed, expired or failed). Raises IllegalMoveError where the table
    does not allow the move, also when another transaction moved the batch meanwhile: `lock_batch` first.
    """
    require_move(BatchState(batch.state), after)
    assert (outcome is not None) == (after is _NEEDS_OUTCOME), f"{after} with outcome {outcome}"
    values = {"state": after.value, _MOMENT[after]: func.now(), "hinted_at": None}
    if outcome is not None:
        require_move(after, outcome)
        values["outcome"] = outcome.value
    session.flush()
    moved = session.scalar(
        update(Batch)
        .where(Batch.id == batch.id, Batch.state == batch.state, Batch.state.in_(sources_of(after)))
        .values(values)
        .returning(Batch)
        # False: a move that does not happen must not show in the object either.
        .execution_options(populate_existing=True, synchronize_session=False)
    )
    if moved is None:
        raise IllegalMoveError(f"batch {batch.id} left {batch.state} before it could move to {after}")


def expire_overdue(session: Session) -> list[str]:
    """Move batches whose window is over towards expired; their finished lines are written out first."""
    movable = [state.value for state in (BatchState.VALIDATING, BatchState.IN_PROGRESS)]
    overdue = select(Batch).where(_is_in(movable), Batch.expires_at <= func.now())
    moved = _locked(session, overdue)
    for batch in moved:
        move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.EXPIRED)
        chunks.withdraw_open(session, batch.id)
    return [batch.id for batch in moved]


def finish_ready(session: Session) -> list[str]:
    """Move batches in progress whose every line has a result to finalizing."""
    answered = Batch.num_completed + Batch.num_failed >= Batch.num_requests
    finished = select(Batch).where(_is_in([BatchState.IN_PROGRESS.value]), answered, ~_has_chunk("ready", "leased"))
    moved = _locked(session, finished)
    for batch in moved:
        move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.COMPLETED)
    return [batch.id for batch in moved]


def due_for_validation(session: Session, *, again_seconds: float) -> list[str]:
    """Return batches to hint for validation and note the hint; those hinted within `again_seconds` are left out."""
    return _hint(session, _is_in([BatchState.VALIDATING.value]), again_seconds=again_seconds)


def due_for_finalizing(session: Session, *, again_seconds: float) -> list[str]:
    """Return batches whose files can be written, and note the hint; those hinted within `again_seconds` are left out.

    An expired or cancelled batch waits until its workers have given their chunks back or lost them; chunks that came
    back to the queue since are withdrawn here.
    """
    for batch_id in session.scalars(select(Batch.id).where(_is_ending(), _has_chunk("ready")).limit(_SWEEP_LIMIT)):
        chunks.withdraw_open(session, batch_id)
    return _hint(session, _awaits_files(), again_seconds=again_seconds)


def overdue_validation(session: Session, *, hinted_before_seconds: float) -> list[str]:
    """Return batches whose hint to validate nobody answered, or none came, for that long: for a broker that is away."""
    return _overdue(session, _is_in([BatchState.VALIDATING.value]), seconds=hinted_before_seconds)


def overdue_finalizing(session: Session, *, hinted_before_seconds: float) -> list[str]:
    """As `overdue_validation`, for batches whose files can be written."""
    return _overdue(session, _awaits_files(), seconds=hinted_before_seconds)


def _wait_for_twins(session: Session, tenant_id: str, wanted: CreateBatch, *, fingerprint: str) -> None:
    """Let equal creates pass one by one: a retry must see what the first try, perhaps still running, commits."""
    twins = f"key {wanted.idempotency_key}" if wanted.idempotency_key is not None else fingerprint
    advisory_lock(session, f"create {tenant_id} {twins}")


def _find_earlier(session: Session, tenant_id: str, wanted: CreateBatch, *, fingerprint: str) -> Batch | None:
    mine = select(Batch).where(Batch.tenant_id == tenant_id)
    if wanted.idempotency_key is not None:
        batch = session.scalar(mine.where(Batch.idempotency_key == wanted.idempotency_key))
        if batch is not None and batch.fingerprint != fingerprint:
            raise ConflictError(
                f"The Idempotency-Key {wanted.idempotency_key!r} was used for another request, which made batch "
                f"{batch.id!r}. Repeat that request unchanged, or use a new key.",
                code="idempotency_key_reused",
            )
        return batch
    if wanted.retry_count == 0:
        return None
    recent = Batch.created_at > func.now() - text(f"interval '{_RETRY_MINUTES} minutes'")
    same = mine.where(Batch.fingerprint == fingerprint, Batch.idempotency_key.is_(None), recent)
    return session.scalar(same.order_by(Batch.created_at.desc(), Batch.id.desc()).limit(1))


def _is_in(states: Sequence[str]) -> ColumnElement[bool]:
    # Literals, not parameters: the planner matches them with the predicate of the partial index.
    return Batch.state.in_([literal_column(f"'{state}'") for state in states])


def _has_chunk(*states: str) -> ColumnElement[bool]:
    listed = ", ".join(f"'{state}'" for state in states)
    return exists().where(Chunk.batch_id == Batch.id, literal_column(f"chunk.state IN ({listed})"))


def _is_ending() -> ColumnElement[bool]:
    return _is_in([BatchState.FINALIZING.value, BatchState.CANCELLING.value])


def _awaits_files() -> ColumnElement[bool]:
    return _is_ending() & ~_has_chunk("ready", "leased")


def _hinted_before(seconds: float) -> ColumnElement[bool]:
    return Batch.hinted_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)


def _locked(session: Session, query: Select[Batch]) -> Sequence[Batch]:
    """Return rows nobody else holds: a busy batch is moved at a later tick rather than waited for."""
    locked = query.order_by(Batch.id).limit(_SWEEP_LIMIT).with_for_update(skip_locked=True, key_share=True)
    return session.scalars(locked, execution_options={"populate_existing": True}).all()


def _hint(session: Session, due: ColumnElement[bool], *, again_seconds: float) -> list[str]:
    batches = _locked(session, select(Batch).where(due, Batch.hinted_at.is_(None) | _hinted_before(again_seconds)))
    ids = [batch.id for batch in batches]
    session.execute(update(Batch).where(Batch.id.in_(ids)).values(hinted_at=func.now()))
    return ids


def _overdue(session: Session, due: ColumnElement[bool], *, seconds: float) -> list[str]:
    waiting = func.coalesce(Batch.hinted_at, Batch.finalizing_at, Batch.cancelling_at, Batch.created_at)
    long_ago = waiting < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    return list(session.scalars(select(Batch.id).where(due, long_ago).order_by(Batch.id).limit(_SWEEP_LIMIT)))


def _not_found(batch_id: str) -> NotFoundError:
    return NotFoundError(f"No batch found with id {batch_id!r}.", param="batch_id")
