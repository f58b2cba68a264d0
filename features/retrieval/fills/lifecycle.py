"""Lifecycle of fills: begun by a batch's validation, ended with the batch; the only writer of their state.

Locks in the order batch → fill.
"""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import select
from sqlalchemy.orm import Session

from features.retrieval.states import TERMINAL_FILL_STATES, FillState
from features.retrieval.tables import FillNode, PassageFill
from flows.kinds import Kind
from flows.nodes import batches_of, nodes_of
from flows.reasons import note_reason
from jobs.batches import lifecycle as batches
from jobs.errors import ConflictError
from jobs.hooks import BatchParts
from jobs.tables import Batch

FILLS = Kind(PassageFill, "fill", ends=TERMINAL_FILL_STATES)


def hold(session: Session, batch: Batch) -> str:
    """Begin to fill a locked batch, or go on where its input was missing meanwhile; return the fill's id."""
    fill_id = f"fill_{batch.id.removeprefix('batch_')}"
    fill = FILLS.lock(session, fill_id)
    if fill is None:
        state = FillState.IN_PROGRESS.value
        key_id = batch.api_key_id
        session.add(
            PassageFill(
                id=fill_id, tenant_id=batch.tenant_id, state=state, api_key_id=key_id, for_batch_id=batch.id, models=[]
            )
        )
        session.flush()
    else:
        fill.num_tries = 0
        note_reason(fill, None)
        FILLS.move(session, fill, FillState.IN_PROGRESS)
    return fill_id


def let_go(session: Session, batch: Batch) -> None:
    """Cancel the fill of a locked batch that ends without it, and its lookups."""
    fill = _lock_of(session, batch.id)
    if fill is None or fill.state != FillState.IN_PROGRESS:
        return
    note_reason(fill, f"batch {batch.id!r} is {batch.state}")
    FILLS.move(session, fill, FillState.CANCELLING)
    for lookup in batches_of(session, nodes_of(session, FillNode, fill.id)).values():
        with suppress(ConflictError):  # it has ended
            batches.cancel_batch(session, lookup.tenant_id, lookup.id)


def parts_of(session: Session, batch_id: str) -> BatchParts:
    """Return what is deleted with a batch: its lookups, or the input of a lookup.

    Raises ConflictError where its fill has not ended.
    """
    served = session.scalar(select(FillNode).where(FillNode.batch_id == batch_id))
    if served is not None:
        return BatchParts(file_ids=[session.get_one(Batch, batch_id).input_file_id])
    fill = session.scalar(select(PassageFill).where(PassageFill.for_batch_id == batch_id))
    if fill is None:
        return BatchParts()
    if fill.ended_at is None:
        raise ConflictError(
            f"Cannot delete batch {batch_id!r} yet: the search for its passages is being cancelled. Try again in a few "
            "seconds.",
            code="batch_not_deletable",
        )
    lookups = batches_of(session, nodes_of(session, FillNode, fill.id)).values()
    return BatchParts(batch_ids=[lookup.id for lookup in lookups if lookup.deleted_at is None])


def _lock_of(session: Session, batch_id: str) -> PassageFill | None:
    fill_id = session.scalar(select(PassageFill.id).where(PassageFill.for_batch_id == batch_id))
    return None if fill_id is None else FILLS.lock(session, fill_id)
