"""Why a flow waits or ended, and until when, in words for its tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from api.dashboard import formats
from flows.parts import FlowParts
from flows.states import FlowState
from flows.tables import Flow
from jobs.forecasts.outlooks import Outlook
from jobs.states import CANCELLING, TERMINAL_BATCH_STATES, BatchState
from jobs.tables import Batch

_QUEUED = "It begins once no other run of its pipeline is under way."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a flow waits, or why it ended; empty where there is nothing to say."""

    why: str
    until: str = ""
    is_problem: bool = False
    """Whether `why` is a problem that it met, not the usual course."""


def open_batches(parts: FlowParts[Any]) -> list[Batch]:
    """Return the batches that a flow waits for."""
    batches = (parts.batch_of(node) for node in parts.begun if node.done_at is None)
    return [batch for batch in batches if batch is not None and BatchState(batch.state) not in TERMINAL_BATCH_STATES]


def wait_of(
    flow: Flow,
    parts: FlowParts[Any],
    outlooks: Mapping[str, Outlook],
    *,
    names: Sequence[str],
    expires_at: datetime | None,
) -> Wait:
    """Return the wait of a flow; `names` are those of its nodes, begun ones first."""
    if flow.ended_at is not None:
        return Wait(why=flow.reason or "", is_problem=flow.reason is not None)
    waited_for = open_batches(parts)
    deadline = expires_at or min((batch.expires_at for batch in waited_for), default=None)
    ends = "" if deadline is None else f"Its time ends {formats.stamp(deadline)}."
    if flow.reason is not None:
        return Wait(why=flow.reason, until=_joined(_next_try(flow), ends), is_problem=True)
    if waited_for:
        of_all = [outlooks.get(batch.id, Outlook()) for batch in waited_for]
        return Wait(why=_joined(*(one.waits_for or "" for one in of_all)), until=_joined(_expected(of_all), ends))
    return Wait(why=_QUEUED if flow.state == FlowState.QUEUED else _preparing(flow, parts, names), until=ends)


def _next_try(flow: Flow) -> str:
    if flow.look_at is None:
        return ""
    if flow.look_at <= datetime.now(UTC):
        return "The next try is due now."
    return f"The next try is {formats.until(flow.look_at)}."


def _expected(of_all: Sequence[Outlook]) -> str:
    """Return when the last of the batches is expected to end, if that is known of each."""
    ends = [one.ends_at for one in of_all if one.ends_at is not None]
    if len(ends) < len(of_all):
        return ""
    last = max(of_all, key=lambda one: one.ends_at or datetime.min.replace(tzinfo=UTC))
    expected, earliest, latest = map(_seconds, (last.ends_at, last.earliest_at, last.latest_at))
    assert expected is not None, "known of each"
    return f"The batch is expected to end {formats.between(expected, earliest, latest)}."


def _preparing(flow: Flow, parts: FlowParts[Any], names: Sequence[str]) -> str:
    """Return what a control worker does, or is to do."""
    num_begun = len(parts.begun)
    is_open = any(node.done_at is None for node in parts.begun)
    if flow.state == CANCELLING:
        task = "ends it"
    elif is_open:
        task = f"records the results of {names[num_begun - 1]}"
    elif num_begun < len(names):
        task = f"prepares {names[num_begun]}"
    else:
        task = "writes the results"
    is_claimed = flow.claimed_until is not None and flow.claimed_until > datetime.now(UTC)
    return f"A control worker {task}." if is_claimed else f"Waits until a control worker {task}."


def _joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
