"""When a flow is expected to end, by the pace of its own nodes so far.

Pure. Its error is published in docs/flows.md; `bench extraction first_records` and `lab.ends.flow_ends` measure it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from flows.tables import FlowNode
from jobs.tables import Batch

_EARLIEST, _LATEST = 0.35, 2.0
"""Bounds of the expected end, as multiples of the time left at the current pace; accuracy: docs/flows.md."""
_LAST_SECONDS = 10.0
"""Most time that passes at the end besides: results gather, and files are written."""
_LEAST_SECONDS = 1.0
_LEAST_PACE_SECONDS = 30.0
"""Of a node: before, most of its time is the wait for the first result, and its lines seem to take that long each."""
_LEAST_SHARE = 0.1
"""Of a node's lines: before, its pace is that of its beginning."""
_FEW = 0.2
"""Of the most lines that an open node has: so few do not decide when all end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowEnd:
    """The expected end of a flow, never in the past; all None where unknown."""

    expected_at: datetime | None = None
    earliest_at: datetime | None = None
    latest_at: datetime | None = None


def expected_end(
    begun: Iterable[FlowNode],
    batches: Mapping[str, Batch],
    *,
    is_last_begun: bool,
    now: datetime,
    share_begun: float = 1.0,
) -> FlowEnd:
    """Return the expected end of a flow in progress, by its slowest open node.

    Unknown until the last node that it needs has begun (`is_last_begun`), and each open one but those of few lines has
    results; and once all lines have ended, while files are written. `share_begun` is the share of the work that its
    nodes' lines are about: others are still to be added.
    """
    if not is_last_begun or not share_begun:
        return FlowEnd()
    open_nodes = [node for node in begun if node.done_at is None and node.batch_id in batches]
    most_lines = max((node.num_lines for node in open_nodes), default=0)
    left = {node: _seconds_left(node, batches[str(node.batch_id)], share_begun, now) for node in open_nodes}
    known = [seconds for seconds in left.values() if seconds is not None]
    if any(seconds is None and node.num_lines > _FEW * most_lines for node, seconds in left.items()) or not any(known):
        return FlowEnd()
    seconds = max(_LEAST_SECONDS, *known)
    return FlowEnd(
        expected_at=now + timedelta(seconds=seconds),
        earliest_at=now + timedelta(seconds=_EARLIEST * seconds),
        latest_at=now + timedelta(seconds=_LATEST * seconds + _LAST_SECONDS),
    )


def _seconds_left(node: FlowNode, batch: Batch, share_begun: float, now: datetime) -> float | None:
    """Return the time that the rest of a node's lines take at its pace; None early, and while it has few results."""
    num_done = batch.num_completed + batch.num_failed
    num_lines = node.num_lines / (share_begun if batch.is_growing else 1.0)
    if num_done < max(1, _LEAST_SHARE * num_lines):
        return None
    began_at = batch.in_progress_at or node.begun_at  # its validation is no part of its pace
    seconds = (now - began_at).total_seconds()
    return None if seconds < _LEAST_PACE_SECONDS else (num_lines - num_done) / num_done * seconds
