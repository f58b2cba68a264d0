"""Finalise a batch that has ended: a result for every request, the output and the error file, its outcome.

One transaction, so a crash leaves nothing but orphan objects. Memory grows by a byte for each line at most.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.batches.lifecycle import lock_batch, move_batch
from jobs.batches.missing_inputs import name_missing_input
from jobs.batches.scan import whole_file_problem
from jobs.chunks import checkpoints
from jobs.chunks.recording import LineResult, copy_errors
from jobs.database import stream, try_advisory_lock
from jobs.errors import NotFoundError, TokenmillError
from jobs.files import NewFile, Purpose, create_file, new_object_key
from jobs.lines.output_lines import error_line
from jobs.lines.reading import custom_id_of, iter_lines
from jobs.partitions import batch_day
from jobs.settings import MIB
from jobs.states import OPEN_CHUNK_STATES, BatchState
from jobs.storage import ObjectWriter, Storage
from jobs.tables import Batch, File

log = logging.getLogger(__name__)

_ROWS_A_FETCH = 100
_ERRORS_A_BLOCK = 1000
_MAX_LINE_BYTES = 64 * MIB  # far above any setting; only custom_ids are read of these lines
_MAX_NAMELESS = 1000  # error lines for lines that are no requests: 20 bytes must not become 200 without end
_WHY_NOT_RUN = {
    BatchState.EXPIRED: ("batch_expired", "the batch's window of {window} ended before this line was run"),
    BatchState.CANCELLED: ("batch_cancelled", "the batch was cancelled before this line was run"),
    BatchState.FAILED: ("file_not_found", "the batch's input was gone when this line was to run"),
}


class CountsDisagreeError(TokenmillError):
    """Our own invariant is broken: the results of a batch are not as many as its counters say."""


def finalise_batch(session: Session, storage: Storage, batch_id: str) -> BatchState | None:
    """Write the files of a batch that has ended and move it to its outcome; None where there is nothing to do (yet).

    Requests of an expired or cancelled batch that were not run become error lines `batch_expired`/`batch_cancelled`,
    so that every request is in exactly one file; where the store has lost the input nobody knows their custom_ids, and
    the batch's `errors` say so. A crash or a repeated hint leaves orphan objects at worst. Raises ServiceError where
    the store fails: nothing has changed then.
    """
    if not try_advisory_lock(session, f"finalise {batch_id}"):
        return None
    batch = session.get(Batch, batch_id, populate_existing=True)
    if batch is None or batch.state not in (BatchState.FINALIZING, BatchState.CANCELLING):
        return None
    if _has_open_chunk(session, batch_id):
        return None
    session.refresh(batch)  # what the last chunk brought while it was open is in the counters only now
    outcome = BatchState.CANCELLED if batch.state == BatchState.CANCELLING else BatchState(batch.outcome or "")
    added = _add_missing(session, storage, batch, outcome=outcome)
    output, errors = _write_files(session, storage, batch, num_failed=batch.num_failed + added.num_lines)
    _end(session, batch_id, outcome, added=added, output=output, errors=errors)
    checkpoints.drop_all(session, batch_id)
    return outcome


def _has_open_chunk(session: Session, batch_id: str) -> bool:
    states = [state.value for state in OPEN_CHUNK_STATES]
    return bool(session.scalar(_OPEN_CHUNK, {"batch_id": batch_id, "states": states}))


# --- requests that were not run --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Added:
    """Error results of requests that were not run."""

    num_lines: int = 0
    is_input_lost: bool = False
    num_nameless: int = 0
    """Lines without a custom_id, of an input that was never validated."""


def _add_missing(session: Session, storage: Storage, batch: Batch, *, outcome: BatchState) -> _Added:
    """Insert an error result for every request without one: fewer only where the input is lost.

    Nobody has counted the requests of a batch that ended before it was validated: every line is one, but for nameless
    ones beyond a few, which only say that this is no input. Holds one byte a line, and a block of results.
    """
    added = _Added()
    num_missing = batch.num_requests - batch.num_completed - batch.num_failed
    is_counted = batch.num_requests > 0 or outcome not in (BatchState.CANCELLED, BatchState.EXPIRED)
    if is_counted and not num_missing:
        return added
    if outcome is BatchState.COMPLETED:
        raise CountsDisagreeError(f"batch {batch.id} is to complete, and {num_missing} of its requests have no result")
    base = batch.num_completed + batch.num_failed
    max_nameless = None if is_counted else _MAX_NAMELESS
    missing = _missing_results(session, storage, batch, outcome=outcome, added=added, max_nameless=max_nameless)
    try:
        while block := list(islice(missing, _ERRORS_A_BLOCK)):
            copy_errors(session, batch, block, base=base + added.num_lines)
            added.num_lines += len(block)
    except NotFoundError as error:
        log.error("files lack requests, their input is lost batch_id=%s error=%s", batch.id, error)
        added.is_input_lost = True
        return added
    if is_counted and added.num_lines < num_missing and _is_truncated(session, storage, batch):
        log.error("files lack requests, their input is truncated batch_id=%s", batch.id)
        added.is_input_lost = True
    elif is_counted and added.num_lines != num_missing:
        raise CountsDisagreeError(
            f"batch {batch.id} lacks {num_missing} results, and {added.num_lines} lines have none"
        )
    return added


def _is_truncated(session: Session, storage: Storage, batch: Batch) -> bool:
    file = session.get_one(File, batch.input_file_id)
    return storage.size(file.object_key) < file.size_bytes


def _missing_results(
    session: Session,
    storage: Storage,
    batch: Batch,
    *,
    outcome: BatchState,
    added: _Added,
    max_nameless: int | None,
) -> Iterator[LineResult]:
    code, message = _WHY_NOT_RUN[outcome]
    message = message.format(window=batch.completion_window)
    done = _lines_with_result(session, batch)
    file = session.get_one(File, batch.input_file_id)
    pieces = _keeping_awake(session, storage.iter_chunks(file.object_key))
    for line in iter_lines(pieces, max_line_bytes=_MAX_LINE_BYTES):
        if line.line_no >= len(done) or not done[line.line_no]:
            custom_id = custom_id_of(line.content)
            added.num_nameless += custom_id is None
            if custom_id is None and max_nameless is not None and added.num_nameless > max_nameless:
                continue
            content = error_line(batch.id, line.line_no, custom_id, code=code, message=message)
            yield LineResult(line_no=line.line_no, line=content, status_code=None)


def _keeping_awake(session: Session, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of an object, with a statement after each: a transaction that says nothing for minutes is ended."""
    for piece in pieces:
        session.execute(text("SELECT 1"))
        yield piece


def _lines_with_result(session: Session, batch: Batch) -> bytearray:
    """Return a byte for each line number: 1 where it has a result."""
    done = bytearray()
    values = {"day": batch_day(batch.created_at), "batch_id": batch.id}
    with stream(session, _LINE_NUMBERS, values, num_rows=10_000) as rows:
        for (line_no,) in rows:
            if line_no >= len(done):
                done.extend(bytes(line_no - len(done) + 1))
            done[line_no] = 1
    return done


# --- files -----------------------------------------------------------------------------------------------------------


class _LazyFile:
    """A file of results that exists from its first line on: an empty one is not made."""

    def __init__(self, storage: Storage, key: str, stack: ExitStack) -> None:
        self.key = key
        self.num_lines = 0
        self._storage = storage
        self._stack = stack
        self._writer: ObjectWriter | None = None

    def write(self, lines: list[bytes]) -> None:
        if lines:
            if self._writer is None:
                self._writer = self._stack.enter_context(self._storage.writer(self.key))
            self._writer.write(b"\n".join(lines) + b"\n")
            self.num_lines += len(lines)

    @property
    def size_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.size_bytes


def _write_files(
    session: Session, storage: Storage, batch: Batch, *, num_failed: int
) -> tuple[File | None, File | None]:
    """Stream all results, by line number, into the output and the error file; None for one without lines."""
    values = {"day": batch_day(batch.created_at), "batch_id": batch.id}
    with ExitStack() as stack:
        output, errors = (_LazyFile(storage, new_object_key(batch.tenant_id), stack) for _ in range(2))
        rows = stack.enter_context(stream(session, _ALL_RESULTS, values, num_rows=_ROWS_A_FETCH))
        for block in rows.partitions():
            output.write([bytes(line) for is_error, line in block if not is_error])
            errors.write([bytes(line) for is_error, line in block if is_error])
        if (output.num_lines, errors.num_lines) != (batch.num_completed, num_failed):
            raise CountsDisagreeError(
                f"batch {batch.id} counts {batch.num_completed} completed and {num_failed} failed requests, and has "
                f"{output.num_lines} and {errors.num_lines} results"
            )
    return _named(session, batch, output, title="output"), _named(session, batch, errors, title="errors")


def _named(session: Session, batch: Batch, written: _LazyFile, *, title: str) -> File | None:
    if not written.num_lines:
        return None
    new = NewFile(
        object_key=written.key,
        filename=f"{batch.id}_{title}.jsonl",
        purpose=Purpose.BATCH_OUTPUT,
        size_bytes=written.size_bytes,
        expires_after_seconds=batch.output_expires_after_seconds,
    )
    return create_file(session, batch.tenant_id, new)


def _end(
    session: Session, batch_id: str, outcome: BatchState, *, added: _Added, output: File | None, errors: File | None
) -> None:
    """Name the files on the batch, give back what is left of its reservation, and move it to its outcome."""
    batch = lock_batch(session, batch_id)
    assert batch is not None
    batch.num_failed += added.num_lines
    if not batch.num_requests:
        batch.num_requests = added.num_lines
        if added.num_nameless > _MAX_NAMELESS:
            message = f"{added.num_nameless} lines have no custom_id, and {_MAX_NAMELESS} of them are in the error file"
            batch.errors = [whole_file_problem("too_many_invalid_lines", message)]
    if added.is_input_lost:
        name_missing_input(batch)
    batch.output_file_id = output.id if output else None
    batch.error_file_id = errors.id if errors else None
    move_batch(session, batch, outcome)
    # No chunk is open, so no line runs; dispatchers and workers of an older release end chunks and leave their cover.
    session.execute(_END_COVER, {"batch_id": batch_id})
    batch.covered_tokens = 0
    budgets.release(session, batch)


_OPEN_CHUNK = text("SELECT EXISTS (SELECT FROM chunk WHERE batch_id = :batch_id AND state = ANY(:states))")

_END_COVER = text("UPDATE chunk SET covered_tokens = 0 WHERE batch_id = :batch_id AND covered_tokens > 0")

_LINE_NUMBERS = text("SELECT line_no FROM result WHERE batch_day = :day AND batch_id = :batch_id")

_ALL_RESULTS = text("""
    SELECT is_error, line FROM result WHERE batch_day = :day AND batch_id = :batch_id ORDER BY line_no
""")
