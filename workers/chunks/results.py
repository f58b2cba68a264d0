"""Results of a chunk's lines: made as lines end, held a moment, written together. One line never fails the others."""

from __future__ import annotations

import logging
from dataclasses import fields

from engine.errors import InvalidParamsError
from engine.outputs import SequenceTimes
from jobs.accounts.covers import Covered
from jobs.chunks.leasing import ClaimedChunk
from jobs.chunks.recording import LineResult
from jobs.lines.body_checks import BodyError
from jobs.lines.reading import InputLine, RawLine, custom_id_of
from workers.chunks.engine_decisions import EngineDecisions
from workers.chunks.engine_lines import EngineLines
from workers.chunks.lease import ChunkLease
from workers.chunks.line_results import ResultMaker
from workers.chunks.parts import WorkerParts
from workers.chunks.scores import ChunkScores
from workers.line_run import LineRun
from workers.prompts import PreparedLine

MAX_HELD_BYTES = 16 * 2**20
"""Of results that are not yet written, but for a single one: an answer with log-probabilities may have 80 MB."""

log = logging.getLogger(__name__)

_ENGINE_EVENTS = tuple(field.name for field in fields(SequenceTimes))


class ChunkResults:
    """`len()` is how many results are not yet written."""

    def __init__(
        self,
        claim: ClaimedChunk,
        parts: WorkerParts,
        *,
        lease: ChunkLease,
        lines: EngineLines,
        scores: ChunkScores,
    ) -> None:
        self._batch_id = claim.batch_id
        self._parts = parts
        self._lease = lease
        self._lines = lines
        self._scores = scores
        self._maker = ResultMaker(claim.batch_id, parts.answers)
        self._decisions = EngineDecisions(parts.monotonic)
        self._unwritten: list[LineResult] = []
        self._num_bytes = 0  # of their lines
        self._first_at = 0.0  # when the first of them came

    def __len__(self) -> int:
        return len(self._unwritten)

    def refuse(self, line: InputLine, error: BodyError | InvalidParamsError) -> None:
        """Note that a line's body cannot be run."""
        self._hold(self._maker.refusal(line, error))

    def leave_out(self, prepared: PreparedLine, found: Covered) -> None:
        """Note that a line is not run, as a budget of its tenant does not cover it."""
        most_picos, currency = self._lines.most_picos_of(prepared), self._parts.settings.currency
        self._unwritten.append(self._maker.uncovered(prepared, found, most_picos=most_picos, currency=currency))

    def copy(self, line: RawLine, original: bytes) -> None:
        """Note the answer of a line that is the same as one whose line of the output file is `original`."""
        custom_id = custom_id_of(line.content) or ""
        try:
            self._hold(self._maker.copy(line.line_no, custom_id, original=original))
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self.give_up(line.line_no, custom_id, error)

    @property
    def are_many(self) -> bool:
        """Tell whether there are so many that no more are to be held."""
        return len(self._unwritten) >= self._parts.settings.flush_results or self.are_large

    @property
    def are_large(self) -> bool:
        """Tell whether they take so much memory that no more are even to be made."""
        return self._num_bytes >= MAX_HELD_BYTES

    def finish(self, run: LineRun) -> None:
        """Note the answer or the failure of a line that has ended; one that failed resumed is started again."""
        line = run.prepared
        self._lines.drop(line.line_no)
        self._decisions.count(run)
        self._trace(run)
        try:
            if run.error is None:
                self._hold(self._maker.answer(run))
            elif run.is_resumed and not run.is_broken:
                log.warning("resumed line failed, running its prompt batch_id=%s line=%d", self._batch_id, line.line_no)
                for _, error in self._lines.start([(run.prepared, None)]):  # what it went on after may be the reason
                    raise error
            else:
                self._hold(self._maker.failure(line.line_no, line.custom_id, message=run.error))
        except Exception as error:  # noqa: BLE001 - recorded: the other lines must not die of it, round after round
            self.give_up(line.line_no, line.custom_id, error)

    def _trace(self, run: LineRun) -> None:
        """Note what a line went through, where it is one of those that are shown: the chunk has the others' time."""
        traces, line_no = self._parts.traces, run.prepared.line_no
        if self._lease.trace_context is None or not traces.has_line(self._batch_id, line_no):
            return
        times = [prompt.times for prompt in run.prompt_runs if prompt.times is not None]
        events = [(name, getattr(found, name)) for found in times for name in _ENGINE_EVENTS]
        parent = self._lease.trace_context
        traces.note("line", parent=parent, began_at=run.began_at, events=events, line_no=line_no)

    def give_up(self, line_no: int, custom_id: str | None, error: Exception) -> None:
        """Fail one line for a fault of ours, and drop what the engine still runs of it."""
        log.error("line failed unexpectedly batch_id=%s line_no=%s", self._batch_id, line_no, exc_info=error)
        self._lines.drop(line_no)
        self._hold(self._maker.fault(line_no, custom_id, error=error))

    @property
    def is_due(self) -> bool:
        """Tell whether to write now: there are many, the first is old, or no other will come."""
        if not self._unwritten:
            return False
        is_old = self._parts.monotonic() - self._first_at >= self._parts.settings.flush_seconds
        is_old = is_old or self._scores.holds(self._unwritten[-1].line_no)  # it is large, and others wait for its room
        return is_old or self.are_many or not self._lines

    def write(self, *, is_last: bool = False) -> None:
        """Write what is finished, which also extends the lease, or ends it where it `is_last`. Raises Abandoned."""
        self._lease.flush(
            self._unwritten,
            most_running=self._lines.most_tokens,
            most_picos=self._lines.most_picos,
            is_last=is_last,
            worker_microseconds=self._parts.worker_time.take(self._lines.time),
            decided=self._decisions.pop_due(is_last=is_last),
        )
        self._scores.leave(result.line_no for result in self._unwritten)
        self._unwritten, self._num_bytes = [], 0

    def _hold(self, result: LineResult) -> None:
        if not self._unwritten:
            self._first_at = self._parts.monotonic()
        self._unwritten.append(result)
        self._num_bytes += len(result.line)
