"""Validate a batch: stream its input, list every bad line, plan its chunks, and set it going or fail it.

`Scan` is the decision and knows no SQL; `validate_batch` applies it in one transaction, so a crash leaves nothing.
Memory does not grow with the size of lines: per line only a digest of its custom_id is kept.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import text
from sqlalchemy.orm import Session

from jobs import budgets, fairshare
from jobs.batches import lock_batch, move_batch
from jobs.database import try_advisory_lock
from jobs.errors import NotFoundError
from jobs.lines import (
    CustomIds,
    InputLine,
    LineProblem,
    RawLine,
    error_line,
    iter_lines,
    parse_line,
    shown,
    too_long_problem,
)
from jobs.models import list_models
from jobs.profile import estimate_tokens
from jobs.recording import LineResult, copy_errors, copy_rows
from jobs.settings import MIB, Settings
from jobs.states import BatchState, InvalidLines
from jobs.storage import Storage
from jobs.tables import Batch, File

MAX_CHUNK_BYTES: Final = 16 * MIB
"""A chunk of long lines ends early: a worker reads it in one piece, K at a time."""
_LOOK_UP_BYTES: Final = 64 * MIB
"""Between two looks at the batch while its input is read; also keeps the transaction from being idle for minutes."""
_ERRORS_A_BLOCK: Final = 1000  # error results held before they are written


class PlannedChunk(NamedTuple):
    """A chunk to be: a named tuple, because a large batch has a hundred thousand of them."""

    first_line: int
    num_lines: int
    num_requests: int
    byte_start: int
    byte_end: int
    estimated_tokens: int


class ChunkPlanner:
    """Group lines into chunks of at most `max_lines` consecutive lines; each begins and ends with one that can run."""

    def __init__(self, *, max_lines: int) -> None:
        self.chunks: list[PlannedChunk] = []
        self._max_lines = max_lines
        self._open: PlannedChunk | None = None
        self._num_skipped = 0  # bad lines since the last one that can run

    def add(self, line: RawLine, tokens: int) -> None:
        chunk = self._open
        if chunk is None or not self._fits(chunk, line):
            self.finish()
            self._open = PlannedChunk(line.line_no, 1, 1, line.byte_start, line.byte_end, tokens)
        else:
            self._open = chunk._replace(
                num_lines=line.line_no - chunk.first_line + 1,
                num_requests=chunk.num_requests + self._num_skipped + 1,
                byte_end=line.byte_end,
                estimated_tokens=chunk.estimated_tokens + tokens,
            )
        self._num_skipped = 0

    def skip(self) -> None:
        """Note a bad line: inside a chunk it counts as a request that has its result already."""
        self._num_skipped += 1

    def finish(self) -> list[PlannedChunk]:
        """Close the open chunk and return all of them."""
        if self._open is not None:
            self.chunks.append(self._open)
            self._open = None
        return self.chunks

    def _fits(self, chunk: PlannedChunk, line: RawLine) -> bool:
        is_near = line.line_no - chunk.first_line < self._max_lines
        return is_near and line.byte_end - chunk.byte_start <= MAX_CHUNK_BYTES


@dataclass(slots=True)
class Scan:
    """What is found while lines are taken in order; `take` returns a line's problem, if it has one."""

    endpoint: str
    models: Collection[str]
    settings: Settings
    planner: ChunkPlanner = field(init=False)
    model: str | None = None  # of the batch: the first known one
    num_requests: int = 0
    num_problems: int = 0
    listed: list[dict[str, Any]] = field(default_factory=list)
    _ids: CustomIds = field(default_factory=CustomIds)

    def __post_init__(self) -> None:
        self.planner = ChunkPlanner(max_lines=self.settings.chunk_lines)

    def take(self, line: RawLine) -> LineProblem | None:
        self.num_requests += 1
        if self.num_requests > self.settings.max_batch_lines:
            return None  # the batch fails as a whole; only the count matters now
        try:
            request = self._checked(line)
        except LineProblem as problem:
            self._note(problem)
            return problem
        assert line.content is not None
        tokens = estimate_tokens(line.content, request.body, default_max_tokens=self.settings.default_max_tokens)
        self.planner.add(line, tokens)
        return None

    def file_problem(self) -> dict[str, Any] | None:
        """Return what is wrong with the file as a whole, which fails the batch in any case."""
        allowed = self.settings.max_batch_lines
        if self.num_requests == 0:
            return whole_file_problem("empty_file", "the input file has no requests; write one JSON object a line")
        if self.num_requests > allowed:
            message = f"the input file has {self.num_requests} requests and {allowed} are allowed; split it"
            return whole_file_problem("too_many_tasks", message)
        return None

    def _checked(self, line: RawLine) -> InputLine:
        if line.content is None:
            raise too_long_problem(line, max_line_bytes=self.settings.max_line_bytes)
        request = parse_line(line.content, line_no=line.line_no, endpoint=self.endpoint)
        self._check_custom_id(request)
        self._check_model(request)
        return request

    def _check_custom_id(self, request: InputLine) -> None:
        first = self._ids.add(request.custom_id, request.line_no)
        if first is not None:
            message = f"custom_id {shown(request.custom_id)} is used by line {first + 1} already; make every one unique"
            raise _problem(request, "duplicate_custom_id", message, param="custom_id")

    def _check_model(self, request: InputLine) -> None:
        if request.model == self.model:
            return
        if request.model not in self.models:
            known = ", ".join(sorted(self.models)[:10]) or "none yet"
            message = f"the model {shown(request.model)} does not exist; known are: {known}"
            raise _problem(request, "model_not_found", message, param="body.model")
        if self.model is not None:
            message = (
                f"the model is {shown(request.model)} and earlier lines name {shown(self.model)}; "
                "put each model into its own batch"
            )
            raise _problem(request, "model_mismatch", message, param="body.model")
        self.model = request.model

    def _note(self, problem: LineProblem) -> None:
        self.planner.skip()
        self.num_problems += 1
        if len(self.listed) < self.settings.max_listed_errors:
            self.listed.append(problem.wire())


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
    fails_on_bad_lines = batch.invalid_lines == InvalidLines.FAIL
    savepoint = session.begin_nested()  # around the error results of bad lines
    try:
        is_wanted = _read_input(session, storage, batch, scan=scan)
        problem = scan.file_problem()
    except NotFoundError as error:
        is_wanted, problem = True, whole_file_problem("file_not_found", error.message)
    moved: BatchState | None = None
    if is_wanted and problem is None and not (scan.num_problems and fails_on_bad_lines):
        moved = _start(session, batch_id, scan)
    if moved is not None:
        savepoint.commit()
        return moved
    savepoint.rollback()
    if not is_wanted:
        return None
    return _fail(session, batch_id, scan, [problem, *scan.listed] if problem else scan.listed)


def _problem(request: InputLine, code: str, message: str, *, param: str) -> LineProblem:
    return LineProblem(code, message, line_no=request.line_no, param=param, custom_id=request.custom_id)


def whole_file_problem(code: str, message: str) -> dict[str, Any]:
    """Return an entry of `errors.data` that concerns no single line."""
    return {"code": code, "message": message, "param": None, "line": None}


def _read_input(session: Session, storage: Storage, batch: Batch, *, scan: Scan) -> bool:
    """Take every line into the scan; return False as soon as the batch is seen to be cancelled or expired."""
    file = session.get_one(File, batch.input_file_id)
    errors = _ErrorResults(session, batch)
    looked_at = 0
    for line in iter_lines(storage.iter_chunks(file.object_key), max_line_bytes=scan.settings.max_line_bytes):
        problem = scan.take(line)
        if problem is not None and batch.invalid_lines == InvalidLines.SKIP:
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
    return BatchState.FAILED


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
        return BatchState.FINALIZING
    assert scan.model is not None, "a line that can run names a known model"
    # Before the chunks: whoever has open chunks already keeps the virtual time it has.
    fairshare.activate(session, model=scan.model, priority=batch.priority, tenant_id=batch.tenant_id)
    head = (batch.id, batch.tenant_id, scan.model, batch.priority, batch.expires_at)
    copy_rows(session, _COPY_CHUNKS, (head + chunk for chunk in chunks))
    move_batch(session, batch, BatchState.IN_PROGRESS)
    return BatchState.IN_PROGRESS


_COPY_CHUNKS: Final = (
    "COPY chunk (batch_id, tenant_id, model, priority, expires_at, first_line, num_lines, num_requests, byte_start,"
    " byte_end, estimated_tokens) FROM STDIN"
)
