"""Runs one claimed chunk: reads its lines, feeds the engine, flushes results, holds the lease, completes.

Every result reaches Postgres through `chunks.flush`, under the claim's fence; a repeated flush bills nothing twice.
"""

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sqlalchemy.orm import Session, sessionmaker

from engine.errors import InvalidParamsError
from jobs import checkpoints, chunks, lines, lost_inputs
from jobs.bodies import CHAT_ENDPOINT
from jobs.body_checks import BodyError
from jobs.chunks import ClaimedChunk, FlushOutcome
from jobs.database import transaction
from jobs.errors import FencedOutError, NotFoundError, ServiceError
from jobs.lines import InputLine, RawLine
from jobs.recording import LineResult
from jobs.responses import error_body
from jobs.settings import Settings
from jobs.states import Priority
from jobs.storage import Storage
from workers.answers import AnswerMaker
from workers.engine_host import EngineHost, EngineRequest
from workers.line_run import LineRun
from workers.prompts import PreparedLine, PromptMaker

log = logging.getLogger(__name__)

ENGINE_PRIORITY: Final = {Priority.URGENT: 0, Priority.NORMAL: 1, Priority.BULK: 2}
STALL_SECONDS: Final = 120.0
"""An engine silent for longer is taken for wedged, a line in preparation for one that never gets through: the leases of
their chunks are no longer extended."""
LONG_LINE_BYTES: Final = 64 * 1024
"""From here on a line is prepared beside the thread that holds the lease. 8 MB take 10 to 14 s to tokenise (demo model,
2 cores, November 2026), and several chunks may do so at once; a shorter line is not worth another thread."""
_RETRY_SECONDS: Final = 0.5

T = TypeVar("T")


class Drain:
    """The worker's wish to stop, seen by every open chunk: `is_on` from the start, `is_over` after the grace."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends_at: float | None = None

    def begin(self, grace_seconds: float) -> None:
        self._ends_at = self._monotonic() + grace_seconds

    @property
    def is_on(self) -> bool:
        return self._ends_at is not None

    @property
    def is_over(self) -> bool:
        return self._ends_at is not None and self._monotonic() >= self._ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerParts:
    """What the chunks of one worker share."""

    host: EngineHost
    prompts: PromptMaker
    answers: AnswerMaker
    tokenizer: Any
    sessions: sessionmaker[Session]
    storage: Storage
    settings: Settings
    drain: Drain
    model_fingerprint: str  # of the files that the engine loaded
    monotonic: Callable[[], float] = time.monotonic


class _Abandoned(Exception):
    """The chunk is no longer ours to finish; whatever the engine still runs of it is aborted."""


_ENDS_THE_CHUNK: Final = (_Abandoned, FencedOutError, ServiceError)
"""What is no fault of the one line at which it shows."""


@dataclass(slots=True)
class _Progress:
    """What is still in the engine, and what waits to be flushed."""

    in_engine: dict[int, LineRun] = field(default_factory=dict)  # by line_no
    finished: "queue.SimpleQueue[LineRun]" = field(default_factory=queue.SimpleQueue)
    unflushed: list[LineResult] = field(default_factory=list)
    num_flushes: int = 0


class ChunkRun:
    """One claim from first line to last. `run` returns when the chunk is done, given back or lost."""

    def __init__(self, claim: ClaimedChunk, parts: WorkerParts) -> None:
        self._claim = claim
        self._parts = parts
        self._progress = _Progress()
        self._flushed_at = parts.monotonic()
        self._held_at = parts.monotonic()
        self._created = int(time.time())

    def run(self) -> None:
        claim = self._claim
        log.info("chunk started chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
        try:
            self._submit_lines()
            self._collect()
            self._close(chunks.complete)
        except _Abandoned as reason:
            log.warning("chunk abandoned chunk_id=%s fence=%s reason=%s", claim.chunk_id, claim.fence, reason)
        else:
            log.info("chunk closed chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
        finally:
            self._abort()

    # --- lines into the engine ---------------------------------------------------------------------------------------

    def _submit_lines(self) -> None:
        content = self._read_content()
        done, kept = self._in_database(
            lambda session: (chunks.lines_done(session, self._claim), self._read_checkpoints(session))
        )
        for raw in self._claim.split(content):
            if raw.line_no not in done:
                self._submit(raw, kept.get(raw.line_no, []))
            self._hold_lease_if_due()

    def _read_content(self) -> bytes:
        claim = self._claim
        try:
            return self._parts.storage.read_range(claim.object_key, claim.byte_start, claim.byte_end)
        except ServiceError as error:
            # Given back and not left to expire: a store that is away must not count as a loss of these lines.
            threading.Event().wait(_RETRY_SECONDS)
            self._close(chunks.release)
            raise _Abandoned(str(error)) from None
        except NotFoundError as error:
            self._close(lost_inputs.give_up_claim)
            raise _Abandoned(str(error)) from None

    def _read_checkpoints(self, session: Session) -> dict[int, list[int]]:
        return checkpoints.read(session, self._claim, model_fingerprint=self._parts.model_fingerprint)

    def _submit(self, raw: RawLine, output: list[int]) -> None:
        """Hand a line to the engine, to go on after the output that an earlier worker left."""
        assert raw.content is not None, "validation refused over-long lines"
        try:
            line = lines.parse_line(raw.content, line_no=raw.line_no, endpoint=self._claim.endpoint)
            try:
                prepared = self._prepare(line, size_bytes=len(raw.content))
            except (BodyError, InvalidParamsError) as error:
                self._progress.unflushed.append(self._refusal(line, error))
            else:
                self._start(prepared, output)
        except _ENDS_THE_CHUNK:
            raise
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self._give_up(raw.line_no, lines.custom_id_of(raw.content), error)

    def _prepare(self, line: InputLine, *, size_bytes: int) -> PreparedLine:
        prepare = functools.partial(
            self._parts.prompts.prepare, line, endpoint=self._claim.endpoint, batch_id=self._claim.batch_id
        )
        return prepare() if size_bytes < LONG_LINE_BYTES else self._hold_lease_during(prepare)

    def _hold_lease_during(self, work: Callable[[], T]) -> T:
        """Do `work` in another thread; the lease is left to end where that never comes back."""
        parts, executor = self._parts, ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare")
        started_at, result = parts.monotonic(), executor.submit(work)
        executor.shutdown(wait=False)  # once this is done; the lease may be lost before, and nobody waits for it then
        while not wait([result], timeout=parts.settings.heartbeat_seconds).done:
            if parts.monotonic() - started_at <= STALL_SECONDS:
                self._hold_lease_if_due()
        return result.result()

    def _start(self, prepared: PreparedLine, output: list[int]) -> None:
        run = LineRun(
            prepared,
            self._parts.tokenizer,
            batch_id=self._claim.batch_id,
            on_done=self._progress.finished.put,
            on_stopped=self._parts.host.abort_child,
        )
        if output:
            run.prompt_runs[0].resume(output)
        self._progress.in_engine[prepared.line.line_no] = run
        for index, (prompt, prompt_run) in enumerate(zip(prepared.prompts, run.prompt_runs, strict=True)):
            request = EngineRequest(
                prompt_token_ids=prompt,
                params=prepared.params_of(index),
                priority=ENGINE_PRIORITY[Priority(self._claim.priority)],
                deadline=self._claim.expires_at.timestamp(),
                salt=self._claim.tenant_id,
                output_token_ids=prompt_run.resumed_token_ids,
            )
            prompt_run.request_id = self._parts.host.submit(request, prompt_run)

    # --- results out -------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Until every line has its result: take finished lines, flush when due, hold the lease."""
        progress = self._progress
        while progress.in_engine or progress.unflushed:
            self._take_finished()
            if self._is_flush_due():
                self._flush()
            self._hold_lease_if_due()
            if progress.in_engine and self._parts.drain.is_over:
                self._give_back()

    def _take_finished(self) -> None:
        """Wait a moment for a finished line, then take all there are."""
        progress = self._progress
        if not progress.in_engine:
            return
        try:
            run = progress.finished.get(timeout=self._parts.settings.flush_seconds)
            while True:
                self._finish_line(run)
                run = progress.finished.get_nowait()
        except queue.Empty:
            return

    def _finish_line(self, run: LineRun) -> None:
        line = run.prepared.line
        self._progress.in_engine.pop(line.line_no, None)
        if stopped := run.request_ids_in_engine:
            self._parts.host.abort(stopped)
        try:
            if run.error and run.is_resumed:
                log.warning(
                    "resumed line failed, running its prompt batch_id=%s line=%d", self._claim.batch_id, line.line_no
                )
                self._start(run.prepared, [])  # what it went on after may be the reason
                return
            result = self._failure(line.line_no, line.custom_id, run.error) if run.error else self._answer(run)
            self._progress.unflushed.append(result)
        except _ENDS_THE_CHUNK:
            raise
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self._give_up(line.line_no, line.custom_id, error)

    def _is_flush_due(self) -> bool:
        settings, waiting = self._parts.settings, len(self._progress.unflushed)
        if not waiting:
            return False
        is_old = self._parts.monotonic() - self._flushed_at >= settings.flush_seconds
        return is_old or waiting >= settings.flush_results or not self._progress.in_engine

    def _flush(self) -> None:
        """Write what is finished; where the batch is no longer wanted, end the chunk."""
        if not self._write_results().batch_wanted:
            self._withdraw()

    def _write_results(self) -> FlushOutcome:
        """Write what is finished. The same flush number is used until one attempt is known to have committed."""
        results, flush_no = self._progress.unflushed, self._progress.num_flushes
        outcome = self._in_database(
            lambda session: chunks.flush(
                session, self._claim, results, flush_no=flush_no, lease=self._parts.settings.lease
            )
        )
        self._progress.unflushed = []
        self._progress.num_flushes += 1
        self._flushed_at = self._held_at = self._parts.monotonic()
        return outcome

    def _hold_lease_if_due(self) -> None:
        """Extend the lease between flushes, but only for an engine that moves: a wedged one must lose its work."""
        parts = self._parts
        if parts.monotonic() - self._held_at < parts.settings.heartbeat_seconds:
            return
        if parts.host.seconds_since_progress() > STALL_SECONDS:
            return
        outcome = self._in_database(lambda session: chunks.extend(session, self._claim, lease=parts.settings.lease))
        self._held_at = parts.monotonic()
        if not outcome.batch_wanted:
            self._withdraw()

    # --- ends --------------------------------------------------------------------------------------------------------

    def _give_back(self) -> None:
        """Return the rest of the chunk to the queue, with the output it has so far; not a loss."""
        started = dict(self._progress.in_engine)
        self._abort()
        while not self._progress.finished.empty():  # ended since they were last taken
            self._finish_line(self._progress.finished.get())
        if self._progress.unflushed:
            self._flush()
        self._leave_for_another(started)
        raise _Abandoned("the worker is stopping; the rest was given back")

    def _leave_for_another(self, started: dict[int, LineRun]) -> None:
        outputs = {line_no: tokens for line_no, run in started.items() if (tokens := run.checkpoint)}

        def leave(session: Session) -> None:
            checkpoints.save(session, self._claim, outputs, model_fingerprint=self._parts.model_fingerprint)
            chunks.release(session, self._claim)

        self._in_database(leave)

    def _withdraw(self) -> None:
        """The batch was cancelled or has expired: keep what is finished, drop the rest."""
        self._abort()
        if self._progress.unflushed:
            self._write_results()
        self._close(chunks.release)  # withdraws it, seeing the batch's state
        raise _Abandoned("the batch was cancelled or has expired")

    def _close(self, close: Callable[[Session, ClaimedChunk], object]) -> None:
        self._in_database(lambda session: close(session, self._claim))

    def _abort(self) -> None:
        open_requests = [
            request_id for run in self._progress.in_engine.values() for request_id in run.request_ids_in_engine
        ]
        self._progress.in_engine.clear()
        if open_requests:
            self._parts.host.abort(open_requests)

    def _in_database(self, work: Callable[[Session], T]) -> T:
        """Run `work` in one transaction; while Postgres is away, try again for as long as the lease may live."""
        parts, deadline = self._parts, self._parts.monotonic() + self._parts.settings.lease_seconds
        while True:
            try:
                with transaction(parts.sessions) as session:
                    return work(session)
            except FencedOutError:
                raise _Abandoned("another worker owns it by now") from None
            except ServiceError as error:
                if parts.monotonic() >= deadline:
                    raise _Abandoned(f"the database stayed away: {error}") from None
                log.warning("database unreachable, trying again chunk_id=%s", self._claim.chunk_id)
                threading.Event().wait(_RETRY_SECONDS)

    # --- results of lines --------------------------------------------------------------------------------------------

    def _answer(self, run: LineRun) -> LineResult:
        line, batch_id = run.prepared.line, self._claim.batch_id
        prefix = "chatcmpl" if run.prepared.endpoint == CHAT_ENDPOINT else "cmpl"
        answer = self._parts.answers.make(
            run, response_id=lines.response_id(prefix, batch_id, line.line_no), created=self._created
        )
        return LineResult(
            line_no=line.line_no,
            status_code=200,
            line=lines.output_line(batch_id, line.line_no, line.custom_id, status_code=200, body=answer.body),
            input_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens,
            output_tokens=answer.usage.completion_tokens,
        )

    def _refusal(self, line: InputLine, error: BodyError | InvalidParamsError) -> LineResult:
        """A body that cannot be run: status 400, unbilled."""
        param, code = (error.param, error.code) if isinstance(error, BodyError) else (None, "invalid_value")
        body = error_body(str(error), code=code, param=param)
        content = lines.output_line(self._claim.batch_id, line.line_no, line.custom_id, status_code=400, body=body)
        return LineResult(line_no=line.line_no, status_code=400, line=content)

    def _failure(self, line_no: int, custom_id: str | None, message: str) -> LineResult:
        """A failure at run time: no response, unbilled."""
        content = lines.error_line(self._claim.batch_id, line_no, custom_id, code="engine_failure", message=message)
        return LineResult(line_no=line_no, status_code=None, line=content)

    def _give_up(self, line_no: int, custom_id: str | None, error: Exception) -> None:
        """Fail one line for a fault of ours, and drop what the engine still runs of it."""
        log.exception("line failed unexpectedly batch_id=%s line_no=%s", self._claim.batch_id, line_no)
        run = self._progress.in_engine.pop(line_no, None)
        if run is not None and run.request_ids_in_engine:
            self._parts.host.abort(run.request_ids_in_engine)
        message = (
            f"An internal error, {type(error).__name__}, ended this line; the worker's log has it under batch "
            f"{self._claim.batch_id} line_no {line_no}. Report it to who runs this service."
        )
        self._progress.unflushed.append(self._failure(line_no, custom_id, message))
