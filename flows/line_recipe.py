"""A recipe of chat lines: it names its nodes, their prompts and its records, and the rest is done here.

Its flows need no table of their own: what was asked and where the records are is in `flow.values`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import orjson
from sqlalchemy.orm import Session

from flows import nodes, standing
from flows.kinds import Kind
from flows.reasons import batch_problem, note_reason
from flows.recipe import Recipe
from flows.tables import Flow, FlowNode
from jobs import files
from jobs.batches.ordered_results import OrderedResults
from jobs.call_limits import parse_window
from jobs.claims.work import ClaimedWork
from jobs.errors import InputError, NotFoundError
from jobs.files import MAX_EXPIRY_SECONDS, NewFile, Purpose
from jobs.ids import new_id
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.settings import Settings
from jobs.states import BatchState, State
from jobs.storage import Storage
from jobs.tables import Tenant


class LineFlowState(State):
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def following(self) -> frozenset[LineFlowState]:
        return _MOVES.get(self, frozenset())


_S = LineFlowState
_MOVES = {
    _S.IN_PROGRESS: frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLING}),
    _S.CANCELLING: frozenset({_S.CANCELLED}),
}
ENDS = (LineFlowState.COMPLETED, LineFlowState.FAILED, LineFlowState.CANCELLED)


class LineFlow(Flow):
    """A flow of chat lines; a kind of it adds only its `polymorphic_identity`, and a node class with the same one."""

    __abstract__ = True

    @property
    def asked(self) -> Mapping[str, Any]:
        """Return what was asked."""
        return self.values or {}

    @property
    def priority(self) -> str:
        return str(self.asked["priority"])

    @property
    def expires_at(self) -> datetime:
        return self.created_at + parse_window(str(self.asked["completion_window"]))


Line = TypeVar("Line", bound=LineFlow)


@dataclass(frozen=True, kw_only=True)
class LineStanding(standing.Standing[Line, FlowNode]):
    """A flow of chat lines as its worker found it."""

    output_keys: Mapping[str, str]
    """Object keys of the nodes' output files, by the files' ids; those that were deleted are left out."""


class LineRecipe(Recipe[Line, LineStanding[Line]]):
    """Nodes whose lines are prompts, each made of the answers of earlier nodes."""

    node: type[FlowNode]

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self._storage = storage
        self._settings = settings

    @abstractmethod
    def prompts(self, standing: LineStanding[Line], name: str) -> Iterable[tuple[str, str]]:
        """Yield the custom_id and the prompt of each line of a node; none: the node has nothing to do."""

    @abstractmethod
    def records(self, standing: LineStanding[Line]) -> Iterable[Mapping[str, Any]]:
        """Yield the records of the output file."""

    @property
    def flows(self) -> Kind[Line]:
        """Return the kind, to find and cancel its flows by."""
        return Kind(self.kind, self.name, ends=ENDS)

    def create(self, session: Session, tenant: Tenant, values: Mapping[str, Any], *, key_id: str | None) -> Line:
        """Add a flow; `values` has `model`, and what `prompts` needs."""
        asked = {"priority": "normal", "completion_window": "24h", **values}
        flow = self.kind(id=new_id(self.name), tenant_id=tenant.id, state=LineFlowState.IN_PROGRESS.value, values=asked)
        flow.api_key_id = key_id
        session.add(flow)
        session.flush()
        session.refresh(flow)
        return flow

    def answers(self, standing: LineStanding[Line], name: str) -> Iterator[tuple[str, str]]:
        """Yield the custom_id and the answer of each line of an ended node that was answered, in their order.

        Raises InputError where they were deleted.
        """
        for node in standing.begun:
            batch = standing.batch_of(node)
            if node.name != name or batch is None or batch.output_file_id is None:
                continue
            key = standing.output_keys.get(batch.output_file_id)
            if key is None:
                raise InputError(f"the answers of node {name}, file {batch.output_file_id!r}, were deleted")
            for custom_id, line in OrderedResults(self._storage, key).take_all(""):
                yield custom_id, str(line["response"]["body"]["choices"][0]["message"]["content"])

    def look(self, session: Session, flow_id: str) -> LineStanding[Line]:
        flow = session.get(self.kind, flow_id)
        if flow is None:
            raise NotFoundError(f"{self.name} {flow_id!r} is gone")
        begun = nodes.nodes_of(session, self.node, flow_id)
        kind = partial(LineStanding, output_keys=_output_keys(session, flow.tenant_id, begun))
        return standing.read(session, flow, begun, kind)

    def waits_until(self, standing: LineStanding[Line]) -> datetime:
        return standing.flow.expires_at

    def begin(self, work: ClaimedWork[Line], standing: LineStanding[Line], name: str) -> bool:
        flow = standing.flow
        lines = (self._line(flow, *prompt) for prompt in self.prompts(standing, name))
        written = nodes.write_lines(self._storage, flow, name, work.checked(lines), settings=self._settings)
        with work.writing() as (session, locked):
            if locked.state == LineFlowState.IN_PROGRESS:
                node = self.node(flow_id=flow.id, number=len(standing.begun), name=name, num_lines=written.num_lines)
                wanted = nodes.NodeBatch(
                    name=name,
                    endpoint=CHAT_ENDPOINT,
                    priority=flow.priority,
                    expires_at=flow.expires_at,
                    metadata={f"{self.name}_id": flow.id},
                    outputs_last_seconds=MAX_EXPIRY_SECONDS,
                )
                nodes.begin(session, locked, node, lines=written.file, wanted=wanted, settings=self._settings)
        return True

    def end(self, work: ClaimedWork[Line], standing: LineStanding[Line], node: FlowNode) -> None:
        batch = standing.batch_of(node)
        if batch is not None and batch.state != BatchState.COMPLETED:
            raise InputError(batch_problem(batch, of=f"node {node.name}"))
        with work.writing() as (session, flow):
            nodes.note_ended(session, flow, session.get_one(self.node, (flow.id, node.number)))

    def complete(self, work: ClaimedWork[Line], standing: LineStanding[Line], *, reason: str | None) -> None:
        output = self._written(standing)
        with work.writing() as (session, flow):
            if flow.state == LineFlowState.CANCELLING:
                self.end_early(session, flow, is_cancelled=True)
                return
            flow.values = {**flow.asked, "output_file_id": files.create_file(session, flow.tenant_id, output).id}
            note_reason(flow, reason)
            self.flows.move(session, flow, LineFlowState.COMPLETED)

    def cancel(self, session: Session, flow: Line, *, reason: str) -> None:
        note_reason(flow, reason)
        self.flows.move(session, flow, LineFlowState.CANCELLING)

    def end_early(self, session: Session, flow: Line, *, is_cancelled: bool) -> None:
        self.flows.move(session, flow, LineFlowState.CANCELLED if is_cancelled else LineFlowState.FAILED)

    def _line(self, flow: Line, custom_id: str, prompt: str) -> bytes:
        body = {"model": flow.asked["model"], "messages": [{"role": "user", "content": prompt}]}
        return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT_ENDPOINT, "body": body})

    def _written(self, standing: LineStanding[Line]) -> NewFile:
        key = files.new_object_key(standing.flow.tenant_id)
        records = (orjson.dumps(record) + b"\n" for record in self.records(standing))
        return NewFile(
            object_key=key,
            filename=f"{standing.flow.id}.jsonl",
            purpose=Purpose.BATCH_OUTPUT,
            size_bytes=self._storage.put(key, records),
        )


def _output_keys(session: Session, tenant_id: str, begun: Sequence[FlowNode]) -> dict[str, str]:
    ids = [batch.output_file_id for batch in nodes.batches_of(session, begun).values()]
    kept = [files.find_kept(session, tenant_id, file_id) for file_id in ids if file_id is not None]
    return {file.id: file.object_key for file in kept if file is not None}
