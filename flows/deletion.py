"""Deletes the batches of flows, with their inputs and results. Billing entries stay."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from flows.nodes import batches_of
from flows.tables import FlowNode
from jobs import files
from jobs.batches.deletion import delete_batch
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.tables import File


def delete_batches(session: Session, nodes: Sequence[FlowNode], *, by: str) -> bool:
    """Delete the batches of nodes and the inputs made for them; return False, deleting none, if one has not ended."""
    batches = [batch for batch in batches_of(session, nodes).values() if batch.deleted_at is None]
    if any(BatchState(batch.state) not in TERMINAL_BATCH_STATES for batch in batches):
        return False
    for batch in batches:
        delete_batch(session, batch.tenant_id, batch.id, by=by)
    delete_files(session, [batch.input_file_id for batch in batches], by=by)
    return True


def delete_files(session: Session, file_ids: Sequence[str], *, by: str) -> None:
    """Delete the files of a flow that their owner has not deleted."""
    kept = select(File).where(File.id.in_(file_ids), File.deleted_at.is_(None)).order_by(File.id)
    files.mark_deleted(session, session.scalars(kept.with_for_update()).all(), by=by)
