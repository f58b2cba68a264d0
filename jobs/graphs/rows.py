"""The row of a graph: its lock and its state."""

from __future__ import annotations

from typing import TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from jobs.claims.statements import CLAIM_COLUMNS
from jobs.states import State, require_move
from jobs.tables.courses import GraphRow

Graph = TypeVar("Graph", bound=GraphRow)


def lock(session: Session, table: type[Graph], graph_id: str) -> Graph | None:
    """Return a graph, freshly read and locked until the transaction ends, or None."""
    query = select(table).where(table.id == graph_id).with_for_update(key_share=True)
    return session.scalar(query, execution_options={"populate_existing": True})


def enter(session: Session, graph: GraphRow, after: State, *, is_end: bool) -> None:
    """Move a locked graph to its next state; at its end the claim is released. Raises IllegalMoveError.

    The only writer of `state`, called only by the `lifecycle` of each kind.
    """
    require_move(type(after)(graph.state), after)
    graph.state = after.value
    graph.look_at = None
    if is_end:
        graph.ended_at = session.scalar(select(func.now()))
        CLAIM_COLUMNS.free(graph)
