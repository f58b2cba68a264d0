"""Claim a chunk under a lease: a given chunk, or the next in turn.

Operations on a leased chunk are in `leasing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import decisions
from jobs.accounts.batch_caps import IS_CAPPED
from jobs.accounts.prices import MODEL_COLUMNS, Prices
from jobs.chunks import fairshare, ready_queues
from jobs.chunks.chunk_ref import ChunkRef
from jobs.chunks.fair_order import LOWERED
from jobs.chunks.leases import LEASES
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.wanted import ANY, Wanted
from jobs.database import advisory_lock
from jobs.decisions import Kind
from jobs.engines import fits
from jobs.engines.engine import OWN_ENGINE, ServingEngine
from jobs.lines.document_bodies import PREPARE_MODEL
from jobs.states import ChunkState, sources_of

SUSPECT_LOST_LEASES = 2
"""After this many lost leases a chunk is bisected and its parts are claimed one at a time per worker: see `_CLAIM`."""
_CANDIDATES = (8, 64, 512)
"""How many chunks `claim_next` tries, in steps, to find one that no other worker is claiming."""


def claim_chunk(
    session: Session,
    chunk_id: int,
    *,
    worker_id: str,
    lease: timedelta,
    engine: ServingEngine = OWN_ENGINE,
    urgent_tokens: int | None = None,
) -> ClaimedChunk | None:
    """Claim a ready chunk. None for a repeated hint, an ended batch, a suspect that has to wait, or if `engine` may not
    run it.

    Charges the tenant's virtual time with the estimate. Claims of one worker run one after another. Where the tenant
    already has `urgent_tokens` (or its own limit) running as urgent, the chunk runs one class lower.
    """
    return _claim_first(
        session, [chunk_id], worker_id=worker_id, lease=lease, engine=engine, urgent_tokens=urgent_tokens
    )


def claim_next(
    session: Session,
    *,
    model: str,
    worker_id: str,
    lease: timedelta,
    engine: ServingEngine = OWN_ENGINE,
    wanted: Wanted = ANY,
    urgent_tokens: int | None = None,
) -> ClaimedChunk | None:
    """Claim the next wanted chunk in turn that `engine` may run, skipping those that others are claiming.

    None where no chunk is ready, or `claim_chunk` refuses all that are.
    """
    look = ready_queues.look(session, model=model, engine=engine)
    if not look.is_any_ready:
        return None
    num_passed_over = 0
    for limit in _CANDIDATES:
        chunk_ids = ready_queues.next_chunks(
            session,
            model=model,
            limit=limit,
            wanted=wanted,
            urgent_tokens=urgent_tokens,
            engine=engine if look.has_others else None,
        )
        if len(chunk_ids) <= num_passed_over:
            return None
        claim = _claim_first(
            session, chunk_ids, worker_id=worker_id, lease=lease, engine=engine, urgent_tokens=urgent_tokens
        )
        if claim is not None:
            return claim
        num_passed_over = len(chunk_ids)
    return None


def _claim_first(
    session: Session,
    chunk_ids: Sequence[int],
    *,
    worker_id: str,
    lease: timedelta,
    engine: ServingEngine,
    urgent_tokens: int | None,
) -> ClaimedChunk | None:
    advisory_lock(session, f"claim {worker_id}")
    values = {
        "chunk_ids": list(chunk_ids),
        "owner": worker_id,
        "lease": lease,
        "after": ChunkState.LEASED.value,
        "sources": sources_of(ChunkState.LEASED),
        "suspect": SUSPECT_LOST_LEASES,
        "urgent_tokens": urgent_tokens,
        "prepare_model": PREPARE_MODEL,
        **fits.values_of(engine),
    }
    row = session.execute(_CLAIM if engine.spill is None else _CLAIM_LEAVING, values).one_or_none()
    if row is None:
        return None
    claim = _claimed(row._asdict(), engine)
    # From here to the commit, claims for one tenant wait for each other.
    if row.is_lowered:
        fairshare.keep_up(session, model=claim.model, priority=claim.priority, tenant_id=claim.tenant_id)
    fairshare.charge(
        session, model=claim.model, priority=claim.priority, tenant_id=claim.tenant_id, tokens=claim.estimated_tokens
    )
    decisions.note(session, claim.batch_id, Kind.CLAIMED, subject=worker_id)
    return claim


def _claimed(row: dict[str, Any], engine: ServingEngine) -> ClaimedChunk:
    del row["is_lowered"]
    model_row = {name: row.pop(name) for name in MODEL_COLUMNS}
    is_free = row["model"] == PREPARE_MODEL
    prices = Prices() if is_free else Prices.of(model_row, row["priority"])
    return ClaimedChunk(
        **row,
        prices=prices,
        engine=engine.kind,
        engine_dtype=engine.dtype,
        is_spilled=engine.spill is not None,
    )


# The last condition keeps the blame right. A suspect of one line fails with the engine's next death, so a worker that
# holds one gets no other suspect: only one of them can be the cause. A statement does not see uncommitted rows of other
# transactions, so the caller holds the worker's lock: its earlier claims are committed. SKIP LOCKED: workers that poll
# at the same moment see the same chunks first, and each takes another one. The odd forms make the planner use the
# primary key, as in `ready_queues._NOTE_HINT`: without statistics it joined from the batches and read all 40,000 ready
# chunks for one claim.
_CLAIM_BY = f"""
    WITH first AS (
        SELECT id, model, coalesce(
            (SELECT adapter FROM batch WHERE batch.id = chunk.batch_id), model
        ) AS named_model FROM chunk
        WHERE id = ANY(CAST(:chunk_ids AS bigint[])) AND state || '' = ANY(:sources) AND {fits.CHUNK}
            AND (
                SELECT state = 'in_progress' AND {fits.BATCH} AND {fits.BEGUN_HERE} AND {{leaves}} FROM batch
                WHERE batch.id = chunk.batch_id
            )
            AND (losses < :suspect OR NOT EXISTS (
                SELECT FROM chunk AS other
                WHERE other.state = 'leased' AND other.worker_id = :owner AND other.losses >= :suspect
                    AND (other.num_requests = 1 OR chunk.num_requests = 1)
            ))
        ORDER BY array_position(CAST(:chunk_ids AS bigint[]), id) LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    UPDATE chunk SET state = :after, {LEASES.sql.taken}, hinted_at = NULL, covered_picos = 0,
        charged_priority = CASE WHEN chunk.priority = 'urgent' AND coalesce((
            SELECT coalesce(sum(other.estimated_tokens), 0) FROM chunk AS other
            WHERE other.state = 'leased' AND other.priority = 'urgent' AND other.model = chunk.model
                AND other.tenant_id = chunk.tenant_id
        ) >= (
            SELECT coalesce(max_urgent_tokens, CAST(:urgent_tokens AS bigint)) FROM tenant WHERE id = chunk.tenant_id
        ), FALSE) THEN '{LOWERED.value}' ELSE chunk.priority END
    FROM first LEFT JOIN model ON model.name = first.named_model, batch, file
    WHERE chunk.id = first.id AND chunk.state = ANY(:sources)
        AND batch.id = chunk.batch_id AND batch.state = 'in_progress'
        AND file.id = batch.input_file_id AND (model.name IS NOT NULL OR first.model = :prepare_model)
    RETURNING {ChunkRef.COLUMNS}, {", ".join(f"model.{name}" for name in MODEL_COLUMNS)}, batch.uncovered_lines,
        batch.trace_context,
        (SELECT weight FROM tenant WHERE id = chunk.tenant_id) AS weight,
        first.model <> :prepare_model AND ({IS_CAPPED} OR (
            SELECT limit_tokens IS NOT NULL AND chunk.priority <> 'overflow' OR num_window_budgets > 0 FROM budget
            WHERE budget.tenant_id = chunk.tenant_id
        )) AS is_limited,
        chunk.charged_priority <> chunk.priority AS is_lowered
"""
_CLAIM, _CLAIM_LEAVING = (
    text(_CLAIM_BY.format(leaves=leaves)) for leaves in ("TRUE", f"{fits.LEAVES} AND {fits.CHUNK_LEAVES}")
)
