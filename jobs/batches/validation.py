"""Validate a batch: stream its input, plan its chunks, and set it going or fail it.

What is good and bad is decided in scan.py; all of it is applied in one transaction, so a crash leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs.accounts import budgets
from jobs.batches.lifecycle import lock_batch, move_batch
from jobs.batches.scan import PlannedChunk, Scan, too_many_problems, whole_file_problem
from jobs.chunks import fairshare
from jobs.chunks.recording import LineResult, copy_errors, copy_rows
from jobs.database import try_advisory_lock
from jobs.errors import NotFoundError
from jobs.lines.output_lines import error_line
from jobs.lines.reading import LineProblem, iter_lines
from jobs.served_models import list_models
from jobs.settings import MIB, Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, File

_LOOK_UP_BYTES = 4 * MIB
"""Between two looks at the batch while its input is read; also keeps the transaction from being idle for minutes."""
_ERRORS_A_BLOCK = 1000  # error results held before they are written


def validate_batch(session: Session, storage: Storage, batch_id: str, *, settings: Settings) -> BatchState | None:
    """Validate a batch and return the state it moved to; None where there was nothing to do (a repeated hint).

    With invalid_lines "skip", bad lines become error results in the same transaction, counted as failed and unbilled.
    Raises ServiceError where the store fails: nothing has changed then.
    """
    if not try_advisory_lock(session, f"validate {batch_id}"):
        return None
    batch = session.get(Batch, batch_id, populate_existing=True)
    if batch is None or batch.state != BatchState.VALIDATING:
        return None
    scan = Scan(endpoint=batch.endpoint, models={model.name for model in list_models(session)}, settings=settings)
    is_strict = batch.invalid_lines == InvalidLines.FAIL
    allowed = _allowed_problems(session, batch, settings)
    savepoint = session.begin_nested()  # around the error results of bad lines: a batch that fails has none
    try:
        is_wanted = _read_input(session, storage, batch, scan=scan, allowed_problems=allowed)
        problem = scan.file_problem() or (None if is_strict else too_many_problems(scan, allowed))
    except NotFoundError as error:
        is_wanted, problem = True, whole_file_problem("file_not_found", error.message)
    if is_wanted and problem is None and not (is_strict and scan.num_problems):
        moved = _start(session, batch_id, scan)
        if moved is not None:
            savepoint.commit()
            return moved
    savepoint.rollback()
    if not is_wanted:
        return None
    return _fail(session, batch_id, scan, [problem, *scan.listed] if problem else scan.listed)


def _allowed_problems(session: Session, batch: Batch, settings: Settings) -> int:
    """A bad line costs its tenant nothing and leaves an error of 200 bytes: good ones, which cost, must outweigh it."""
    num_requests = session.get_one(File, batch.input_file_id).num_requests or 0
    return max(settings.max_invalid_lines, num_requests // 10)


def _read_input(session: Session, storage: Storage, batch: Batch, *, scan: Scan, allowed_problems: int) -> bool:
    """Have every line checked; return False as soon as the batch is seen to be cancelled or expired."""
    file = session.get_one(File, batch.input_file_id)
    errors = _ErrorResults(session, batch)
    looked_at = 0
    for line in iter_lines(storage.iter_chunks(file.object_key), max_line_bytes=scan.settings.max_line_bytes):
        problem = scan.check(line)
        is_few = scan.num_problems <= allowed_problems  # with more, none of them becomes a result
        if problem is not None and is_few and batch.invalid_lines == InvalidLines.SKIP:
            errors.add(problem)
        if line.byte_end - looked_at > _LOOK_UP_BYTES:
            looked_at = line.byte_end
            if not _is_validating(session, batch.id):
                return False
    errors.write()
    return True


class _ErrorResults:
    """Error results of bad lines, written in blocks: numbered 1, 2, … as nothing else can have a result yet."""

    def __init__(self, session: Session, batch: Batch) -> None:
        self._session = session
        self._batch = batch
        self._held: list[LineResult] = []
        self._num_written = 0

    def add(self, problem: LineProblem) -> None:
        content = error_line(
            self._batch.id, problem.line_no, problem.custom_id, code=problem.code, message=str(problem)
        )
        self._held.append(LineResult(line_no=problem.line_no, line=content, status_code=None))
        if len(self._held) >= _ERRORS_A_BLOCK:
            self.write()

    def write(self) -> None:
        if self._held:
            copy_errors(self._session, self._batch, self._held, base=self._num_written)
            self._num_written += len(self._held)
            self._held.clear()


def _is_validating(session: Session, batch_id: str) -> bool:
    state = session.scalar(text("SELECT state FROM batch WHERE id = :batch_id"), {"batch_id": batch_id})
    return bool(state == BatchState.VALIDATING)


def _fail(session: Session, batch_id: str, scan: Scan, errors: Sequence[dict[str, Any]]) -> BatchState | None:
    batch = lock_batch(session, batch_id)
    if batch is None or batch.state != BatchState.VALIDATING:
        return None
    batch.model = scan.model
    batch.errors = list(errors)
    batch.num_unlisted_errors = scan.num_problems - len(scan.listed)
    move_batch(session, batch, BatchState.FAILED)
    budgets.release(session, batch)
    _count_refused(session, batch, scan)
    return BatchState.FAILED


def _count_refused(session: Session, batch: Batch, scan: Scan) -> None:
    refused = budgets.RefusedInput(lines=scan.num_problems, size_bytes=scan.problem_bytes)
    budgets.count_refused(session, batch.tenant_id, refused)


def _start(session: Session, batch_id: str, scan: Scan) -> BatchState | None:
    """Write the chunks and set the batch going; with no line to run it goes on to its files at once."""
    batch = lock_batch(session, batch_id)
    if batch is None or batch.state != BatchState.VALIDATING:
        return None
    batch.model = scan.model
    batch.num_requests = scan.num_requests
    batch.num_failed = scan.num_problems
    chunks = scan.planner.finish()
    if not chunks:
        move_batch(session, batch, BatchState.FINALIZING, outcome=BatchState.COMPLETED)
        _count_refused(session, batch, scan)
        return BatchState.FINALIZING
    assert scan.model is not None, "a line that can run names a known model"
    # Before the chunks: whoever has open chunks already keeps the virtual time it has.
    fairshare.activate(session, model=scan.model, priority=batch.priority, tenant_id=batch.tenant_id)
    _write_chunks(session, batch, chunks)
    move_batch(session, batch, BatchState.IN_PROGRESS)
    _count_refused(session, batch, scan)
    return BatchState.IN_PROGRESS


def _write_chunks(session: Session, batch: Batch, chunks: Sequence[PlannedChunk]) -> None:
    copied = {name: getattr(batch, name) for name in ("tenant_id", "model", "priority", "expires_at")}
    columns = ", ".join(["batch_id", *copied, *PlannedChunk._fields])
    head = (batch.id, *copied.values())
    copy_rows(session, f"COPY chunk ({columns}) FROM STDIN", (head + chunk for chunk in chunks))
