"""Which chunks a worker's engine may run, as SQL conditions on a chunk and its batch.

A batch stays with the kind of engine that gave its first answer, unless it says `engine: any`; the flush of that answer
records the kind, under the batch's lock. Until then a claim leaves a batch to the kind that holds one of its chunks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobs.accounts.spill_days import CHUNK_HAS_ROOM, HAS_ROOM, LEFT
from jobs.engines.engine import ServingEngine
from jobs.engines.names import OWN
from jobs.states import EngineChoice, Priority

FORECAST_KEPT = timedelta(minutes=1)
"""Lines leave by no older forecast: it is made every few seconds."""


def values_of(engine: ServingEngine) -> dict[str, Any]:
    """Return the parameters of the conditions."""
    values: dict[str, Any] = {
        "kind": engine.kind,
        "dtype": engine.dtype,
        "meets": int(engine.meets),
        "adapters": sorted(engine.adapters),
    }
    if engine.spill is None:
        return values
    return values | {
        "spill_budget": engine.spill.budget_picos,
        "spill_input_price": engine.spill.prices.input_picos,
        "spill_output_price": engine.spill.prices.output_picos,
        "forecast_kept": FORECAST_KEPT,
    }


CHUNK = "(chunk.needs & ~CAST(:meets AS bigint)) = 0"
"""Whether the engine meets all needs of a chunk's lines."""

BATCH = f"""(
    (batch.engine IS NULL OR batch.engine = :kind OR batch.engine_choice = '{EngineChoice.ANY.value}')
    AND (NOT batch.is_reproducible OR :kind = '{OWN}' AND (
        batch.engine IS NULL OR batch.engine_dtype IS NOT DISTINCT FROM CAST(:dtype AS text)
    ))
    AND (batch.adapter IS NULL OR batch.server_model = ANY(CAST(:adapters AS text[])))
)"""
"""Whether a batch may have an answer of this kind of engine, and where bits are promised, of this data type; and
whether the engine has its adapter."""

# The odd form as in `chunks.originals`: leased chunks are few, those of a batch may be many.
BEGUN_HERE = f"""(
    batch.engine IS NOT NULL OR batch.engine_choice = '{EngineChoice.ANY.value}' OR NOT EXISTS (
        SELECT FROM served_engine WHERE served_engine.model = batch.model AND served_engine.kind <> :kind
    ) OR NOT EXISTS (
        SELECT FROM chunk AS other JOIN worker ON worker.id = other.worker_id
        WHERE other.state = 'leased' AND other.batch_id || '' = batch.id AND worker.engine <> :kind
    )
)"""
"""Whether no other kind of engine is about to give a batch's first answer."""

# A batch whose first answer would come from outside stays there: it goes only if there is room for all of it today.
LEAVES = f"""(
    batch.priority <> '{Priority.OVERFLOW.value}'
    AND (SELECT may_leave_house FROM tenant WHERE tenant.id = batch.tenant_id)
    AND coalesce((
        SELECT is_late AND made_at > statement_timestamp() - CAST(:forecast_kept AS interval) FROM forecast
        WHERE forecast.batch_id = batch.id
    ), FALSE)
    AND {HAS_ROOM.format(budget="CAST(:spill_budget AS numeric)")}
    AND (batch.engine IS NOT NULL OR batch.engine_choice = '{EngineChoice.ANY.value}' OR (
        SELECT CAST(:spill_input_price AS numeric) * estimated_input_tokens
            + CAST(:spill_output_price AS numeric) * estimated_output_tokens
        FROM file WHERE file.id = batch.input_file_id
    ) <= {LEFT.format(budget="CAST(:spill_budget AS numeric)")})
)"""
"""Whether a batch's lines may go to a server outside the house now: by key, a row of each table."""

CHUNK_LEAVES = CHUNK_HAS_ROOM.format(budget="CAST(:spill_budget AS numeric)")
"""Whether a chunk of such a batch may: it lacked no more room than there is."""

_HAS_READY = f"""(
    SELECT own.id FROM batch CROSS JOIN LATERAL (
        SELECT chunk.id FROM chunk
        WHERE chunk.batch_id = batch.id AND chunk.state = 'ready' AND chunk.priority = {{0}}.priority AND {CHUNK}
            AND {{2}}
        ORDER BY chunk.id LIMIT 1
    ) AS own
    WHERE batch.tenant_id = {{0}}.tenant_id AND batch.model = {{0}}.model AND batch.state = 'in_progress'
        AND {BATCH} AND {BEGUN_HERE} AND {{1}}
    LIMIT 1
) IS NOT NULL"""
_HEAD = f"""
    SELECT own.id, own.estimated_tokens, own.created_at, own.expires_at
    FROM batch CROSS JOIN LATERAL (
        SELECT chunk.id, chunk.estimated_tokens, chunk.created_at, chunk.expires_at FROM chunk
        WHERE chunk.batch_id = batch.id AND chunk.state = 'ready' AND chunk.priority = queue.priority AND {CHUNK}
            AND {{1}} AND (hinted_at IS NULL OR hinted_at <= clock_timestamp() - CAST(:again AS interval))
        ORDER BY chunk.id LIMIT (SELECT num FROM fetched)
    ) AS own
    WHERE batch.tenant_id = queue.tenant_id AND batch.model = :model AND batch.state = 'in_progress'
        AND {BATCH} AND {BEGUN_HERE} AND {{0}}
    ORDER BY own.expires_at, own.id LIMIT (SELECT num FROM fetched)
"""

_HOUSE, _OUTSIDE = ("TRUE", "TRUE"), (LEAVES, CHUNK_LEAVES)

HAS_READY, OUTSIDE_HAS_READY = (_HAS_READY.format("{0}", *leaves) for leaves in (_HOUSE, _OUTSIDE))
"""Whether a queue has a ready chunk for the engine; by batches, of which a tenant has fewer than chunks."""

HEAD, OUTSIDE_HEAD = (_HEAD.format(*leaves) for leaves in (_HOUSE, _OUTSIDE))
"""The first chunks of a queue for the engine."""
