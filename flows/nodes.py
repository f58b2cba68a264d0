"""Rows of nodes: their begin and end, and their batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TypeVar

from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from flows.counted_lines import CountedLines
from flows.tables import Flow, FlowNode
from flows.windows import window_left
from jobs import files
from jobs.batches import made_inputs
from jobs.batches.submission import CreateBatch
from jobs.files import NewFile
from jobs.settings import Settings
from jobs.states import AskedPriority, InvalidLines, UncoveredLines
from jobs.storage import Storage
from jobs.tables import Batch, Tenant

AnyNode = TypeVar("AnyNode", bound=FlowNode)


def nodes_of(session: Session, kind: type[AnyNode], flow_id: str) -> list[AnyNode]:
    """Return the nodes of a flow that have begun, in order."""
    return nodes_of_each(session, kind, [flow_id])[flow_id]


def nodes_of_each(session: Session, kind: type[AnyNode], flow_ids: Collection[str]) -> dict[str, list[AnyNode]]:
    """Return the begun nodes of several flows, in order, by flow id; in one query."""
    nodes: dict[str, list[AnyNode]] = {flow_id: [] for flow_id in flow_ids}
    for node in session.scalars(_nodes(kind), {"flow_ids": list(flow_ids)}):
        nodes[node.flow_id].append(node)
    return nodes


def batches_of(session: Session, nodes: Sequence[FlowNode]) -> dict[str, Batch]:
    """Return the batches of nodes by their ids."""
    ids = [node.batch_id for node in nodes if node.batch_id is not None]
    if not ids:
        return {}
    return {batch.id: batch for batch in session.scalars(_BATCHES, {"ids": ids})}


@cache
def _nodes(kind: type[AnyNode]) -> Select[AnyNode]:
    return select(kind).where(kind.flow_id.in_(bindparam("flow_ids", expanding=True))).order_by(kind.number)


_BATCHES = select(Batch).where(Batch.id.in_(bindparam("ids", expanding=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBatch:
    """The batch of a node, apart from its lines."""

    name: str
    endpoint: str
    priority: str
    expires_at: datetime
    """When the flow's time is over."""
    metadata: Mapping[str, str]
    """In addition to the node's name."""
    outputs_last_seconds: int
    least_minutes: int = 1
    """Minimum window, even where the flow's time is over."""
    serves: str | None = None
    """The id of the accepted batch that it serves: neither a right nor a full queue refuses it."""
    uncovered_lines: UncoveredLines = UncoveredLines.WAIT
    trace_context: str | None = None
    is_growing: bool = False
    """Whether lines will be added to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenLines:
    """The lines of a node in the object store; no row names them yet."""

    file: NewFile | None
    """None without a line."""
    num_lines: int

    @property
    def object_key(self) -> str | None:
        return None if self.file is None else self.file.object_key


def write_lines(storage: Storage, flow: Flow, name: str, lines: Iterable[bytes], *, settings: Settings) -> WrittenLines:
    """Write the lines of a node. Raises ServiceError."""
    counted = CountedLines(lines)
    key = files.new_object_key(flow.tenant_id)
    file = made_inputs.write_input(storage, key, counted, filename=f"{flow.id}_{name}.jsonl", settings=settings)
    if counted.num_lines:
        return WrittenLines(file=file, num_lines=counted.num_lines)
    storage.delete(key)
    return WrittenLines(file=None, num_lines=0)


def begin(
    session: Session, flow: Flow, node: FlowNode, *, lines: NewFile | None, wanted: NodeBatch, settings: Settings
) -> None:
    """Record that a node has begun and create its batch, in the transaction of the claim; no batch without lines.

    Raises what creating a batch raises.
    """
    if lines is not None:
        node.batch_id = _submit(session, flow, lines, wanted, settings).id
    session.add(node)
    flow.num_tries = 0
    flow.reason = None
    session.flush()


def note_ended(session: Session, flow: Flow, node: FlowNode) -> None:
    """Record that a node is over; the tries of the next one are counted from zero."""
    node.done_at = session.scalar(select(func.now()))
    flow.num_tries = 0
    session.flush()


def _submit(session: Session, flow: Flow, lines: NewFile, wanted: NodeBatch, settings: Settings) -> Batch:
    created = CreateBatch(
        input_file_id="",
        made_from=f"{wanted.name} of {flow.id}",
        endpoint=wanted.endpoint,
        completion_window=window_left(session, wanted.expires_at, least_minutes=wanted.least_minutes),
        metadata={**wanted.metadata, "stage": wanted.name},
        output_expires_after_seconds=wanted.outputs_last_seconds,
        priority=AskedPriority(wanted.priority),
        invalid_lines=InvalidLines.SKIP,
        uncovered_lines=wanted.uncovered_lines,
        stage_of=wanted.serves,
        trace_context=wanted.trace_context,
        is_growing=wanted.is_growing,
        is_ours=True,
    )
    tenant = session.get_one(Tenant, flow.tenant_id)
    return made_inputs.submit(session, tenant, created, lines, settings, key_id=flow.api_key_id).batch
