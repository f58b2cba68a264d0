"""Error results for requests that were not run when their batch ended, so that each is in exactly one file.

Written and counted in blocks under the claim, with no transaction open while the input is read: a successor continues
with the lines that have no result yet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import text

from jobs.batches import missing_inputs
from jobs.batches.claims import BatchWork
from jobs.batches.growth.segments import WholeInput
from jobs.chunks.recording import LineResult, copy_errors
from jobs.errors import NotFoundError, TokenmillError
from jobs.lines.output_lines import error_line
from jobs.lines.reading import custom_id_of, iter_lines
from jobs.partitions import batch_day
from jobs.settings import MIB
from jobs.states import BatchState
from jobs.tables import Batch

log = logging.getLogger(__name__)

MAX_NAMELESS = 1000
"""Limit of error lines for lines that are no requests: 20 bytes must not become 200 without end."""
_ERRORS_A_BLOCK = 1000
_NUMBERS_A_PAGE = 100_000
_MAX_LINE_BYTES = 64 * MIB  # far above any setting; only custom_ids are read of these lines
_WHY_NOT_RUN = {
    BatchState.EXPIRED: ("batch_expired", "the batch's window of {window} ended before this line was run"),
    BatchState.CANCELLED: ("batch_cancelled", "the batch was cancelled before this line was run"),
    BatchState.FAILED: ("file_not_found", "the batch's input was gone when this line was to run"),
}


class CountsDisagreeError(TokenmillError):
    """Invariant broken: the number of a batch's results differs from its counters."""


@dataclass(slots=True)
class NotRun:
    """Outcome for the requests that were not run."""

    is_input_lost: bool = False
    """Their custom_ids are unknown, so some have no result."""
    num_nameless: int = 0
    """Lines without a custom_id, of an input that was never validated."""


def write_errors(work: BatchWork, content: WholeInput, batch: Batch, *, outcome: BatchState) -> NotRun:
    """Insert an error result for every request without one; fewer only where the input is lost.

    The requests of a batch that ended before its validation were never counted: every line is one, except nameless
    lines beyond MAX_NAMELESS, which only show that this is no input. Holds one byte a line, and a block of results.
    Raises PutOffError where the input is missing for the first time, CountsDisagreeError where lines of a batch that is
    to complete have no result.
    """
    is_counted = batch.in_progress_at is not None or outcome not in (BatchState.CANCELLED, BatchState.EXPIRED)
    num_missing = batch.num_requests - batch.num_completed - batch.num_failed
    if is_counted and not num_missing:
        return NotRun()
    if outcome is BatchState.COMPLETED:
        raise CountsDisagreeError(f"batch {batch.id} should complete, but {num_missing} of its requests have no result")
    writer = _Writer(work, batch, num_missing=num_missing if is_counted else None)
    reader = _Reader(work, content, batch, outcome=outcome, max_nameless=None if is_counted else MAX_NAMELESS)
    try:
        while block := list(islice(reader, _ERRORS_A_BLOCK)):
            writer.write(block)
        is_whole = (is_counted and writer.num_written == num_missing) or content.is_whole()
    except NotFoundError:
        is_whole = False
    if not is_whole:
        missing_inputs.require_lost(work)
        log.error("files lack requests, their input is lost or truncated batch_id=%s", batch.id)
    elif is_counted:
        writer.check(writer.num_written)
    return NotRun(is_input_lost=not is_whole, num_nameless=reader.num_nameless)


class _Writer:
    def __init__(self, work: BatchWork, batch: Batch, *, num_missing: int | None) -> None:
        """`num_missing` is how many results the batch lacks; None where its requests were never counted."""
        self.num_written = 0
        self._work = work
        self._batch_id = batch.id
        self._num_missing = num_missing

    def write(self, block: Sequence[LineResult]) -> None:
        """Insert results and count them on the batch at once: they stay even if another worker writes the rest."""
        if self._num_missing is not None and self.num_written + len(block) > self._num_missing:
            self.check(self.num_written + len(block))
        with self._work.writing() as (session, batch):
            copy_errors(session, batch, block, base=batch.num_completed + batch.num_failed)
            batch.num_failed += len(block)
            if self._num_missing is None:
                batch.num_requests += len(block)
        self.num_written += len(block)

    def check(self, num_found: int) -> None:
        if num_found != self._num_missing:
            raise CountsDisagreeError(
                f"batch {self._batch_id} lacks {self._num_missing} results, and {num_found} lines or more have none"
            )


class _Reader(Iterator[LineResult]):
    """The error results of an input's lines without a result, in order."""

    def __init__(
        self,
        work: BatchWork,
        content: WholeInput,
        batch: Batch,
        *,
        outcome: BatchState,
        max_nameless: int | None,
    ) -> None:
        self.num_nameless = 0
        self._batch_id = batch.id
        self._code, message = _WHY_NOT_RUN[outcome]
        self._message = message.format(window=batch.completion_window)
        self._max_nameless = max_nameless
        self._has_result = _lines_with_result(work, batch)
        self._lines = iter_lines(content.pieces(), max_line_bytes=_MAX_LINE_BYTES)

    def __next__(self) -> LineResult:
        for line in self._lines:
            has_result = line.line_no < len(self._has_result) and self._has_result[line.line_no]
            if has_result and self._max_nameless is None:
                continue
            custom_id = custom_id_of(line.content)
            # Counts lines that already have a result too, so that a restart produces no more lines.
            self.num_nameless += custom_id is None
            is_one_too_many = custom_id is None and self.num_nameless > (self._max_nameless or self.num_nameless)
            if not has_result and not is_one_too_many:
                content = error_line(self._batch_id, line.line_no, custom_id, code=self._code, message=self._message)
                return LineResult(line_no=line.line_no, line=content, status_code=None)
        raise StopIteration


def _lines_with_result(work: BatchWork, batch: Batch) -> bytearray:
    """Return a byte for each line number: 1 where it has a result."""
    done = bytearray()
    values = {"day": batch_day(batch.created_at), "batch_id": batch.id, "after": -1, "limit": _NUMBERS_A_PAGE}
    while True:
        with work.reading() as session:
            numbers = session.scalars(_LINE_NUMBERS, values).all()
        if not numbers:
            return done
        done.extend(bytes(numbers[-1] - len(done) + 1))
        for line_no in numbers:
            done[line_no] = 1
        values["after"] = numbers[-1]


_LINE_NUMBERS = text("""
    SELECT line_no FROM result WHERE batch_day = :day AND batch_id = :batch_id AND line_no > :after
    ORDER BY line_no LIMIT :limit
""")
