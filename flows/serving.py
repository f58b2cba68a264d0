"""Batches of flows that serve another batch: they make what its lines need."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from flows.tables import Flow, FlowNode
from jobs.tables import Batch


def serving_batches(session: Session, batch_ids: Collection[str]) -> Mapping[str, Sequence[Batch]]:
    """Return the batches that serve several batches, in order, by the ids of these; in one query."""
    nodes = select(Flow.for_batch_id, Batch).join(FlowNode, FlowNode.flow_id == Flow.id)
    joined = nodes.join(Batch, Batch.id == FlowNode.batch_id)
    of_each: defaultdict[str, list[Batch]] = defaultdict(list)
    for batch_id, batch in session.execute(joined.where(Flow.for_batch_id.in_(batch_ids)).order_by(FlowNode.number)):
        of_each[str(batch_id)].append(batch)
    return of_each
