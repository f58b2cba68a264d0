"""Batches: the one writer of their state, and the sweeps that move them on. Knows no HTTP and no chunk contents."""

from typing import Final

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from jobs.states import BatchState, IllegalMoveError, require_move, sources_of
from jobs.tables import Batch

_MOMENT: Final[dict[BatchState, str]] = {
    state: f"{state.value}_at" for state in BatchState if state is not BatchState.VALIDATING
}
_NEEDS_OUTCOME: Final = BatchState.FINALIZING


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
        .execution_options(populate_existing=True)
    )
    if moved is None:
        raise IllegalMoveError(f"batch {batch.id} left {batch.state} before it could move to {after}")
