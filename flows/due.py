"""Flows that a control worker can advance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session

from flows.states import CLAIMABLE_STATES
from jobs.chunks.used_caps import CAP_IS_REACHED
from jobs.claims.statements import ClaimSql
from jobs.states import CANCELLING, TERMINAL_BATCH_STATES, BatchState
from jobs.tables.base import one_of

_DUE_A_TENANT = 4
_RUNNING = (BatchState.VALIDATING, BatchState.IN_PROGRESS)
_ENDING = (BatchState.FINALIZING, BatchState.CANCELLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A flow that a control worker can advance."""

    id: str
    tenant_id: str
    recipe: str

    @property
    def turn(self) -> str:
        """Return whose turn it takes: each tenant has one per recipe."""
        return f"{self.tenant_id} {self.recipe}"


def find_due(session: Session, recipes: Sequence[str]) -> Sequence[Due]:
    """Return flows of these recipes that can be advanced: a few per tenant and recipe, longest waiting first."""
    rows = session.execute(_DUE, {"limit": _DUE_A_TENANT, "recipes": list(recipes)})
    return [Due(id=row.id, tenant_id=row.tenant_id, recipe=row.recipe) for row in rows]


_IS_LOOKED_AT = "(look_at IS NULL OR look_at <= clock_timestamp())"

# A flow that waits for batches is due again when they have ended, or when none goes on by itself: one that has used up
# its cap, or that grows and has no line to answer. One that acts on each result as it comes is due when there are new
# ones and its pause is over. When a flow is cancelled, its batches end first.
_DUE = text(f"""
    SELECT id, tenant_id, recipe FROM (
        SELECT id, tenant_id, recipe, created_at,
            row_number() OVER (PARTITION BY tenant_id, recipe ORDER BY created_at, id) AS number
        FROM flow CROSS JOIN LATERAL (
            SELECT bool_or({one_of("batch.state", _ENDING)}) AS is_ending,
                bool_or(
                    {one_of("batch.state", _RUNNING)} AND NOT {CAP_IS_REACHED}
                    AND NOT (batch.is_growing AND batch.num_requests > 0 AND batch.is_answered)
                ) AS is_running,
                bool_or(
                    node.num_seen < batch.num_completed + batch.num_failed
                    OR node.num_seen IS NOT NULL AND {one_of("batch.state", TERMINAL_BATCH_STATES)}
                ) AS has_results
            FROM flow_node AS node JOIN batch ON batch.id = node.batch_id
            WHERE node.flow_id = flow.id AND node.done_at IS NULL
        ) AS waits
        WHERE recipe = ANY(:recipes) AND ended_at IS NULL AND {one_of("state", CLAIMABLE_STATES)}
            AND {ClaimSql("flow").is_free} AND ({_IS_LOOKED_AT} OR num_tries = 0 AND reason IS NULL)
            AND (
                is_ending IS NOT TRUE AND (is_running IS NOT TRUE OR state = '{CANCELLING}')
                OR has_results AND {_IS_LOOKED_AT} AND state <> '{CANCELLING}'
            )
    ) AS due WHERE number <= :limit ORDER BY created_at, id
""")
