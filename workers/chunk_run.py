"""Runs one claimed chunk: reads its lines, feeds the engine, flushes results, holds the lease, completes.

Knows which lines are in the engine and which results wait, and decides how the chunk ends; `chunk_lease` writes.
"""

from __future__ import annotations

import functools
import logging
import queue
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.orm import Session, sessionmaker

from engine.errors import InvalidParamsError
from engine.scheduling.request import NewRequest
from jobs.batches import missing_inputs
from jobs.chunks import checkpoints, leasing
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.errors import NotFoundError, ServiceError
from jobs.lines import reading
from jobs.lines.body_checks import BodyError
from jobs.lines.reading import InputLine, RawLine
from jobs.settings import Settings
from jobs.states import Priority
from jobs.storage import Storage
from workers.answers import AnswerMaker
from workers.chunk_lease import RETRY_SECONDS, Abandoned, ChunkLease
from workers.drain import Drain
from workers.engine_host import EngineHost
from workers.line_results import ResultMaker
from workers.line_run import LineRun
from workers.prompts import PreparedLine, PromptMaker

log = logging.getLogger(__name__)

ENGINE_PRIORITY = {Priority.URGENT: 0, Priority.NORMAL: 1, Priority.BULK: 2}
STALL_SECONDS = 120.0
"""An engine silent for longer is taken for wedged, a line in preparation for one that never gets through: the leases of
their chunks are no longer extended."""
LONG_LINE_BYTES = 64 * 1024
"""From here on a line is prepared beside the thread that holds the lease. 8 MB take 10 to 14 s to tokenise (demo model,
2 cores, November 2026), and several chunks may do so at once; a shorter line is not worth another thread."""

T = TypeVar("T")


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


class ChunkRun:
    """One claim from first line to last. `run` returns when the chunk is done, given back or lost."""

    def __init__(self, claim: ClaimedChunk, parts: WorkerParts) -> None:
        self._claim = claim
        self._parts = parts
        self._lease = ChunkLease(claim, sessions=parts.sessions, settings=parts.settings, monotonic=parts.monotonic)
        self._results = ResultMaker(claim.batch_id, parts.answers)
        self._in_engine: dict[int, LineRun] = {}  # by line_no
        self._finished: queue.SimpleQueue[LineRun] = queue.SimpleQueue()
        self._unflushed: list[LineResult] = []
        self._flushed_at = parts.monotonic()

    def run(self) -> None:
        claim = self._claim
        log.info("chunk started chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
        try:
            self._submit_lines()
            self._collect()
            self._lease.run(leasing.complete)
        except Abandoned as reason:
            log.warning("chunk abandoned chunk_id=%s fence=%s reason=%s", claim.chunk_id, claim.fence, reason)
        else:
            log.info("chunk closed chunk_id=%s batch_id=%s fence=%s", claim.chunk_id, claim.batch_id, claim.fence)
        finally:
            self._abort_all()

    # --- lines into the engine ---------------------------------------------------------------------------------------

    def _submit_lines(self) -> None:
        content = self._read_content()
        done, kept = self._lease.run(self._read_progress)
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
            time.sleep(RETRY_SECONDS)
            self._lease.run(leasing.release)
            raise Abandoned(str(error)) from None
        except NotFoundError as error:
            self._lease.run(missing_inputs.give_up_claim)
            raise Abandoned(str(error)) from None

    def _read_progress(self, session: Session, claim: ClaimedChunk) -> tuple[set[int], dict[int, list[int]]]:
        """Return the lines that have a result, and the output that others of them have so far."""
        kept = checkpoints.read(session, claim, model_fingerprint=self._parts.model_fingerprint)
        return leasing.lines_done(session, claim), kept

    def _submit(self, raw: RawLine, output: list[int]) -> None:
        """Hand a line to the engine, to go on after the output that an earlier worker left."""
        assert raw.content is not None, "validation refused over-long lines"
        try:
            line = reading.parse_line(raw.content, line_no=raw.line_no, endpoint=self._claim.endpoint)
            self._start_or_refuse(line, output, size_bytes=len(raw.content))
        except Abandoned:
            raise
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self._give_up(raw.line_no, reading.custom_id_of(raw.content), error)

    def _start_or_refuse(self, line: InputLine, output: list[int], *, size_bytes: int) -> None:
        try:
            prepared = self._prepare(line, size_bytes=size_bytes)
        except (BodyError, InvalidParamsError) as error:
            self._unflushed.append(self._results.refusal(line, error))
        else:
            self._start(prepared, output)

    def _prepare(self, line: InputLine, *, size_bytes: int) -> PreparedLine:
        prepare = functools.partial(
            self._parts.prompts.prepare, line, endpoint=self._claim.endpoint, batch_id=self._claim.batch_id
        )
        return prepare() if size_bytes < LONG_LINE_BYTES else self._hold_lease_during(prepare)

    def _start(self, prepared: PreparedLine, output: list[int]) -> None:
        run = LineRun(
            prepared,
            self._parts.tokenizer,
            batch_id=self._claim.batch_id,
            on_done=self._finished.put,
            on_stopped=self._parts.host.abort_child,
        )
        if output:
            run.prompt_runs[0].resume(output)
        self._in_engine[prepared.line.line_no] = run
        for index, (prompt, prompt_run) in enumerate(zip(prepared.prompts, run.prompt_runs, strict=True)):
            new = NewRequest(
                request_id=self._parts.host.next_request_id(),
                prompt_token_ids=prompt,
                params=prepared.params_of(index),
                priority=ENGINE_PRIORITY[Priority(self._claim.priority)],
                deadline=self._claim.expires_at.timestamp(),
                tenant=self._claim.tenant_id,
                output_token_ids=prompt_run.resumed_token_ids,
            )
            self._parts.host.submit(new, prompt_run)
            prompt_run.request_id = new.request_id

    # --- results out -------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Until every line has its result: take finished lines, flush when due, hold the lease."""
        while self._in_engine or self._unflushed:
            self._take_finished()
            if self._is_flush_due():
                self._flush()
            self._hold_lease_if_due()
            if self._in_engine and self._parts.drain.is_over:
                self._give_back()

    def _take_finished(self) -> None:
        """Wait a moment for a finished line, then take all there are."""
        if not self._in_engine:
            return
        try:
            run = self._finished.get(timeout=self._parts.settings.flush_seconds)
            while True:
                self._finish_line(run)
                run = self._finished.get_nowait()
        except queue.Empty:
            return

    def _finish_line(self, run: LineRun) -> None:
        line = run.prepared.line
        self._in_engine.pop(line.line_no, None)
        self._abort([run])  # what it computes after a stop string
        try:
            if run.error is None:
                self._unflushed.append(self._results.answer(run))
            elif run.is_resumed:
                log.warning(
                    "resumed line failed, running its prompt batch_id=%s line=%d", self._claim.batch_id, line.line_no
                )
                self._start(run.prepared, [])  # what it went on after may be the reason
            else:
                self._unflushed.append(self._results.failure(line.line_no, line.custom_id, message=run.error))
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self._give_up(line.line_no, line.custom_id, error)

    def _give_up(self, line_no: int, custom_id: str | None, error: Exception) -> None:
        """Fail one line for a fault of ours, and drop what the engine still runs of it."""
        log.exception("line failed unexpectedly batch_id=%s line_no=%s", self._claim.batch_id, line_no)
        run = self._in_engine.pop(line_no, None)
        if run is not None:
            self._abort([run])
        self._unflushed.append(self._results.fault(line_no, custom_id, error=error))

    def _is_flush_due(self) -> bool:
        settings, waiting = self._parts.settings, len(self._unflushed)
        if not waiting:
            return False
        is_old = self._parts.monotonic() - self._flushed_at >= settings.flush_seconds
        return is_old or waiting >= settings.flush_results or not self._in_engine

    def _flush(self) -> None:
        """Write what is finished; where the batch is no longer wanted, end the chunk."""
        self._write_results()
        self._end_if_unwanted()

    def _write_results(self) -> None:
        self._lease.flush(self._unflushed)
        self._unflushed = []
        self._flushed_at = self._parts.monotonic()

    # --- the lease ---------------------------------------------------------------------------------------------------

    def _hold_lease_if_due(self) -> None:
        """Extend the lease between flushes, but only for an engine that moves: a wedged one must lose its work."""
        if self._lease.seconds_since_extended < self._parts.settings.heartbeat_seconds:
            return
        if self._parts.host.seconds_since_progress() > STALL_SECONDS:
            return
        self._lease.extend()
        self._end_if_unwanted()

    def _hold_lease_during(self, work: Callable[[], T]) -> T:
        """Do `work` in another thread; the lease is left to end where that never comes back."""
        parts, executor = self._parts, ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare")
        started_at, result = parts.monotonic(), executor.submit(work)
        executor.shutdown(wait=False)  # once this is done; the lease may be lost before, and nobody waits for it then
        while not wait([result], timeout=parts.settings.heartbeat_seconds).done:
            if parts.monotonic() - started_at <= STALL_SECONDS:
                self._hold_lease_if_due()
        return result.result()

    # --- ends --------------------------------------------------------------------------------------------------------

    def _give_back(self) -> None:
        """Return the rest of the chunk to the queue, with the output it has so far; not a loss."""
        started = dict(self._in_engine)
        self._abort_all()
        while not self._finished.empty():  # ended since they were last taken
            self._finish_line(self._finished.get())
        if self._unflushed:
            self._flush()
        self._leave_for_another(started)
        raise Abandoned("the worker is stopping; the rest was given back")

    def _leave_for_another(self, started: dict[int, LineRun]) -> None:
        outputs = {line_no: tokens for line_no, run in started.items() if (tokens := run.checkpoint)}

        def leave(session: Session, claim: ClaimedChunk) -> None:
            checkpoints.save(session, claim, outputs, model_fingerprint=self._parts.model_fingerprint)
            leasing.release(session, claim)

        self._lease.run(leave)

    def _end_if_unwanted(self) -> None:
        """Where the batch was cancelled or has expired, keep what is finished and drop the rest."""
        if self._lease.is_batch_wanted:
            return
        self._abort_all()
        if self._unflushed:
            self._write_results()
        self._lease.run(leasing.release)  # withdraws it, seeing the batch's state
        raise Abandoned("the batch was cancelled or has expired")

    def _abort_all(self) -> None:
        runs = list(self._in_engine.values())
        self._in_engine.clear()
        self._abort(runs)

    def _abort(self, runs: Iterable[LineRun]) -> None:
        request_ids = [request_id for run in runs for request_id in run.request_ids_in_engine]
        if request_ids:
            self._parts.host.abort(request_ids)
