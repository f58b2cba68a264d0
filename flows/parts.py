"""What a flow consists of so far: its begun nodes, their batches, and the batches that these depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from sqlalchemy.orm import Session

from flows.nodes import AnyNode, batches_of, nodes_of
from flows.serving import serving_batches
from jobs.tables import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowParts(Generic[AnyNode]):
    """The begun nodes of a flow, in order, and their batches."""

    begun: Sequence[AnyNode]
    batches: Mapping[str, Batch]
    """Of the nodes, by id."""
    serving: Mapping[str, Sequence[Batch]]
    """The batches of flows that served a node's batch, in order, by its id."""

    def batch_of(self, node: AnyNode) -> Batch | None:
        """Return the batch of a node; None if there was nothing to do."""
        return None if node.batch_id is None else self.batches[node.batch_id]

    @property
    def all_batches(self) -> dict[str, Batch]:
        """Return all batches that worked for the flow, by id."""
        return {**self.batches, **{batch.id: batch for each in self.serving.values() for batch in each}}


def read_parts(session: Session, kind: type[AnyNode], flow_id: str) -> FlowParts[AnyNode]:
    """Return the parts of a flow, in three queries."""
    begun = nodes_of(session, kind, flow_id)
    batches = batches_of(session, begun)
    return FlowParts(begun=begun, batches=batches, serving=serving_batches(session, batches))
