"""Finalise a batch that has ended: a result for every request, the output and error files, their index, its outcome.

Short transactions under a claim, none of them open during a request to the object store; the last one links the files
and moves the batch. A crash before it leaves orphan objects at worst. Memory grows by at most a byte per line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.batches import not_run, planned
from jobs.batches.claims import FINALISATIONS, BatchWork
from jobs.batches.growth import segments
from jobs.batches.growth.segments import Segment, WholeInput
from jobs.batches.lifecycle import move_batch
from jobs.batches.missing_inputs import PutOffError, name_missing_input
from jobs.batches.not_run import CountsDisagreeError, NotRun
from jobs.batches.page_ends import end_of_page
from jobs.batches.scan import whole_file_problem
from jobs.chunks import checkpoints
from jobs.claims.work import work_on
from jobs.files import NewFile, Purpose, create_file, line_index_key, new_object_key
from jobs.lines.line_index import LineIndexWriter, ResultLine
from jobs.partitions import batch_day
from jobs.settings import MIB, Settings
from jobs.states import OPEN_CHUNK_STATES, BatchState
from jobs.storage import ObjectWriter, Storage
from jobs.tables import Batch, File

_ROWS_A_PAGE = 10_000
_BYTES_A_PAGE = 4 * MIB
"""A page of results ends after the line that exceeds this: lines may have megabytes each."""


def finalise_batch(
    maker: sessionmaker[Session],
    storage: Storage,
    batch_id: str,
    *,
    settings: Settings,
    hold_sessions: sessionmaker[Session] | None = None,
) -> BatchState | None:
    """Write the files of a batch that has ended and move it to its outcome; None where there is nothing to do (yet).

    Requests of an expired or cancelled batch that were not run become error lines `batch_expired`/`batch_cancelled`, so
    that every request is in exactly one file. Where the store has lost the input, confirmed by a second look, their
    custom_ids are unknown and the batch's `errors` report it. A crash or a repeated hint leaves orphan objects at
    worst. `hold_sessions` as for `ClaimedWork`. Raises ServiceError where the store fails: the next worker continues.
    """
    return work_on(
        maker,
        FINALISATIONS,
        batch_id,
        lambda work: _finalise(work, storage),
        settings=settings,
        hold_sessions=hold_sessions,
    )


def _finalise(work: BatchWork, storage: Storage) -> BatchState | None:
    batch_id = work.claim.id
    with work.reading() as session:
        if _has_open_chunk(session, batch_id):
            return None
        # Re-read: only now do the counters include what the last chunk recorded while it was open.
        batch = session.get_one(Batch, batch_id)
        file = session.get_one(File, batch.input_file_id)
    if batch.in_progress_at is None:
        planned.drop(work)
    outcome = BatchState.CANCELLED if batch.state == BatchState.CANCELLING else BatchState(batch.outcome or "")
    content = WholeInput(work, storage, file)
    try:
        missing = not_run.write_errors(work, content, batch, outcome=outcome)
    except PutOffError:
        return None
    output, errors = _write_files(work, storage)
    whole = content.written_as_one(batch.tenant_id) if content.has_grown and not missing.is_input_lost else None
    _end(work, outcome, missing=missing, output=output, errors=errors, whole=whole)
    return outcome


def _has_open_chunk(session: Session, batch_id: str) -> bool:
    states = [state.value for state in OPEN_CHUNK_STATES]
    return bool(session.scalar(_OPEN_CHUNK, {"batch_id": batch_id, "states": states}))


# --- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A stored object that no row references yet."""

    object_key: str
    size_bytes: int


class _LazyFile:
    """An object created with its first line: an empty one is not made."""

    def __init__(self, storage: Storage, key: str, stack: ExitStack) -> None:
        self.key = key
        self.num_lines = 0
        self._storage = storage
        self._stack = stack
        self._writer: ObjectWriter | None = None

    def write_lines(self, lines: list[bytes]) -> None:
        if lines:
            self.write(b"\n".join(lines) + b"\n")
            self.num_lines += len(lines)

    def write(self, content: bytes) -> None:
        if self._writer is None:
            self._writer = self._stack.enter_context(self._storage.writer(self.key))
        self._writer.write(content)

    @property
    def written(self) -> _Written | None:
        return None if self._writer is None else _Written(object_key=self.key, size_bytes=self._writer.size_bytes)


def _write_files(work: BatchWork, storage: Storage) -> tuple[_Written | None, _Written | None]:
    """Stream all results, by line number, into the output and error files; None for a file without lines.

    Their line index is beside the first of them.
    """
    with work.reading() as session:
        batch = session.get_one(Batch, work.claim.id)
    with ExitStack() as stack:
        output, errors = (_LazyFile(storage, new_object_key(batch.tenant_id), stack) for _ in range(2))
        first = output if batch.num_completed else errors
        indexed = _LazyFile(storage, line_index_key(first.key), stack)
        index = LineIndexWriter(indexed.write)
        for page in _pages(work, batch):
            output.write_lines([line for _, is_error, _, line in page if not is_error])
            errors.write_lines([line for _, is_error, _, line in page if is_error])
            index.add(page)
        if (output.num_lines, errors.num_lines) != (batch.num_completed, batch.num_failed):
            raise CountsDisagreeError(
                f"batch {batch.id} counts {batch.num_completed} completed and {batch.num_failed} failed requests, and "
                f"has {output.num_lines} and {errors.num_lines} results"
            )
        if output.num_lines or errors.num_lines:
            index.finish()
    return output.written, errors.written


def _pages(work: BatchWork, batch: Batch) -> Iterator[Sequence[ResultLine]]:
    """Yield all results by line number; nobody else writes any, so no common snapshot is needed."""
    values = {"day": batch_day(batch.created_at), "batch_id": batch.id}
    after, has_more = -1, True
    while has_more:
        with work.reading() as session:
            last, has_more = end_of_page(
                session, _SIZES, values, after=after, limit=_ROWS_A_PAGE, max_bytes=_BYTES_A_PAGE
            )
            page: list[ResultLine] = list(map(tuple, session.execute(_LINES, {**values, "after": after, "last": last})))
        yield page
        after = last


def _end(
    work: BatchWork,
    outcome: BatchState,
    *,
    missing: NotRun,
    output: _Written | None,
    errors: _Written | None,
    whole: Segment | None,
) -> None:
    """Link the files to the batch, return the rest of its reservation, and move it to its outcome."""
    with work.writing() as (session, batch):
        if missing.num_nameless > not_run.MAX_NAMELESS:
            message = (
                f"{missing.num_nameless} lines have no custom_id, and {not_run.MAX_NAMELESS} of them are in the error "
                "file"
            )
            batch.errors = [whole_file_problem("too_many_invalid_lines", message)]
        if missing.is_input_lost:
            name_missing_input(batch)
        batch.output_file_id = _named(session, batch, output, title="output")
        batch.error_file_id = _named(session, batch, errors, title="errors")
        move_batch(session, batch, outcome)
        budgets.release(session, batch)
        checkpoints.drop_all(session, batch.id)
        segments.close(session, batch)
        if whole is not None:
            segments.join(session, batch, whole)


def _named(session: Session, batch: Batch, stored: _Written | None, *, title: str) -> str | None:
    if stored is None:
        return None
    new = NewFile(
        object_key=stored.object_key,
        filename=f"{batch.id}_{title}.jsonl",
        purpose=Purpose.BATCH_OUTPUT,
        size_bytes=stored.size_bytes,
        expires_after_seconds=batch.output_expires_after_seconds,
    )
    return create_file(session, batch.tenant_id, new).id


_OPEN_CHUNK = text("SELECT EXISTS (SELECT FROM chunk WHERE batch_id = :batch_id AND state = ANY(:states))")

_SIZES = text("""
    SELECT line_no, octet_length(line) FROM result
    WHERE batch_day = :day AND batch_id = :batch_id AND line_no > :after
    ORDER BY line_no LIMIT :limit
""")

_LINES = text("""
    SELECT line_no, is_error, status_code, line FROM result
    WHERE batch_day = :day AND batch_id = :batch_id AND line_no > :after AND line_no <= :last
    ORDER BY line_no
""")
