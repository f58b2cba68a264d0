"""The graph of a flow as plain values: its nodes in order, what they take from elsewhere, and why it waits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy.orm import Session

from api.dashboard import formats
from api.dashboard.bars import bar, full_bar
from api.dashboard.flow_waits import Wait, wait_of
from api.dashboard.live import Shown
from api.schemas.wire import unix_seconds_up
from flows.ends import FlowEnd
from flows.parts import FlowParts
from flows.tables import Flow, FlowNode
from jobs.accounts import prices
from jobs.accounts.money import in_currency
from jobs.forecasts.outlooks import Outlook
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.lines.passage_bodies import FIND_ENDPOINT
from jobs.outcomes import Outcome, standing
from jobs.states import BatchState
from jobs.tables import Batch

OutlooksOf = Callable[[Session, Sequence[Batch]], Mapping[str, Outlook]]
"""Reads the outlooks of batches, by id."""

_TAKEN = {EMBEDDING_ENDPOINT: "queries", FIND_ENDPOINT: "passages"}
_EMPTY = "nothing to do"
_NOT_REACHED = "not reached"


class NodeKind(StrEnum):
    """Whether a node has begun; the value is a class of the style sheet."""

    BEGUN = "begun"
    AHEAD = "ahead"
    IF_NEEDED = "if-needed"
    """It comes only if earlier nodes leave something to do."""


_STATES = {NodeKind.AHEAD: "to come", NodeKind.IF_NEEDED: "if needed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """An index or a batch that a flow or a node takes passages or rows from."""

    what: str
    """What it takes, such as `passages`."""
    name: str
    path: str | None
    """Its page; None if it was deleted."""
    progress: str = ""

    @property
    def is_id(self) -> bool:
        """Return whether its name is an id."""
        return self.path is not None and self.path.endswith(f"/{self.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A node of a flow: what it has done, if it has begun."""

    name: str
    kind: NodeKind
    state: str
    is_open: bool = False
    batch_id: str | None = None
    has_page: bool = False
    """Whether the batch has a page; a deleted one has none."""
    completed: int = 0
    failed: int = 0
    total: int = 0
    """Number of lines."""
    is_growing: bool = False
    """Whether lines may still be added."""
    tokens: int = 0
    cost: str = ""
    """With its currency."""
    begun_at: datetime | None = None
    ended_at: datetime | None = None
    """Its end, or that of its flow."""
    sources: Sequence[SourceView] = ()
    """The last one first: it takes from those behind it."""

    @property
    def has_begun(self) -> bool:
        return self.kind is NodeKind.BEGUN

    @property
    def took(self) -> str:
        """Return how long it took, or has been open."""
        if self.begun_at is None:
            return formats.NOTHING
        return formats.span(((self.ended_at or datetime.now(UTC)) - self.begun_at).total_seconds())


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowView:
    """A flow: its nodes from the first to the last that is known to come."""

    state: str
    sources: Sequence[SourceView]
    nodes: Sequence[NodeView]
    wait: Wait
    end: FlowEnd

    @property
    def places(self) -> dict[str, Shown]:
        """Return the changing values by the names of their places, `flow.…` and `0.…` for the first node."""
        values: dict[str, Shown] = {
            "flow.state": (formats.state_name(self.state), formats.tone(self.state)),
            "flow.why": self.wait.why,
            "flow.until": self.wait.until,
            "flow.end": _expected(self.end),
        }
        for number, node in enumerate(self.nodes):
            values |= _node_places(str(number), node) if node.has_begun else {}
            values |= {f"{number}.{n}.progress": source.progress for n, source in enumerate(node.sources)}
        return values

    @property
    def layout(self) -> tuple[Any, ...]:
        """Return what the page must be drawn anew for."""
        nodes = tuple((node.kind, node.name, node.is_open, node.batch_id, node.has_page) for node in self.nodes)
        sources = tuple(replace(source, progress="") for node in self.nodes for source in node.sources)
        return self.state, self.wait.is_problem, nodes, sources, tuple(self.sources)


def ahead(name: str, *, is_certain: bool = True, sources: Sequence[SourceView] = ()) -> NodeView:
    """Return a node that has not begun."""
    kind = NodeKind.AHEAD if is_certain else NodeKind.IF_NEEDED
    return NodeView(name=name, kind=kind, state=_STATES[kind], sources=sources)


def flow_view(
    flow: Flow,
    parts: FlowParts[Any],
    nodes_ahead: Sequence[NodeView],
    *,
    outlooks: Mapping[str, Outlook],
    end: FlowEnd,
    currency: str,
    name_of: Callable[[str], str] = formats.state_name,
    expires_at: datetime | None = None,
    sources: Sequence[SourceView] = (),
    sources_of: Callable[[FlowNode], Sequence[SourceView]] = lambda _: (),
) -> FlowView:
    """Return the graph of a flow.

    `outlooks` are those of its open batches, by id; `expires_at`: the end of its time, if it has one for all its nodes;
    `sources_of` names the sources of a begun node besides the batches that looked up its passages.
    """
    begun = [
        _begun(flow, node, parts, name=name_of(node.name), currency=currency, sources=sources_of(node))
        for node in parts.begun
    ]
    nodes = [*begun, *(_left(nodes_ahead) if flow.ended_at is not None else nodes_ahead)]
    wait = wait_of(flow, parts, outlooks, names=[node.name for node in nodes], expires_at=expires_at)
    return FlowView(state=flow.state, sources=sources, nodes=nodes, wait=wait, end=end)


def batch_source(batch: Batch, *, what: str) -> SourceView:
    """Return a batch that a node takes something from."""
    return SourceView(
        what=what,
        name=batch.id,
        path=f"/batches/{batch.id}" if batch.deleted_at is None else None,
        progress=f"{batch.num_completed + batch.num_failed:,} / {batch.num_requests:,}" if batch.num_requests else "",
    )


def _begun(
    flow: Flow, node: FlowNode, parts: FlowParts[Any], *, name: str, currency: str, sources: Sequence[SourceView]
) -> NodeView:
    batch = parts.batch_of(node)
    serving = parts.serving.get(node.batch_id or "", ())
    looked_up = [batch_source(each, what=_TAKEN[each.endpoint]) for each in serving]
    view = NodeView(
        name=name,
        kind=NodeKind.BEGUN,
        state=_EMPTY if batch is None else _state(flow, node, batch),
        is_open=node.done_at is None and flow.ended_at is None,
        batch_id=node.batch_id,
        begun_at=node.begun_at,
        ended_at=node.done_at or flow.ended_at,
        sources=[*reversed(looked_up), *sources],
    )
    if batch is None:
        return view
    return replace(
        view,
        has_page=batch.deleted_at is None,
        completed=batch.num_completed,
        failed=batch.num_failed,
        total=batch.num_requests or node.num_lines,
        is_growing=batch.is_growing and flow.ended_at is None,
        tokens=batch.input_tokens + batch.output_tokens,
        cost=f"{in_currency(prices.cost_picos(batch))} {currency}",
    )


def _state(flow: Flow, node: FlowNode, batch: Batch) -> str:
    """Return the state of a node: that of its batch, unless its flow ended on the results of a completed one."""
    if flow.ended_at is not None and node.done_at is None and batch.state == BatchState.COMPLETED:
        return flow.state
    return standing(batch.state, completed=batch.num_completed, failed=batch.num_failed)


def _expected(end: FlowEnd) -> str:
    if end.expected_at is None:
        return ""
    earliest, latest = unix_seconds_up(end.earliest_at), unix_seconds_up(end.latest_at)
    left = formats.between(math.ceil(end.expected_at.timestamp()), earliest, latest)
    return f"Expected to end {left}, by its pace so far."


def _left(nodes_ahead: Sequence[NodeView]) -> list[NodeView]:
    """Return the nodes that an ended flow has not reached, without those that were not needed."""
    return [replace(node, state=_NOT_REACHED) for node in nodes_ahead if node.kind is NodeKind.AHEAD]


def _node_places(prefix: str, node: NodeView) -> dict[str, Shown]:
    done, total = node.completed + node.failed, node.total
    ends = bar(prefix, completed=node.completed, failed=node.failed, total=total)
    return {
        f"{prefix}.state": (_short(node.state), formats.tone(node.state)),
        f"{prefix}.lines": f"{done:,} / {total:,}{' so far' if node.is_growing else ''}" if total else formats.NOTHING,
        f"{prefix}.failed": f"{node.failed:,}",
        **(ends if total or node.ended_at is None else full_bar(prefix)),
        f"{prefix}.tokens": formats.number(node.tokens),
        f"{prefix}.cost": node.cost or formats.NOTHING,
        f"{prefix}.took": node.took,
    }


def _short(state: str) -> str:
    """Return the name of a state for a box, which shows the number of failed lines anyway."""
    return formats.state_name(BatchState.COMPLETED if state == Outcome.SOME_FAILED else state)
