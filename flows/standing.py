"""Standing of a flow: its begun nodes and their batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from sqlalchemy import text
from sqlalchemy.orm import Session

from flows.nodes import batches_of
from flows.states import CLAIMABLE_STATES
from flows.tables import Flow, FlowNode
from jobs.states import CANCELLING, TERMINAL_BATCH_STATES, BatchState
from jobs.tables import Batch

FlowRow_co = TypeVar("FlowRow_co", bound=Flow, covariant=True)
Node_co = TypeVar("Node_co", bound=FlowNode, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Standing(Generic[FlowRow_co, Node_co]):
    """A flow as its worker found it."""

    flow: FlowRow_co
    begun: Sequence[Node_co]
    batches: Mapping[str, Batch]
    """Of the nodes, by id."""
    is_stopped: bool
    """Whether it is to end: it is being cancelled, or its tenant was deleted."""

    @property
    def is_over(self) -> bool:
        """Return whether nothing can be advanced: it has ended, or not begun."""
        return self.flow.state not in CLAIMABLE_STATES

    @property
    def open_nodes(self) -> Sequence[Node_co]:
        """Return the nodes whose end is not recorded."""
        return [node for node in self.begun if node.done_at is None]

    @property
    def running(self) -> Sequence[Batch]:
        """Return the batches that have not ended."""
        batches = filter(None, map(self.batch_of, self.begun))
        return [batch for batch in batches if BatchState(batch.state) not in TERMINAL_BATCH_STATES]

    def reached_at(self, began_at: datetime) -> datetime:
        """Return when the flow, which began at that time, reached its current node."""
        return max([began_at, *(node.done_at for node in self.begun if node.done_at is not None)])

    def batch_of(self, node: FlowNode) -> Batch | None:
        """Return the batch of a node; None if there was nothing to do."""
        return None if node.batch_id is None else self.batches[node.batch_id]


AnyStanding = TypeVar("AnyStanding", bound=Standing[Flow, FlowNode])


def read(session: Session, flow: Flow, begun: Sequence[FlowNode], kind: Callable[..., AnyStanding]) -> AnyStanding:
    """Return the current standing of a flow with these begun nodes, as `kind` makes it."""
    is_stopped = flow.state == CANCELLING or session.execute(_IS_DELETED, {"id": flow.tenant_id}).scalar_one()
    return kind(flow=flow, begun=begun, batches=batches_of(session, begun), is_stopped=is_stopped)


_IS_DELETED = text("SELECT deleted_at IS NOT NULL FROM tenant WHERE id = :id")
