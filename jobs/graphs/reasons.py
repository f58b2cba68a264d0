"""Why a graph of batches waits or ends, in words that a tenant sees."""

from __future__ import annotations

from jobs.tables import Batch
from jobs.tables.courses import GraphRow

_MAX_REASON = 2000  # characters


def note_reason(graph: GraphRow, reason: str | None) -> None:
    """Note why a locked graph ends, or waits, if there is a reason: it may name what tenants wrote, or very many."""
    known = storable(reason or "") or None
    graph.reason = known if known is None or len(known) <= _MAX_REASON else known[: _MAX_REASON - 1] + "…"


def storable(message: str) -> str:
    """Return a message without NUL, which no text of the database may have."""
    return message.replace("\0", "\N{REPLACEMENT CHARACTER}")


def batch_problem(batch: Batch, *, of: str) -> str:
    """Return what became of a batch that did not complete; `of` names its step or stage."""
    said = (batch.errors or [{}])[0].get("message", "")
    because = f": {said}" if said else ""
    return f"batch {batch.id!r} of {of} is {batch.state}{because}"
