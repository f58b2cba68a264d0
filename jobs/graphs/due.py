"""Graphs of batches that a control worker can advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import TextClause, text
from sqlalchemy.orm import Session

from jobs.claims.statements import ClaimSql
from jobs.states import CANCELLING, BatchState
from jobs.tables.base import one_of

_DUE_A_TENANT = 4
_RUNNING = (BatchState.VALIDATING, BatchState.IN_PROGRESS)
_ENDING = (BatchState.FINALIZING, BatchState.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A graph that a control worker can advance."""

    id: str
    tenant_id: str


def due_query(graph: str, *, parts: str, under_way: str, goes_on: str = "FALSE") -> TextClause:
    """Return the query of due rows in table `graph`, whose state is `under_way` or cancelling.

    `parts` is the table of its steps or stages. A graph that waits for a batch is due again when that has ended, or
    where `goes_on` holds for it; when a graph is cancelled, its batch is cancelled first.
    """
    return text(f"""
        SELECT id, tenant_id FROM (
            SELECT id, tenant_id, created_at,
                row_number() OVER (PARTITION BY tenant_id ORDER BY created_at, id) AS number
            FROM {graph}
            WHERE state IN ('{under_way}', '{CANCELLING}') AND {ClaimSql(graph).is_free}
                AND (look_at IS NULL OR look_at <= clock_timestamp())
                AND NOT EXISTS (
                    SELECT FROM {parts} AS part JOIN batch ON batch.id = part.batch_id
                    WHERE part.{graph}_id = {graph}.id AND part.done_at IS NULL AND (
                        {one_of("batch.state", _ENDING)}
                        OR (
                            {one_of("batch.state", _RUNNING)} AND {graph}.state = '{under_way}'
                            AND NOT {goes_on}
                        )
                    )
                )
        ) AS due WHERE number <= :limit ORDER BY created_at, id
    """)


def find_due(session: Session, query: TextClause) -> Sequence[Due]:
    """Return graphs that can be advanced, a few of each tenant, longest waiting first."""
    return [Due(id=row.id, tenant_id=row.tenant_id) for row in session.execute(query, {"limit": _DUE_A_TENANT})]
