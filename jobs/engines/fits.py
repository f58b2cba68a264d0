"""Which chunks a worker's engine may run, as SQL conditions on a chunk and its batch.

A batch stays with the kind of engine that gave its first answer, unless it says `engine: any`; the flush of that answer
records the kind, under the batch's lock. Until then a claim leaves a batch to the kind that holds one of its chunks.
"""

from __future__ import annotations

from typing import Any

from jobs.engines.engine import ServingEngine
from jobs.engines.names import OWN
from jobs.states import EngineChoice


def values_of(engine: ServingEngine) -> dict[str, Any]:
    """Return the parameters of the conditions."""
    return {"kind": engine.kind, "dtype": engine.dtype, "meets": int(engine.meets)}


CHUNK = "(chunk.needs & ~CAST(:meets AS bigint)) = 0"
"""Whether the engine meets all needs of a chunk's lines."""

BATCH = f"""(
    (batch.engine IS NULL OR batch.engine = :kind OR batch.engine_choice = '{EngineChoice.ANY.value}')
    AND (NOT batch.is_reproducible OR :kind = '{OWN}' AND (
        batch.engine IS NULL OR batch.engine_dtype IS NOT DISTINCT FROM CAST(:dtype AS text)
    ))
)"""
"""Whether a batch may have an answer of this kind of engine, and where bits are promised, of this data type."""

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

HAS_READY = f"""(
    SELECT own.id FROM batch CROSS JOIN LATERAL (
        SELECT chunk.id FROM chunk
        WHERE chunk.batch_id = batch.id AND chunk.state = 'ready' AND chunk.priority = {{0}}.priority AND {CHUNK}
        ORDER BY chunk.id LIMIT 1
    ) AS own
    WHERE batch.tenant_id = {{0}}.tenant_id AND batch.model = {{0}}.model AND batch.state = 'in_progress'
        AND {BATCH} AND {BEGUN_HERE}
    LIMIT 1
) IS NOT NULL"""
"""Whether a queue has a ready chunk for the engine; by batches, of which a tenant has fewer than chunks."""

HEAD = f"""
    SELECT own.id, own.estimated_tokens, own.created_at, own.expires_at
    FROM batch CROSS JOIN LATERAL (
        SELECT chunk.id, chunk.estimated_tokens, chunk.created_at, chunk.expires_at FROM chunk
        WHERE chunk.batch_id = batch.id AND chunk.state = 'ready' AND chunk.priority = queue.priority AND {CHUNK}
            AND (hinted_at IS NULL OR hinted_at <= clock_timestamp() - CAST(:again AS interval))
        ORDER BY chunk.id LIMIT (SELECT num FROM fetched)
    ) AS own
    WHERE batch.tenant_id = queue.tenant_id AND batch.model = :model AND batch.state = 'in_progress'
        AND {BATCH} AND {BEGUN_HERE}
    ORDER BY own.expires_at, own.id LIMIT (SELECT num FROM fetched)
"""
"""The first chunks of a queue for the engine."""
