"""Blocks that a validation writes before its batch starts: planned chunks and uncounted error results.

Neither is visible to anybody else until the batch starts or counts it. A validation that starts over, or the
finalisation of a batch that never started, drops them first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs.batches.claims import BatchWork
from jobs.batches.scan import ChunkPlanner, PlannedChunk
from jobs.chunks.recording import LineResult, copy_errors, copy_rows
from jobs.lines.output_lines import error_line
from jobs.lines.reading import LineProblem
from jobs.partitions import batch_day
from jobs.settings import MIB
from jobs.states import ChunkState, sources_of
from jobs.tables import Batch, InputDigest

_CHUNKS_A_BLOCK = 2000
_ERRORS_A_BLOCK = 1000
_BYTES_A_BLOCK = 4 * MIB
"""Size of a block of error results: a custom_id may be as long as a line."""
_ROWS_DROPPED = 10_000  # per transaction


class Plan:
    """Chunks and error results of one validation, written whenever a block is full."""

    def __init__(self, work: BatchWork) -> None:
        self._work = work
        self._errors: list[LineResult] = []
        self._num_bytes = 0
        self._num_errors = 0  # written
        self.has_blocks = False
        """Whether chunks were written before the batch starts."""

    def add_error(self, problem: LineProblem) -> None:
        """Add the error result of an invalid line."""
        result = error_of(self._work.claim.id, problem)
        self._errors.append(result)
        self._num_bytes += len(result.line)

    def write_if_full(self, planner: ChunkPlanner, *, model: str | None) -> None:
        """Write a block of errors, or of closed chunks, once it is large enough."""
        is_full = len(self._errors) >= _ERRORS_A_BLOCK or self._num_bytes >= _BYTES_A_BLOCK
        if is_full or len(planner.chunks) >= _CHUNKS_A_BLOCK:
            with self._work.writing() as (session, batch):
                self._write(session, batch, planner.pop_closed(), model=model, state=ChunkState.PLANNED)
            self.has_blocks = True

    def publish(self, session: Session, batch: Batch, planner: ChunkPlanner, *, model: str | None) -> None:
        """Write the rest and make all chunks ready, in the transaction that starts the batch."""
        self._write(session, batch, planner.finish(), model=model, state=ChunkState.READY)
        after = ChunkState.READY
        values = {
            "batch_id": batch.id,
            "after": after.value,
            "sources": sources_of(after),
            "priority": batch.priority,  # may have changed since a block was written
            "expires_at": batch.expires_at,
        }
        session.execute(_PUBLISH, values)

    def _write(
        self, session: Session, batch: Batch, chunks: Sequence[PlannedChunk], *, model: str | None, state: ChunkState
    ) -> None:
        if self._errors:
            copy_errors(session, batch, self._errors, base=self._num_errors)
            self._num_errors += len(self._errors)
            self._errors.clear()
            self._num_bytes = 0
        if chunks:
            assert model is not None, "a line that can run names a known model"
            _copy_chunks(session, batch, chunks, model=model, state=state)


def error_of(batch_id: str, problem: LineProblem) -> LineResult:
    """Return the error result of an invalid line."""
    content = error_line(batch_id, problem.line_no, problem.custom_id, code=problem.code, message=str(problem))
    return LineResult(line_no=problem.line_no, line=content, status_code=None)


def drop(work: BatchWork) -> None:
    """Delete what this or earlier validations have written for a batch that has not started."""
    is_left = True
    while is_left:
        with work.writing() as (session, batch):
            values = {
                "batch_id": batch.id,
                "day": batch_day(batch.created_at),
                "counted": batch.num_completed + batch.num_failed,
                "limit": _ROWS_DROPPED,
            }
            is_left = any(session.execute(query, values).first() is not None for query in (_DROP_CHUNKS, _DROP_RESULTS))


def copy_ready(session: Session, batch: Batch, chunks: Sequence[PlannedChunk], *, segment_key: str) -> None:
    """Write ready chunks of a running batch, whose lines are in a segment of its input."""
    assert batch.model is not None, "it has started"
    _copy_chunks(session, batch, chunks, model=batch.model, state=ChunkState.READY, segment_key=segment_key)


def note_digests(session: Session, batch_id: str, digests: Mapping[bytes, int]) -> None:
    """Store the digests of lines of a growing batch, with their line numbers."""
    if digests:
        rows = [{"batch_id": batch_id, "digest": digest, "line_no": number} for digest, number in digests.items()]
        session.execute(insert(InputDigest).on_conflict_do_nothing(), rows)


def _copy_chunks(
    session: Session,
    batch: Batch,
    chunks: Sequence[PlannedChunk],
    *,
    model: str,
    state: ChunkState,
    segment_key: str | None = None,
) -> None:
    copied = {name: getattr(batch, name) for name in ("tenant_id", "priority", "expires_at")}
    columns = ", ".join(["batch_id", "model", "state", "segment_key", *copied, *PlannedChunk._fields])
    head = (batch.id, model, state.value, segment_key, *copied.values())
    copy_rows(session, f"COPY chunk ({columns}) FROM STDIN", (head + chunk for chunk in chunks))


_PUBLISH = text("""
    UPDATE chunk SET state = :after, priority = :priority, expires_at = :expires_at
    WHERE batch_id = :batch_id AND state = 'planned' AND state = ANY(:sources)
""")

# An array and no join: right after a COPY, without statistics, each of 20,000 rows was compared with each.
_DROP_CHUNKS = text("""
    DELETE FROM chunk WHERE id = ANY(ARRAY(
        SELECT id FROM chunk WHERE batch_id = :batch_id AND state = 'planned' LIMIT :limit
    )) RETURNING 1
""")

_DROP_RESULTS = text("""
    DELETE FROM result WHERE batch_day = :day AND batch_id = :batch_id AND result_no = ANY(ARRAY(
        SELECT result_no FROM result WHERE batch_day = :day AND batch_id = :batch_id AND result_no > :counted
        LIMIT :limit
    )) RETURNING 1
""")
