"""The row of a graph: the lock on it, and the state that it enters."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.tables import Extraction, PassageIndex, Run

Graph = TypeVar("Graph", Extraction, PassageIndex, Run)

CANCELLING = "cancelling"
"""The state of all of them that are to end."""


def lock(session: Session, table: type[Graph], graph_id: str) -> Graph | None:
    """Return a graph, fresh and locked until the transaction ends, or None."""
    query = select(table).where(table.id == graph_id).with_for_update(key_share=True)
    return session.scalar(query, execution_options={"populate_existing": True})


def enter(session: Session, graph: Extraction | PassageIndex | Run, state: StrEnum, *, is_end: bool) -> None:
    """Put a locked graph into a state that it may enter; at its end nobody has it any more."""
    graph.state = state.value
    graph.look_at = None
    if is_end:
        graph.ended_at = session.scalar(select(func.now()))
        graph.claimed_by = graph.claimed_until = None
