"""What batches wait for while passages are looked up for them, as sentences for their owners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from features.retrieval.fills.asking import Lookup
from features.retrieval.tables import FillNode, PassageFill
from flows.nodes import batches_of, nodes_of_each
from jobs.chunks import unserved
from jobs.states import TERMINAL_BATCH_STATES
from jobs.tables import Batch

_NO_WORKER = "Waits for a control worker to look up the passages of its prompts; they take turns between tenants."
_GRACE = timedelta(seconds=10)
"""A shorter wait for a control worker is usual and not reported."""


def waits_of(session: Session, batches: Sequence[Batch]) -> dict[str, str]:
    """Return what held batches wait for, by id, in a few queries for any number of them."""
    fills = session.scalars(select(PassageFill).where(PassageFill.id.in_([batch.held_by for batch in batches]))).all()
    begun = nodes_of_each(session, FillNode, [fill.id for fill in fills])
    lookups = batches_of(session, [node for nodes in begun.values() for node in nodes])
    running = {key: batch for key, batch in lookups.items() if batch.state not in TERMINAL_BATCH_STATES}
    lacks = unserved.waits_for(session, list(running.values())) if running else {}
    now = session.scalar(select(func.clock_timestamp()))
    assert now is not None
    waits = {
        str(fill.for_batch_id): _lookup(fill, begun[fill.id], running, lacks) or _pause(fill, begun[fill.id], now)
        for fill in fills
    }
    return {batch_id: wait for batch_id, wait in waits.items() if wait is not None}


def _lookup(
    fill: PassageFill, begun: Sequence[FillNode], running: Mapping[str, Batch], lacks: Mapping[str, str]
) -> str | None:
    """Return the progress of the first lookup that has not ended."""
    for node in begun:
        batch = running.get(node.batch_id or "")
        if batch is not None:
            done = f"{batch.num_completed + batch.num_failed:,} of {batch.num_requests:,} are done"
            what = "The passages of its prompts are found"
            if node.name == Lookup.EMBED:
                model = fill.models[node.number]
                what = f"The queries for the passages of its prompts are embedded with {model!r}"
            return f"{what} by batch {batch.id!r}: {done}." + (f" {lacks[batch.id]}" if batch.id in lacks else "")
    return None


def _pause(fill: PassageFill, begun: Sequence[FillNode], now: datetime) -> str | None:
    """Return why no lookup is under way."""
    if fill.reason is not None and fill.num_tries == 0:
        return f"The passages of its prompts are looked up as soon as your limits have room: {fill.reason}"
    if fill.reason is not None:
        return f"The passages of its prompts cannot be looked up now, and it is tried again: {fill.reason}"
    since = max([fill.created_at, *(node.done_at for node in begun if node.done_at is not None)])
    return _NO_WORKER if now - since > _GRACE else None
