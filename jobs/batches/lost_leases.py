"""Lost leases: requeue the chunk, bisect it on repeated losses, fail a single line that keeps killing engines.

Only leases that expire count as lost; not chunks that were given back, nor leases that nobody could extend because
Postgres was away. Only a dead engine says anything about lines: a chunk counts a loss if its lines had gone to an
engine that died with its worker, or hung until it lost the lease.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import TextClause, text
from sqlalchemy.orm import Session, sessionmaker

from jobs import decisions
from jobs.batches import missing_inputs
from jobs.batches.scan import PlannedChunk
from jobs.chunks import deferring, fairshare, queue_marks
from jobs.chunks.chunk_ref import ChunkRef
from jobs.chunks.claiming import SUSPECT_LOST_LEASES
from jobs.chunks.fairshare import Share
from jobs.chunks.lease_ends import correct_share, end_lease, lock_batch_state
from jobs.chunks.leases import LEASES
from jobs.chunks.leasing import lines_done
from jobs.chunks.recording import LineResult, record
from jobs.database import transaction
from jobs.decisions import Kind
from jobs.errors import NotFoundError, ServiceError
from jobs.lines.output_lines import error_line
from jobs.lines.reading import RawLine, custom_id_of
from jobs.states import BatchState, ChunkState
from jobs.storage import Storage
from jobs.tables import Chunk
from jobs.uptime import ANSWERS_SINCE

log = logging.getLogger(__name__)

POISON_LOST_LEASES = 3
"""A chunk of one line fails after this many lost leases of its own."""
_REAP_LIMIT = 200  # per call; a dead worker leaves at most K, those of a whole dead site take some ticks


class Reaped(StrEnum):
    """Outcome for a chunk whose lease was lost."""

    READY = "ready"  # back in the queue
    DEFERRED = "deferred"  # put off: the object store does not have its input
    SPLIT = "split"  # bisected over its unfinished lines
    FAILED = "failed"  # its only line was given up
    DONE = "done"  # every line already had its result
    WITHDRAWN = "withdrawn"  # its batch is no longer wanted, or has lost its input


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLease(ChunkRef):
    """A leased chunk, locked, whose lease is about to end."""

    is_counted: bool
    """Whether its end says anything about its lines."""

    @property
    def num_lost(self) -> int:
        """Return the number of lost leases of the chunk, this one included."""
        return self.lost_leases + self.is_counted


def reap_expired(session: Session, *, lease: timedelta) -> list[Reaped]:
    """End every expired lease; return the outcome of each chunk.

    `lease` is the duration of leases: one last extended before the server started is no loss, since its worker may be
    alive but unable to reach the database. Nor is one whose lines had not gone to an engine yet.

    A chunk with a lost lease is ready again. Chunks with so many losses that their lines must be read are left to
    `reap_suspects`.
    """
    ended, outcomes = [], []
    for lost in _read(session, _LOST, _times(lease) | {"limit": _REAP_LIMIT}):
        ended.append(lost)
        outcomes.append(_return(session, lost))
        _note(session, lost, outcomes[-1])  # before the shares, of which a tick locks more later
    _correct_shares(session, ended)
    return outcomes


def reap_suspects(sessions: sessionmaker[Session], storage: Storage, *, lease: timedelta) -> list[Reaped]:
    """End the leases that `reap_expired` leaves; return the outcome of each chunk that could be decided.

    After SUSPECT_LOST_LEASES a chunk is bisected over its unfinished lines, and each part again at its next loss. A
    line that was lost POISON_LOST_LEASES times as a chunk of its own gets the error `engine_failure`, unbilled. Where
    the input cannot be read now, the chunk waits for the next call; where the store has lost it, the batch fails.

    The store is read between two transactions: it may hang, and nothing may wait for it. The second one checks that the
    lease is still the one that had expired.
    """
    with transaction(sessions) as session:
        suspects = _read(session, _SUSPECTS, _times(lease) | {"limit": _REAP_LIMIT})
    outcomes = []
    for suspect in suspects:
        try:
            lines = _read_lines(storage, suspect)
        except ServiceError as error:
            log.error("lost chunk waits for its input chunk_id=%s error=%s", suspect.chunk_id, error)
            continue
        with transaction(sessions) as session:
            outcome = _reap_suspect(session, suspect, lines, lease=lease)
        if outcome is not None:
            outcomes.append(outcome)
    return outcomes


def return_leases(session: Session) -> int:
    """End every lease at once, as no loss; return how many.

    For a single-machine stack that restarts: it holds the lock of its data directory, so none of its workers can be
    alive, and what killed them all says nothing about the lines they ran.
    """
    leased = _read(session, _LEASED, {})
    for lost in leased:
        is_wanted = lock_batch_state(session, lost.batch_id) is BatchState.IN_PROGRESS
        _end(session, lost, ChunkState.READY if is_wanted else ChunkState.WITHDRAWN)
    _correct_shares(session, leased)
    return len(leased)


def _read(session: Session, query: TextClause, values: Mapping[str, object]) -> list[LostLease]:
    return [LostLease(**row._mapping) for row in session.execute(query, values)]


def _correct_shares(session: Session, ended: Sequence[LostLease]) -> None:
    """Correct the virtual times once all chunks and batches are locked: share rows come later in the lock order.

    Their queues are marked, so that one left empty is noticed.
    """
    if not ended:
        return
    charged = [Share(lost.model, lost.priority, lost.tenant_id) for lost in ended]
    own = [Share(*row) for row in session.execute(_SHARES, {"ids": [lost.chunk_id for lost in ended]})]
    fairshare.lock(session, [*charged, *own])
    for lost in ended:
        correct_share(session, lost)
    queue_marks.mark_chunks(session, [lost.chunk_id for lost in ended])


def _times(lease: timedelta) -> dict[str, object]:
    return {"lease": lease, "suspect": SUSPECT_LOST_LEASES, "poison": POISON_LOST_LEASES}


def _note(session: Session, lost: LostLease, outcome: Reaped) -> None:
    decisions.note(session, lost.batch_id, Kind.LOST_LEASE, subject=lost.worker_id, detail=outcome.value)
    log.warning("lease lost chunk_id=%s worker_id=%s outcome=%s", lost.chunk_id, lost.worker_id, outcome)


def _return(session: Session, lost: LostLease) -> Reaped:
    """Return a locked chunk to the queue, or withdraw it where its batch is no longer wanted."""
    if lock_batch_state(session, lost.batch_id) is not BatchState.IN_PROGRESS:
        _end(session, lost, ChunkState.WITHDRAWN)
        return Reaped.WITHDRAWN
    _end(session, lost, ChunkState.READY)
    return Reaped.READY


def _read_lines(storage: Storage, suspect: LostLease) -> list[RawLine] | None:
    """Return the lines of a chunk; None where the store has lost them. Raises ServiceError."""
    try:
        return suspect.split(suspect.read(storage))
    except NotFoundError:
        return None


def _reap_suspect(
    session: Session, suspect: LostLease, lines: Sequence[RawLine] | None, *, lease: timedelta
) -> Reaped | None:
    """Decide on a suspect by its lines; None where its lease was extended or ended meanwhile."""
    values = {**suspect.guard, **_times(lease)}
    for lost in _read(session, _SUSPECT, values):
        outcome = _decide(session, lost, lines)
        _note(session, lost, outcome)
        _correct_shares(session, [lost])
        return outcome
    return None


def _decide(session: Session, lost: LostLease, lines: Sequence[RawLine] | None) -> Reaped:
    if lock_batch_state(session, lost.batch_id) is not BatchState.IN_PROGRESS:
        _end(session, lost, ChunkState.WITHDRAWN)
        return Reaped.WITHDRAWN
    if lines is None:
        return _miss(session, lost)
    unfinished = _unfinished(session, lost, lines)
    if not unfinished:
        _end(session, lost, ChunkState.DONE)
        return Reaped.DONE
    if lost.num_requests == 1:
        _fail(session, lost, unfinished[0])
        return Reaped.FAILED
    _split(session, lost, lines, unfinished=unfinished)
    return Reaped.SPLIT


def _miss(session: Session, lost: LostLease) -> Reaped:
    """Put off a locked chunk whose input is missing; at the second look its batch fails."""
    if not missing_inputs.is_lost(session, lost.batch_id):
        _end(session, lost, ChunkState.DEFERRED)
        deferring.put_off(session, lost.batch_id, period=missing_inputs.SECOND_LOOK)
        return Reaped.DEFERRED
    missing_inputs.fail_batch(session, lost.batch_id)
    _end(session, lost, ChunkState.WITHDRAWN)
    return Reaped.WITHDRAWN


def _fail(session: Session, lost: LostLease, line: RawLine) -> None:
    """Record the error of a chunk's only line."""
    message = f"this line's worker was lost {lost.num_lost} times while it ran; it was given up and is not billed"
    content = error_line(
        lost.batch_id, line.line_no, custom_id_of(line.content), code="engine_failure", message=message
    )
    record(session, lost.batch_id, [LineResult(line_no=line.line_no, line=content, status_code=None)])
    _end(session, lost, ChunkState.DONE)


def _unfinished(session: Session, lost: LostLease, lines: Sequence[RawLine]) -> list[RawLine]:
    done = lines_done(session, lost)
    return [line for line in lines if line.line_no not in done]


def _split(session: Session, lost: LostLease, lines: Sequence[RawLine], *, unfinished: Sequence[RawLine]) -> None:
    """Replace a chunk by two over the halves of its unfinished lines; by one where a single line is left."""
    _end(session, lost, ChunkState.SPLIT)  # first: the parts inherit its class, which is the batch's from here on
    middle = len(unfinished) // 2
    for half in (unfinished[:middle], unfinished[middle:]):
        if half:
            first, last = half[0], half[-1]
            span = [line for line in lines if first.line_no <= line.line_no <= last.line_no]
            session.execute(_INSERT_CHILD, _child(lost, span, num_unfinished=len(half)))


def _child(lost: LostLease, span: Sequence[RawLine], *, num_unfinished: int) -> dict[str, Any]:
    """Return the columns that a child does not inherit; finished lines in its span count but are not run again.

    A part keeps the lost leases of the whole, so that its next loss splits it at once. A single line starts from none:
    it fails only for leases lost as a chunk of its own, never for those it shared with its neighbours. Other chunks of
    its worker may have caused its first losses; at the last one its worker held no other suspect.
    """
    part = PlannedChunk(
        first_line=span[0].line_no,
        num_lines=span[-1].line_no - span[0].line_no + 1,
        num_requests=len(span),
        byte_start=span[0].byte_start,
        byte_end=span[-1].byte_end,
        estimated_tokens=lost.estimated_tokens * num_unfinished // lost.num_requests,
        copies=lost.copies,
    )
    losses = 0 if len(span) == 1 else lost.num_lost
    fields = {name: value for name, value in part._asdict().items() if name in _GIVEN}
    return fields | {"losses": losses, "parent_id": lost.chunk_id}


def _end(session: Session, lost: LostLease, after: ChunkState) -> None:
    end_lease(session, lost, after, is_loss=lost.is_counted)


_FROM = "FROM chunk JOIN batch ON batch.id = chunk.batch_id JOIN file ON file.id = batch.input_file_id"
_IS_COUNTED = f"""(
    chunk.started_fence IS NOT DISTINCT FROM chunk.fence
    AND chunk.lease_until - CAST(:lease AS interval) >= {ANSWERS_SINCE}
)"""
_IS_OVER = f"chunk.state = 'leased' AND {LEASES.sql.is_over}"
IS_ANY_OVER = f"EXISTS (SELECT FROM chunk WHERE {_IS_OVER})"
# A single line returns to the queue until it is given up; longer chunks are bisected before.
_NEEDS_LINES = f"""
    batch.state = 'in_progress' AND {_IS_COUNTED}
    AND chunk.losses + 1 >= CASE WHEN chunk.num_requests = 1 THEN :poison ELSE :suspect END
"""

_LOST = text(f"""
    SELECT {ChunkRef.COLUMNS}, {_IS_COUNTED} AS is_counted {_FROM} WHERE {_IS_OVER} AND NOT ({_NEEDS_LINES})
    ORDER BY chunk.batch_id, chunk.id LIMIT :limit FOR UPDATE OF chunk SKIP LOCKED
""")

_SUSPECTS = text(f"""
    SELECT {ChunkRef.COLUMNS}, TRUE AS is_counted {_FROM} WHERE {_IS_OVER} AND {_NEEDS_LINES}
    ORDER BY chunk.lease_until, chunk.id LIMIT :limit
""")

_SUSPECT = text(f"""
    SELECT {ChunkRef.COLUMNS}, TRUE AS is_counted {_FROM}
    WHERE {LEASES.sql.is_held} AND {_IS_OVER} AND {_NEEDS_LINES}
    FOR UPDATE OF chunk SKIP LOCKED
""")

_LEASED = text(f"""
    SELECT {ChunkRef.COLUMNS}, FALSE AS is_counted {_FROM}
    WHERE chunk.state = 'leased' ORDER BY chunk.batch_id, chunk.id FOR UPDATE OF chunk
""")

_FRESH = {
    "id", "state", "fence", "lease_until", "worker_id", "hinted_at", "started_fence", "covered_tokens",
    "waits_for_tokens", "charged_priority", "needed_tokens", "covered_picos", "waits_for_picos", "needed_picos",
}  # fmt: skip
"""Columns that start anew in a child; it inherits all others except those of `_child`."""
_GIVEN = {*PlannedChunk._fields, "losses"} - {"needs"}
_WRITTEN = [column.name for column in Chunk.__table__.columns if column.name not in _FRESH]
_INSERT_CHILD = text(f"""
    INSERT INTO chunk ({", ".join(_WRITTEN)})
    SELECT {", ".join(f":{name}" if name in _GIVEN else name for name in _WRITTEN)} FROM chunk WHERE id = :parent_id
""")

# The classes in which chunks wait may differ from those in which they ran: a change of their batch, or a cap, may have
# moved them.
_SHARES = text("SELECT DISTINCT model, priority, tenant_id FROM chunk WHERE id = ANY(CAST(:ids AS bigint[]))")
