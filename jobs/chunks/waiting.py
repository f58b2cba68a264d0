"""Waiting chunks: set aside by a worker that found no room in the tenant's budget, woken by a sweep.

A waiting chunk is neither hinted nor claimed, so it costs nobody a turn. Locks are taken in the order of `leasing`; a
transaction that holds a batch skips locked chunks, and the sweep skips locked shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import decisions
from jobs.accounts import budgets
from jobs.chunks import fairshare, queue_marks
from jobs.chunks.budget_room import WITH_ROOM
from jobs.chunks.fairshare import Share
from jobs.chunks.lease_ends import leave, lock_batch_state
from jobs.chunks.leases import LEASES
from jobs.chunks.leasing import ClaimedChunk
from jobs.decisions import Kind
from jobs.states import LIVE_BATCH_STATES, BatchState, ChunkState, sources_of
from jobs.tables.base import one_of

_BATCHES = 50
"""Batches checked by one sweep; the next one continues after them."""
_CHUNKS = 64
"""Chunks of one batch woken at once; more follow when none of them is ready any more."""


def lay_aside(session: Session, claim: ClaimedChunk, *, tokens: int, picos: int = 0) -> None:
    """Give back a chunk of which no line is running, to wait until one of its lines fits. Not counted as a loss.

    Ready chunks of the batch wait too where no line of them seems to fit: trying each of them would cost tokenising its
    lines. Raises FencedOutError.
    """
    LEASES.hold(session, claim)
    if lock_batch_state(session, claim.batch_id) is not BatchState.IN_PROGRESS:
        leave(session, claim, ChunkState.WITHDRAWN)
        return
    leave(session, claim, ChunkState.WAITING)
    values = {
        "chunk_id": claim.chunk_id,
        "batch_id": claim.batch_id,
        "tokens": tokens,
        "picos": picos,
        "after": ChunkState.WAITING.value,
    }
    session.execute(_NOTE_NEED, values)
    session.execute(_LAY_OTHERS_ASIDE, values)
    session.execute(_NOTE_LEAST, values)
    decisions.note(session, claim.batch_id, Kind.WAITS_FOR_BUDGET, detail=f"{tokens:,} tokens")


@dataclass(slots=True)
class Round:
    """Where the next sweep over waiting batches starts, in the order of their deadlines."""

    after: tuple[datetime, str] | None = None
    """(deadline, id) of the last batch checked; None: start with the first."""


def wake(session: Session, in_round: Round | None = None) -> int:
    """Return chunks that fit their budget by now to the queue; return how many.

    Each call checks a few batches; the next call with the same `in_round` continues after them. A batch that runs
    nothing and has no room for its next line gives back its reservation: two batches of one tenant must not wait for
    each other's.
    """
    batch_ids = _next_batches(session, in_round or Round())
    if not batch_ids:
        return 0
    num_woken: dict[str, int] = {}
    for batch in _with_free_share(session, session.execute(_WAKEABLE, {"batch_ids": batch_ids}).all()):
        # A tenant whose chunks have all waited returns like an idle one.
        fairshare.activate(session, model=batch.model, priority=batch.priority, tenant_id=batch.tenant_id)
        values = {
            "batch_id": batch.id,
            "room": batch.room_tokens if batch.has_room else None,
            "room_picos": batch.room_picos if batch.has_room else None,
            "limit": _CHUNKS,
            "after": ChunkState.READY.value,
            "sources": sources_of(ChunkState.READY),
        }
        num_woken[batch.id] = _count_marked(session, session.scalars(_WAKE, values).all())
        session.execute(_NOTE_LEAST, values)
    idle = session.execute(_IDLE, {"batch_ids": batch_ids}).all()
    num_untried = _wake_untried(session, batch_ids)
    for batch_id, num in num_woken.items():  # after all shares are locked, before budgets
        decisions.note(session, batch_id, Kind.WENT_ON, num=num)
    for batch in idle:
        budgets.release_free(session, batch.id, batch.tenant_id)
    return sum(num_woken.values()) + num_untried


def _with_free_share(session: Session, batches: Sequence[Any]) -> list[Any]:
    """Leave out batches whose share another transaction has locked, for a later sweep.

    A tick ends leases before this, and each batch has its own share: waiting for one could deadlock with a transaction
    that waits for another of them.
    """
    if not batches:
        return []
    busy = fairshare.lock_free(session, map(_share_of, batches))
    return [batch for batch in batches if _share_of(batch) not in busy]


def _share_of(batch: Any) -> Share:
    return Share(model=batch.model, priority=batch.priority, tenant_id=batch.tenant_id)


def _next_batches(session: Session, in_round: Round) -> list[str]:
    expires_at, batch_id = in_round.after or ("-infinity", "")
    values = {"expires_at": expires_at, "batch_id": batch_id, "limit": _BATCHES}
    rows = session.execute(_NEXT, values).all()
    is_last = len(rows) < _BATCHES
    in_round.after = None if is_last else (rows[-1].expires_at, rows[-1].id)
    return [row.id for row in rows]


def _wake_untried(session: Session, batch_ids: Sequence[str]) -> int:
    """Wake one chunk of unknown need in each batch that runs nothing and has some room; return how many.

    The estimate is the average of its lines, of which one may fit; if none does, the chunk's further waits use its
    exact need.
    """
    num_woken = 0
    for batch in _with_free_share(session, session.execute(_UNTRIED, {"batch_ids": batch_ids}).all()):
        values = {"batch_id": batch.id, "after": ChunkState.READY.value, "sources": sources_of(ChunkState.READY)}
        fairshare.activate(session, model=batch.model, priority=batch.priority, tenant_id=batch.tenant_id)
        num_woken += _count_marked(session, session.scalars(_WAKE_UNTRIED, values).all())
        session.execute(_NOTE_LEAST, values)
    return num_woken


def _count_marked(session: Session, woken: Sequence[int]) -> int:
    if woken:
        queue_marks.mark_chunks(session, woken[:1])  # all of one queue
    return len(woken)


# Exact needs stay: once the smallest line is done the others need as much or more, and the next worker finds out.
_NOTE_NEED = text("""
    UPDATE chunk SET waits_for_tokens = :tokens, needed_tokens = :tokens,
        waits_for_picos = :picos, needed_picos = :picos
    WHERE id = :chunk_id
""")

# For an untried chunk, the average of its lines; its cost as if all tokens were of the dearer kind.
_NEED = "coalesce(chunk.needed_tokens, chunk.estimated_tokens / chunk.num_requests)"
_NEED_PICOS = f"""
    coalesce(chunk.needed_picos, {_NEED} * (
        SELECT ceil(CAST(greatest(input_price_picos, output_price_picos) AS numeric) * CASE chunk.priority
            WHEN 'urgent' THEN urgent_price_percent WHEN 'bulk' THEN bulk_price_percent ELSE 100 END / 100)
        FROM model
        WHERE name = coalesce((SELECT adapter FROM batch WHERE batch.id = chunk.batch_id), chunk.model)
    ))
"""


# Tests one chunk in every unit. The batch records the least need of each unit, perhaps of different chunks: where one
# of these does not fit, no chunk is read. Where none waits any more the next wake clears it.
_HAS_ROOM = """(
    coalesce(room.tokens >= batch.waits_for_tokens, TRUE) AND coalesce(room.picos >= batch.waits_for_picos, TRUE)
    AND (
        EXISTS (
            SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state = 'waiting'
                AND coalesce(chunk.waits_for_tokens <= room.tokens, TRUE)
                AND coalesce(chunk.waits_for_picos <= room.picos, TRUE)
        )
        OR NOT EXISTS (SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state = 'waiting')
    )
)"""
_HAS_SOME_ROOM = "(coalesce(room.tokens > 0, TRUE) AND coalesce(room.picos > 0, TRUE))"

# The odd forms make the planner use the primary key, as in `ready_queues._NOTE_HINT`: by the indexes of open or waiting
# batches it reads them all.
_LEAST = "coalesce(batch.waits_for_tokens, 0)"
_LOOKED_AT = f"batch.id = ANY(CAST(:batch_ids AS text[])) AND batch.state || '' = 'in_progress' AND {_LEAST} > 0"

_LAY_OTHERS_ASIDE = text(f"""
    UPDATE chunk SET state = :after, hinted_at = NULL, waits_for_tokens = {_NEED}, waits_for_picos = {_NEED_PICOS}
    WHERE id IN (
        SELECT chunk.id FROM {WITH_ROOM} JOIN chunk ON chunk.batch_id = batch.id
        WHERE batch.id = :batch_id AND chunk.state = 'ready'
            AND (coalesce({_NEED} > room.tokens, FALSE) OR coalesce({_NEED_PICOS} > room.picos, FALSE))
        FOR UPDATE OF chunk SKIP LOCKED
    )
""")

_NOTE_LEAST = text("""
    UPDATE batch SET (waits_for_tokens, waits_for_picos) = (
        SELECT min(waits_for_tokens), min(waits_for_picos) FROM chunk WHERE batch_id = :batch_id AND state = 'waiting'
    )
    WHERE id = :batch_id
""")

IS_ANY_WAITING = "EXISTS (SELECT FROM batch WHERE waits_for_tokens IS NOT NULL)"

_NEXT = text("""
    SELECT id, expires_at FROM batch
    WHERE waits_for_tokens IS NOT NULL AND (expires_at, id) > (CAST(:expires_at AS timestamptz), :batch_id)
    ORDER BY expires_at, id LIMIT :limit
""")

# While woken chunks are still ready, no others are woken: they would compete for the same room. Lines that are to fail
# do so as soon as no line of the tenant runs whose tokens may come back.
_WAKEABLE = text(f"""
    SELECT batch.id, batch.tenant_id, batch.model, batch.priority,
        room.tokens AS room_tokens, room.picos AS room_picos, {_HAS_ROOM} AS has_room
    FROM {WITH_ROOM}
    WHERE {_LOOKED_AT}
        AND (
            {_HAS_ROOM}
            OR batch.uncovered_lines = 'fail' AND (
                SELECT other.id FROM batch AS other
                WHERE other.tenant_id = batch.tenant_id AND other.covered_tokens > 0
                    AND {one_of("other.state", LIVE_BATCH_STATES)}
                LIMIT 1
            ) IS NULL
        )
        AND NOT EXISTS (SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state = 'ready')
    ORDER BY batch.expires_at, batch.id FOR NO KEY UPDATE OF batch SKIP LOCKED
""")

_WAKE = text("""
    UPDATE chunk SET state = :after, waits_for_tokens = NULL, waits_for_picos = NULL
    WHERE state = ANY(:sources) AND id IN (
        SELECT id FROM (
            SELECT id, sum(waits_for_tokens) OVER (ORDER BY waits_for_tokens, id) AS tokens,
                sum(waits_for_picos) OVER (ORDER BY waits_for_tokens, id) AS picos
            FROM (
                SELECT id, waits_for_tokens, waits_for_picos FROM chunk
                WHERE batch_id = :batch_id AND state = 'waiting'
                    AND coalesce(waits_for_picos <= CAST(:room_picos AS numeric), TRUE)
                ORDER BY waits_for_tokens, id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
            ) AS first
        ) AS summed
        WHERE coalesce(tokens <= CAST(:room AS numeric), TRUE) AND coalesce(picos <= CAST(:room_picos AS numeric), TRUE)
    )
    RETURNING id
""")

# Nothing of the batch runs or is about to: nobody else would find out whether a smaller line fits.
_UNTRIED = text(f"""
    SELECT batch.id, batch.tenant_id, batch.model, batch.priority
    FROM {WITH_ROOM}
    WHERE {_LOOKED_AT} AND NOT {_HAS_ROOM} AND {_HAS_SOME_ROOM}
        AND NOT EXISTS (
            SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state IN ('ready', 'leased')
        )
        AND EXISTS (SELECT FROM chunk WHERE batch_id = batch.id AND state = 'waiting' AND needed_tokens IS NULL)
    ORDER BY batch.expires_at, batch.id FOR NO KEY UPDATE OF batch SKIP LOCKED
""")

_WAKE_UNTRIED = text("""
    UPDATE chunk SET state = :after, waits_for_tokens = NULL, waits_for_picos = NULL
    WHERE state = ANY(:sources) AND id = (
        SELECT id FROM chunk WHERE batch_id = :batch_id AND state = 'waiting' AND needed_tokens IS NULL
        ORDER BY waits_for_tokens, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING id
""")

_IDLE = text(f"""
    SELECT batch.id, batch.tenant_id FROM {WITH_ROOM}
    WHERE {_LOOKED_AT}
        AND batch.covered_tokens = 0 AND batch.reserved_tokens > 0 AND NOT {_HAS_ROOM}
        AND NOT EXISTS (
            SELECT FROM chunk WHERE chunk.batch_id = batch.id AND chunk.state IN ('ready', 'leased')
        )
    ORDER BY batch.id FOR NO KEY UPDATE OF batch SKIP LOCKED
""")
