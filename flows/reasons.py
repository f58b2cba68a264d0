"""Why a flow waits or ends, in words for the tenant."""

from __future__ import annotations

from flows.tables import Flow
from jobs.tables import Batch

_MAX_REASON = 2000  # characters


def note_reason(flow: Flow, reason: str | None) -> None:
    """Record why a locked flow ends or waits, if there is a reason; it may quote tenants' text, and be very long."""
    known = storable(reason or "") or None
    flow.reason = known if known is None or len(known) <= _MAX_REASON else known[: _MAX_REASON - 1] + "…"


def storable(message: str) -> str:
    """Return a message without NUL, which Postgres cannot store in text."""
    return message.replace("\0", "\N{REPLACEMENT CHARACTER}")


def batch_problem(batch: Batch, *, of: str) -> str:
    """Return the outcome of a batch that did not complete; `of` names its node."""
    detail = (batch.errors or [{}])[0].get("message", "")
    because = f": {detail}" if detail else ""
    return f"batch {batch.id!r} of {of} is {batch.state}{because}"
